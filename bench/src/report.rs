//! Tables for people and a file for machines.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::Context as _;
use serde::Serialize;

use crate::figures::{Figure, Verdict};

/// Everything that belongs to a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) scenario: &'static str,
    /// The server's time, which is also the name of the file.
    pub(crate) at: String,
    pub(crate) commit: String,
    pub(crate) cores: usize,
    /// What was asked for: jobs, clients, seconds, runs.
    pub(crate) options: BTreeMap<&'static str, u32>,
    /// Settings of the server.
    pub(crate) server: Vec<(String, String)>,
    /// Contestant → version.
    pub(crate) versions: BTreeMap<&'static str, String>,
    /// Who was asked for and could not take part.
    pub(crate) missing: Vec<&'static str>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) verdicts: Vec<Verdict>,
}

impl Report {
    /// Both tables, in Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        let written = self.write(&mut text);
        debug_assert!(written.is_ok(), "writing to a string does not fail");
        text
    }

    /// Whether a target was missed. What could not be compared counts as neither.
    pub(crate) fn misses_a_target(&self) -> bool {
        self.verdicts
            .iter()
            .any(|verdict| verdict.met == Some(false))
    }

    /// Writes the file, and says where.
    pub(crate) fn save(&self, folder: &Path) -> anyhow::Result<String> {
        fs::create_dir_all(folder)?;
        let file = folder.join(format!("{}-{}.json", self.scenario, self.at));
        fs::write(&file, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("{} could not be written", file.display()))?;
        Ok(file.display().to_string())
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let options: Vec<String> = self
            .options
            .iter()
            .map(|(k, v)| format!("{k} {v}"))
            .collect();
        let server: Vec<String> = self
            .server
            .iter()
            .map(|(k, v)| format!("{k} {v}"))
            .collect();
        writeln!(
            text,
            "Commit {}, {}, {} cores.",
            self.commit, self.at, self.cores
        )?;
        writeln!(text, "Options: {}.", options.join(", "))?;
        writeln!(text, "Server: {}.\n", server.join(", "))?;
        writeln!(text, "| measure | who | median | lowest – highest |")?;
        writeln!(text, "| --- | --- | ---: | ---: |")?;
        for figure in &self.figures {
            let who = figure.who.as_str();
            let version = self.versions.get(who).map_or(who, String::as_str);
            let range = format!("{} – {}", number(figure.lowest), number(figure.highest));
            let (title, median) = (figure.metric.title(), number(figure.median));
            writeln!(text, "| {title} | {version} | {median} | {range} |")?;
        }
        writeln!(text, "\n| target | ours | against | | ratio | wanted | |")?;
        writeln!(text, "| --- | ---: | --- | ---: | ---: | ---: | --- |")?;
        for verdict in &self.verdicts {
            let some = |n: Option<f64>| n.map_or("–".to_owned(), number);
            let ratio = verdict.ratio.map_or("–".to_owned(), |r| format!("{r:.2}"));
            let met = match verdict.met {
                Some(true) => "pass",
                Some(false) => "FAIL",
                None => "not measured",
            };
            writeln!(
                text,
                "| {} | {} | {} | {} | {ratio} | {} | {met} |",
                verdict.metric.title(),
                some(verdict.ours),
                verdict.against,
                some(verdict.other),
                verdict.wanted,
            )?;
        }
        for name in &self.missing {
            writeln!(text, "\n**{name} did not take part: it is not installed.**")?;
        }
        Ok(())
    }
}

/// Three digits that matter: `21,034`, `680`, `1.52`.
fn number(n: f64) -> String {
    if n < 100.0 {
        return format!("{n:.2}");
    }
    let digits = format!("{n:.0}");
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_people_write_them() {
        let written = [1.524, 99.99, 680.4, 21034.5, 1_234_567.0].map(number);
        assert_eq!(written, ["1.52", "99.99", "680", "21,034", "1,234,567"]);
    }
}
