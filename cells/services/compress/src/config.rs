//! The configuration: one setting per line. Does not know how it is applied.

use crate::codec::Format;

/// Path of the configuration in an image.
pub(crate) const PATH: &str = "/etc/compress";

/// The default configuration.
pub(crate) const DEFAULT: &str = include_str!("../compress.conf");

/// What passes through the cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// HTTP/1.1.
    Http,
    /// Any bytes.
    Stream,
}

/// Which side of a stream is plain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The client; the server's side is compressed.
    Compress,
    /// The server; the client's side is compressed.
    Decompress,
}

/// How bodies of requests are changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requests {
    /// Not at all.
    Pass,
    /// They are compressed for the server.
    Compress,
    /// Those that are compressed are decoded for the server.
    Decompress,
}

/// How `X-Forwarded-For` and `Forwarded` are changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forwarded {
    /// Not at all.
    Off,
    /// They contain only the client's address.
    Set,
    /// The client's address is appended to them.
    Append,
}

/// All settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// What passes through the cell.
    pub mode: Mode,
    /// Compression level from 1 to 9.
    pub level: u32,
    /// Bodies that are known to be shorter, in bytes, are not compressed.
    pub length_min: u64,
    /// Types of content that are compressed, in lower case.
    pub types: Vec<String>,
    /// How bodies of requests are changed.
    pub requests: Requests,
    /// How the forwarding fields of requests are changed.
    pub forwarded: Forwarded,
    /// Which side of a stream is plain.
    pub direction: Direction,
    /// Format of compressed streams.
    pub format: Format,
}

impl Default for Config {
    /// The settings before any line is read. No type is compressed.
    fn default() -> Self {
        Self {
            mode: Mode::Http,
            level: 3,
            length_min: 20,
            types: Vec::new(),
            requests: Requests::Pass,
            forwarded: Forwarded::Set,
            direction: Direction::Compress,
            format: Format::Gzip,
        }
    }
}

impl Config {
    /// Reads the settings. Missing settings are those of the default file; several lines of `types` add up.
    ///
    /// # Errors
    /// The first invalid line, and what is allowed there.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut config = Self::default();
        config.read(text)?;
        if config.types.is_empty() {
            let mut standard = Self::default();
            standard.read(DEFAULT)?;
            config.types = standard.types;
        }
        Ok(config)
    }

    fn read(&mut self, text: &str) -> Result<(), String> {
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            if let Some((name, values)) = words.split_first() {
                self.set(name, values)
                    .map_err(|wanted| format!("{PATH}, line {number}: `{}`: {wanted}", line.trim()))?;
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, values: &[&str]) -> Result<(), String> {
        if name == "types" {
            self.types.extend(values.iter().map(|value| value.to_ascii_lowercase()));
            return Ok(());
        }
        let [value] = values else { return Err(format!("write one value behind `{name}`")) };
        match name {
            "mode" => self.mode = one_of(value, &[("http", Mode::Http), ("stream", Mode::Stream)])?,
            "level" => {
                let level = value.parse().ok().filter(|level| (1..=9).contains(level));
                self.level = level.ok_or("a level is 1 to 9")?;
            }
            "min_length" => self.length_min = value.parse().map_err(|_| "a length is a number of bytes")?,
            "requests" => {
                let choices = [
                    ("pass", Requests::Pass),
                    ("compress", Requests::Compress),
                    ("decompress", Requests::Decompress),
                ];
                self.requests = one_of(value, &choices)?;
            }
            "forwarded" => {
                let choices =
                    [("set", Forwarded::Set), ("append", Forwarded::Append), ("off", Forwarded::Off)];
                self.forwarded = one_of(value, &choices)?;
            }
            "direction" => {
                let choices = [("compress", Direction::Compress), ("decompress", Direction::Decompress)];
                self.direction = one_of(value, &choices)?;
            }
            "format" => {
                let choices = [("gzip", Format::Gzip), ("zlib", Format::Zlib), ("deflate", Format::Deflate)];
                self.format = one_of(value, &choices)?;
            }
            _ => {
                return Err(
                    "a line begins with mode, level, min_length, types, requests, forwarded, direction or format"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }
}

fn one_of<T: Copy>(value: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let found = choices.iter().find(|(name, _)| *name == value);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        format!("it may be {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_what_is_written() {
        let config = Config::parse(DEFAULT).unwrap();
        assert_eq!(Config::parse("").unwrap(), config);
        assert!(config.types.contains(&"text/html".to_owned()) && config.types.len() > 20);
        assert_eq!((config.mode, config.level, config.length_min), (Mode::Http, 3, 20));
        assert_eq!(config.forwarded, Forwarded::Set);
    }

    #[test]
    fn a_line_counts_and_a_wrong_one_is_named() {
        let config = Config::parse("mode stream # so\nlevel 9\ntypes Text/X\nformat zlib\n").unwrap();
        assert_eq!((config.mode, config.level, config.format), (Mode::Stream, 9, Format::Zlib));
        assert_eq!(config.types, ["text/x"]);
        for (text, words) in [
            ("level 0", "line 1: `level 0`: a level is 1 to 9"),
            ("\nmode ftp", "line 2: `mode ftp`: it may be http, stream"),
            ("forwarded on", "it may be set, append, off"),
            ("level", "one value"),
            ("gzip on", "begins with mode"),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.contains(words), "{error:?} does not say {words:?}");
        }
    }
}
