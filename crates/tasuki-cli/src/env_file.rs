//! `.tasuki/run/env`: how a person or a script goes on from a running platform.
//!
//! The file can be sourced by a shell and read back by `--env-file`. It holds secrets, so it
//! is the owner's alone; it appears whole or not at all, and goes when the platform stops.

use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::private_file;

/// Writes `variables` to `path`, readable by nobody else.
pub(crate) fn write(path: &Path, variables: &[(String, String)]) -> anyhow::Result<()> {
    let lines = variables.iter();
    let lines = lines.map(|(name, value)| format!("export {name}={}\n", quoted(value)));
    private_file::write(path, &lines.collect::<String>())
}

/// The variables of `path`.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("{} can't be read: is `tasuki up` running?", path.display()))?;
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
        .map(|(index, line)| {
            parse(line).with_context(|| {
                let (file, line) = (path.display(), index + 1);
                format!("{file} line {line} is not of the form NAME='value'")
            })
        })
        .collect()
}

/// In single quotes nothing but the quote itself means anything to a shell.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

fn parse(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    let line = line.strip_prefix("export ").unwrap_or(line);
    let (name, value) = line.split_once('=')?;
    let value = match value.strip_prefix('\'') {
        Some(rest) => rest.strip_suffix('\'')?.replace(r"'\''", "'"),
        None => value.trim_matches('"').to_owned(),
    };
    Some((name.trim().to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_is_the_owners_alone() {
        use std::os::unix::fs::PermissionsExt;

        let dir = std::env::temp_dir().join(format!("tasuki-env-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("env");
        let variables = vec![
            ("TASUKI_A".to_owned(), "it's $HOME \"quoted\"".to_owned()),
            ("TASUKI_B".to_owned(), String::new()),
        ];

        write(&path, &variables).unwrap();

        assert_eq!(read(&path).unwrap(), variables);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let shell = std::process::Command::new("sh")
            .args(["-c", ". \"$0\" && printf %s \"$TASUKI_A\""])
            .arg(&path)
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(shell.stdout).unwrap(), variables[0].1);
        fs::remove_dir_all(&dir).unwrap();
    }
}
