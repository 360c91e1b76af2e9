//! What commands print: one sentence for failures, tables for people, JSON for scripts.

use std::io::Write;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use comfy_table::{Table, presets};
use serde::Serialize;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();

/// `text` in `style`; on what is no terminal the style is dropped.
pub(crate) fn styled(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Writes a line to standard output. A reader that went away is not our failure.
pub(crate) fn say(line: impl std::fmt::Display) {
    writeln!(anstream::stdout(), "{line}").unwrap_or_default();
}

/// Writes a line to standard error.
pub(crate) fn note(line: impl std::fmt::Display) {
    writeln!(anstream::stderr(), "{line}").unwrap_or_default();
}

/// Writes `value` as JSON.
pub(crate) fn say_json(value: &impl Serialize) -> anyhow::Result<()> {
    say(serde_json::to_string_pretty(value)?);
    Ok(())
}

/// A list in JSON that is written as it is read, however long it is.
#[derive(Debug, Default)]
pub(crate) struct JsonList {
    has_begun: bool,
}

impl JsonList {
    pub(crate) fn push(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        let before = if self.has_begun { ",\n" } else { "[\n" };
        self.has_begun = true;
        let text = serde_json::to_string_pretty(value)?.replace('\n', "\n  ");
        write!(anstream::stdout(), "{before}  {text}").unwrap_or_default();
        Ok(())
    }

    pub(crate) fn end(self) {
        say(if self.has_begun { "\n]" } else { "[]" });
    }
}

/// Says in one line what failed.
pub(crate) fn failed(code: u8, error: &anyhow::Error) -> ExitCode {
    note(format_args!(
        "{}: {}",
        styled(BAD.bold(), "error"),
        chain(error)
    ));
    ExitCode::from(code)
}

/// The error and its causes on one line; what a level has said already is not repeated.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        let plain = cause.split(" (os error").next().unwrap_or(&cause);
        if text.to_lowercase().contains(&plain.to_lowercase()) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text.replace('\n', " ")
}

/// A table for people.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    table
}

pub(crate) fn version(json: bool) -> anyhow::Result<ExitCode> {
    let version = env!("CARGO_PKG_VERSION");
    if json {
        say_json(&serde_json::json!({ "version": version }))?;
    } else {
        say(format_args!("tasuki {version}"));
    }
    Ok(ExitCode::SUCCESS)
}
