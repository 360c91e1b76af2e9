//! What a rule asks of an event, and how it labels it. Without I/O.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::nostr::{Key, word};

/// Values of a list; bytes of one of them.
const VALUES: usize = 100;
const VALUE: usize = 512;
/// Bytes of a pattern.
const PATTERN: usize = 1024;
/// Seconds of a label's life: ten years.
pub(crate) const LONGEST: i64 = 10 * 365 * 24 * 60 * 60;
const URL: usize = 2048;

/// A field that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct Invalid {
    /// Which one.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl Invalid {
    pub(crate) fn new(field: &'static str, problem: impl Into<String>) -> Self {
        let problem = problem.into();
        Self { field, problem }
    }
}

/// What a rule asks for, and how it labels what has it. All conditions that are there must hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Any of these kinds. Empty: any but deletions, reports and labels.
    #[serde(default)]
    pub kinds: Vec<u16>,
    /// Any of these is in the content, whatever the case or width of letters.
    #[serde(default)]
    pub keywords: Vec<String>,
    /// A regular expression that the content matches: the syntax of the Rust crate `regex`.
    #[serde(default)]
    pub pattern: Option<String>,
    /// All of these tags: a name, or a name and the first value behind it.
    #[serde(default)]
    pub tags: Vec<Vec<String>>,
    /// By any of these authors: 64 digits of lower-case hexadecimal.
    #[serde(default)]
    pub authors: Vec<String>,
    /// In any of these topics.
    #[serde(default)]
    pub topics: Vec<String>,
    /// One word, in lower case.
    #[schema(example = "spam")]
    pub label: String,
    /// How sure it is.
    #[schema(minimum = 0, maximum = 1)]
    pub confidence: f64,
    /// How long a label holds, from when its event was accepted: up to ten years.
    #[schema(minimum = 1, maximum = 315_360_000)]
    pub expires_in_seconds: i64,
    /// The policy that it follows from, for people.
    #[serde(default)]
    pub policy_url: Option<String>,
    /// The place in that policy.
    #[serde(default)]
    pub policy_ref: Option<String>,
}

impl Definition {
    /// What of it is wrong. Whether the pattern is one, compiling it says.
    pub(super) fn check(&self) -> Result<(), Invalid> {
        if self.kinds.len() > VALUES {
            return Err(too_many("kinds"));
        }
        texts("keywords", &self.keywords)?;
        texts("authors", &self.authors)?;
        texts("topics", &self.topics)?;
        if self.authors.iter().any(|it| Key::parse(it).is_none()) {
            let problem = "are not all 64 digits of lower-case hexadecimal";
            return Err(Invalid::new("authors", problem));
        }
        if self.tags.len() > VALUES {
            return Err(too_many("tags"));
        }
        for tag in &self.tags {
            texts("tags", tag)?;
            if !(1..=2).contains(&tag.len()) {
                let problem = "are not all a name, or a name and a value";
                return Err(Invalid::new("tags", problem));
            }
        }
        if let Some(pattern) = &self.pattern {
            check_text("pattern", pattern, PATTERN)?;
        }
        if self.asks_nothing() {
            let problem = "asks for nothing: say kinds, keywords, pattern, tags, authors or topics";
            return Err(Invalid::new("the rule", problem));
        }
        check_words(&self.label, self.confidence, self.expires_in_seconds)?;
        check_policy(self.policy_url.as_deref(), self.policy_ref.as_deref())
    }

    const fn asks_nothing(&self) -> bool {
        self.kinds.is_empty()
            && self.keywords.is_empty()
            && self.pattern.is_none()
            && self.tags.is_empty()
            && self.authors.is_empty()
            && self.topics.is_empty()
    }
}

/// What a label says.
pub(super) fn check_words(label: &str, confidence: f64, seconds: i64) -> Result<(), Invalid> {
    if word(label).as_deref() != Some(label) {
        let problem = "is not one word of 1 to 64 lower-case letters, digits, - and _";
        return Err(Invalid::new("label", problem));
    }
    if !(0.0..=1.0).contains(&confidence) {
        return Err(Invalid::new("confidence", "is not from 0 to 1"));
    }
    if !(1..=LONGEST).contains(&seconds) {
        let problem = format!("is not from 1 to {LONGEST}");
        return Err(Invalid::new("expires_in_seconds", problem));
    }
    Ok(())
}

/// Where its policy is.
pub(super) fn check_policy(url: Option<&str>, place: Option<&str>) -> Result<(), Invalid> {
    if let Some(url) = url {
        check_text("policy_url", url, URL)?;
        let is_web = url.starts_with("https://") || url.starts_with("http://");
        if !is_web || url.contains(char::is_whitespace) {
            return Err(Invalid::new("policy_url", "is no address of the web"));
        }
    }
    place.map_or(Ok(()), |place| check_text("policy_ref", place, VALUE))
}

/// A text that fits a column and a line.
pub(crate) fn check_text(field: &'static str, text: &str, most: usize) -> Result<(), Invalid> {
    let problem = if text.trim().is_empty() {
        "is empty".to_owned()
    } else if text.len() > most {
        format!("is longer than {most} bytes")
    } else if text.contains(char::is_control) {
        "has a control character".to_owned()
    } else {
        return Ok(());
    };
    Err(Invalid::new(field, problem))
}

fn texts(field: &'static str, texts: &[String]) -> Result<(), Invalid> {
    if texts.len() > VALUES {
        return Err(too_many(field));
    }
    texts
        .iter()
        .try_for_each(|text| check_text(field, text, VALUE))
}

fn too_many(field: &'static str) -> Invalid {
    Invalid::new(field, format!("has more than {VALUES} values"))
}
