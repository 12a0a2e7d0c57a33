//! The program `marram`. Everything is in the library beside it, where tests can reach it.

fn main() -> std::process::ExitCode {
    marram::memory::tune_malloc();
    marram::cli::main()
}
