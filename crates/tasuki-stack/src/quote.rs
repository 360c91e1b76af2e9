//! Quoting for the servers' configuration files and for URLs.

use std::path::Path;

/// A path in double quotes, as the files of NATS and Redis take it.
pub(crate) fn path(path: &Path) -> String {
    let text = path.to_string_lossy();
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A string in single quotes, as the files of PostgreSQL take it.
pub(crate) fn setting(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// A part of a URL's path, with everything unusual as `%XX`.
pub(crate) fn percent(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            quoted.push(char::from(byte));
        } else {
            quoted.push_str(&format!("%{byte:02X}"));
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_do_not_end_what_they_are_in() {
        assert_eq!(path(Path::new(r#"/a "b"\c"#)), r#""/a \"b\"\\c""#);
        assert_eq!(setting(r"it's \ here"), r"'it''s \\ here'");
        assert_eq!(percent("my db/ü"), "my%20db%2F%C3%BC");
    }
}
