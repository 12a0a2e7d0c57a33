//! The definition of a change, as lines of `name = value` in the image's `/etc/background`.

/// Path of the settings.
pub const PATH: &str = "/etc/background";
/// Most frames of a mean: their sums must fit 16 bits.
pub const FRAMES_MAX: usize = 257;

/// The settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Number of frames of the mean.
    pub frames: usize,
    /// Distance from the mean, of 255, from which on a pixel counts as changed.
    pub threshold: u8,
    /// Number of adjacent pixels that must have changed, without noise.
    pub pixels: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { frames: 120, threshold: 24, pixels: 64 }
    }
}

/// Reads the settings; missing ones have default values.
///
/// # Errors
/// With the line and what is wrong in it.
pub fn parse(text: &str) -> Result<Settings, String> {
    let mut settings = Settings::default();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let at = |problem: &str| format!("line {}: `{line}`: {problem}", index + 1);
        let (name, value) = line.split_once('=').ok_or_else(|| at("a setting is `name = value`"))?;
        let number: u32 = value.trim().parse().map_err(|_| at("the value is a number"))?;
        let within = |low: u32, high: u32| {
            if (low..=high).contains(&number) {
                Ok(number)
            } else {
                Err(at(&format!("from {low} to {high}")))
            }
        };
        match name.trim() {
            "frames" => settings.frames = within(1, 257)? as usize,
            "threshold" => settings.threshold = u8::try_from(within(1, 254)?).map_err(|_| at("too large"))?,
            "pixels" => settings.pixels = within(1, 1 << 24)?,
            _ => return Err(at("there are `frames`, `threshold` and `pixels`")),
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_mistakes_are_named() {
        assert_eq!(parse(""), Ok(Settings::default()));
        let text = "# mine\nframes = 30\n\nthreshold=8 # dark\npixels = 1\n";
        assert_eq!(parse(text), Ok(Settings { frames: 30, threshold: 8, pixels: 1 }));
        for (text, says) in [
            ("frames", "`name = value`"),
            ("frames = many", "a number"),
            ("frames = 258", "from 1 to 257"),
            ("\nspeed = 1", "line 2"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(says), "{error}");
        }
        assert_eq!(FRAMES_MAX * 255, usize::from(u16::MAX), "the sum of so many pixels fits");
    }
}
