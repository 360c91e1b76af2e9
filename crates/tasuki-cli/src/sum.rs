//! What a command that acts on several things came to: how many it changed, which were as they
//! should be already, and which could not be helped, each with the reason.
//!
//! Every command can be given twice: what is done already is no failure.

use std::process::ExitCode;

use serde_json::json;

use crate::output::{note, say, say_json};

#[derive(Debug, Default)]
pub(crate) struct Sum {
    pub(crate) done: u64,
    already: Vec<String>,
    not: Vec<String>,
}

impl Sum {
    /// `id` is as it was asked to be: somebody was here before.
    pub(crate) fn already(&mut self, id: impl std::fmt::Display, why: &str) {
        self.already.push(format!("{id}: {why}"));
    }

    /// `id` is not as it was asked to be.
    pub(crate) fn not(&mut self, id: impl std::fmt::Display, why: &str) {
        self.not.push(format!("{id}: {why}"));
    }

    /// Says it; `what` names the number in JSON, `told` stands behind it in text.
    pub(crate) fn report(&self, what: &str, told: &str, json: bool) -> anyhow::Result<ExitCode> {
        if json {
            say_json(&json!({ what: self.done, "already": self.already, "not": self.not }))?;
        } else {
            say(format_args!("{} {told}", self.done));
            for line in self.already.iter().chain(&self.not) {
                say(line);
            }
        }
        Ok(self.code())
    }

    /// Says why nothing was done about the rest, beside the answer.
    pub(crate) fn note(&self) {
        for line in self.already.iter().chain(&self.not) {
            note(line);
        }
    }

    /// Failed, if something could not be helped.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(u8::from(!self.not.is_empty()))
    }
}
