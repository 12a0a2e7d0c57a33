//! The size of the cache, from the image's `/etc/memcached.conf`, in the format of Debian's file. Supports only the option
//! that has a meaning here.

/// Path of the file in an image.
pub(crate) const PATH: &str = "/etc/memcached.conf";

/// Default size of the cache in MiB. The manifest's memory must be larger by about 8 MiB.
const MEMORY_MIB_DEFAULT: usize = 48;

/// Bytes for items. Options without a meaning here (ports, users, logs) are ignored, so that a file can be shared with
/// a real memcached.
///
/// # Errors
/// If `-m` is not followed by a number of MiB between 1 and 3,072.
pub(crate) fn memory_bytes(text: &str) -> Result<usize, String> {
    let mut mib = MEMORY_MIB_DEFAULT;
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(number) = line.strip_prefix("-m") {
            let parsed = number.trim().parse().ok().filter(|mib| (1..=3072).contains(mib));
            mib = parsed.ok_or_else(|| format!("{PATH}: `{line}`: -m wants MiB, 1 to 3072"))?;
        }
    }
    Ok(mib << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_memory_is_read() {
        let cases = [
            ("", Ok(48 << 20)),
            (
                "# comment\n-d\nlogfile /var/log/memcached.log\n-m 64 # MiB\n-p 11211\n-u memcache\n",
                Ok(64 << 20),
            ),
            ("-m16", Ok(16 << 20)),
        ];
        for (text, expected) in cases {
            assert_eq!(memory_bytes(text), expected, "{text}");
        }
        for text in ["-m", "-m 0", "-m 4096", "-m much"] {
            assert!(memory_bytes(text).is_err(), "{text}");
        }
    }
}
