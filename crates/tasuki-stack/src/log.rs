//! Log files of servers, and their last lines for an error message.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    path::Path,
};

/// A log that has grown beyond this is set aside at the next start.
const ROTATE_BYTES: u64 = 16 * 1024 * 1024;

/// How much of a log's end goes into an error message.
const TAIL_LINES: usize = 12;
const TAIL_BYTES: u64 = 16 * 1024;

/// Sets a big log aside, so that a stack that is started for years fills no disk.
/// Returns the length of what is there now: where the next start's lines begin.
pub(crate) fn prepare(log: &Path) -> u64 {
    let length = length(log);
    if length < ROTATE_BYTES {
        return length;
    }
    match fs::rename(log, log.with_extension("log.old")) {
        Ok(()) => 0,
        Err(_unwritable) => length, // The start will say so with a better message.
    }
}

/// The last lines that were written after `start`, indented.
pub(crate) fn tail(log: &Path, start: u64) -> String {
    let from = start.max(length(log).saturating_sub(TAIL_BYTES));
    let mut bytes = Vec::new();
    let read = File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut bytes)
    });
    if let Err(error) = read {
        return format!("  (the log can't be read: {error})");
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
    let shown = lines.iter().skip(lines.len().saturating_sub(TAIL_LINES));
    let tail: Vec<_> = shown.map(|line| format!("  {line}")).collect();
    if tail.is_empty() {
        return "  (the log is empty)".to_owned();
    }
    tail.join("\n")
}

fn length(log: &Path) -> u64 {
    fs::metadata(log).map_or(0, |metadata| metadata.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_has_the_last_lines_of_this_start_only() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("x.log");
        fs::write(&log, "before\n").unwrap();
        let start = prepare(&log);

        assert_eq!(tail(&log, start), "  (the log is empty)");
        let lines: String = (0..40).map(|number| format!("line {number}\n\n")).collect();
        fs::write(&log, format!("before\n{lines}")).unwrap();

        let tail = tail(&log, start);
        assert_eq!(tail.lines().count(), TAIL_LINES);
        assert!(tail.ends_with("  line 39"));
        assert!(!tail.contains("before"));
    }
}
