//! A real browser without a screen: Debian's `chromium`, which takes a picture of a page when all of it has loaded.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The browser; `None` says that the test is skipped, and why.
pub(crate) fn program() -> Option<&'static str> {
    let found = ["chromium", "chromium-browser"].into_iter().find(|program| {
        Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        eprintln!("skipped: there is no chromium on this machine");
    }
    found
}

/// A page that is being loaded.
pub(crate) struct Load {
    child: Child,
    picture: PathBuf,
}

/// Loads a page with a profile that nobody used before, all of it below `folder`.
pub(crate) fn load(program: &str, folder: &Path, name: &str, url: &str) -> Load {
    let picture = folder.join(format!("{name}.png"));
    let mut command = Command::new(program);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]);
    command.args(["--force-device-scale-factor=1", "--window-size=1000,1400"]);
    command.arg(format!("--user-data-dir={}", folder.join(format!("{name}-profile")).display()));
    command.arg(format!("--screenshot={}", picture.display())).arg(url);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Load { child: command.spawn().unwrap(), picture }
}

impl Load {
    /// The picture, as a PNG file, once the page has loaded. The same pixels are the same file.
    pub(crate) fn picture(mut self) -> Vec<u8> {
        assert!(self.child.wait().unwrap().success());
        std::fs::read(&self.picture).expect("the browser takes a picture of what has loaded")
    }
}
