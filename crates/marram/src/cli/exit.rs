//! The exit statuses of commands, and how their failures are reported.
//!
//! The numbers are `Failure::parts`; `RestartPreventExitStatus=2` in the unit for systemd relies on
//! them.

use crate::failure::Failure;
use std::io::Write;
use std::process::ExitCode;

/// Shown under `marram --help`.
pub(super) const HELP: &str = "Exit status:
  0  done; for demo and bench: every check held
  1  something failed; the message says what happened and what to do
  2  the command line, the environment, the configuration, the manifest or the name of a file is wrong
  3  the edge refused the request, or does not know its object
  4  the edge cannot be reached, or does not answer
  5  a check failed: bytes lost, repeated or changed; a replay that diverged
  6  bench: everything was measured, and a figure misses its bar
`marram exec` ends with the status of the program that it runs. Where several edges are asked, the status is that of the
first failure; the answers of the others are printed.";

/// Reports a failure on standard error and turns it into the exit status.
pub(super) fn code(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let (code, error) = failure.parts();
            // Written at once, since other processes may write at the same time. An error is ignored.
            let text = format!("marram: {error:#}\n");
            let _ = std::io::stderr().write_all(text.as_bytes());
            ExitCode::from(code)
        }
    }
}
