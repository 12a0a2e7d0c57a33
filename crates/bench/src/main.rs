//! The program `marram-bench`, which `marram bench` starts. Its code is in the library beside it.

fn main() -> std::process::ExitCode {
    marram_node::memory::tune_malloc();
    marram_bench::main()
}
