//! The program `marram-bench`, which `marram bench` starts. Its code is in the library beside it.
//!
//! A program of its own, so that `marram` contains neither baselines nor TLS clients. The allocator
//! is tuned as in an edge, since parts of it run here as they run there.

fn main() -> std::process::ExitCode {
    marram_node::memory::tune_malloc();
    marram_bench::main()
}
