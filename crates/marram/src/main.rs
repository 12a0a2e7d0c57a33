//! The program `marram`. Its code is in the library beside it, which tests can call.

fn main() -> std::process::ExitCode {
    // Before there is a second thread, as `mallopt` requires.
    marram_node::memory::tune_malloc();
    marram::cli::main()
}
