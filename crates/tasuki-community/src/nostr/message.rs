//! What clients say, and what they are answered (NIP-01, NIP-42, NIP-45).

use std::fmt;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::filter::Limits;
use super::{Fault, Filter, Id, Parsed};

/// The longest name of a subscription.
pub(crate) const NAME_LIMIT: usize = 64;
/// How much is repeated of one that is longer.
const REPEATED: usize = 4 * NAME_LIMIT;

/// What a client says.
#[derive(Debug)]
pub(crate) enum Asked {
    Event(Parsed),
    Req(String, Vec<Filter>),
    Count(String, Vec<Filter>),
    Close(String),
    Auth(Parsed),
}

/// The word before the colon: what a program can make of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefix {
    AuthRequired,
    Blocked,
    Error,
    Invalid,
    RateLimited,
    Restricted,
    Unsupported,
}

impl Prefix {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::AuthRequired => "auth-required",
            Self::Blocked => "blocked",
            Self::Error => "error",
            Self::Invalid => "invalid",
            Self::RateLimited => "rate-limited",
            Self::Restricted => "restricted",
            Self::Unsupported => "unsupported",
        }
    }
}

/// Why something is not done: `prefix: words`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) prefix: Prefix,
    pub(crate) words: String,
}

impl Refusal {
    pub(crate) fn new(prefix: Prefix, words: impl Into<String>) -> Self {
        let words = words.into();
        Self { prefix, words }
    }

    pub(crate) fn invalid(words: impl Into<String>) -> Self {
        Self::new(Prefix::Invalid, words)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.prefix.as_str(), self.words)
    }
}

/// What a client is told, but for events, which are written once for all who get them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// An event was taken, or not; the words have a prefix, or are empty.
    Ok(String, bool, String),
    Eose(String),
    Closed(String, String),
    Notice(String),
    Auth(String),
    Count(String, Count),
}

/// How many there are, or that there are more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Exactly(u64),
    /// At least so many.
    About(u64),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json: Value = match self {
            Self::Ok(id, taken, words) => json!(["OK", id, taken, words]),
            Self::Eose(name) => json!(["EOSE", name]),
            Self::Closed(name, words) => json!(["CLOSED", name, words]),
            Self::Notice(words) => json!(["NOTICE", words]),
            Self::Auth(challenge) => json!(["AUTH", challenge]),
            Self::Count(name, Count::Exactly(count)) => json!(["COUNT", name, {"count": count}]),
            Self::Count(name, Count::About(count)) => {
                json!(["COUNT", name, {"count": count, "approximate": true}])
            }
        };
        write!(f, "{json}")
    }
}

/// Reads a message; what can't be read is answered in the way of what it was meant to be.
pub(crate) fn asked(text: &str, limits: Limits, filters: usize) -> Result<Asked, Answer> {
    let notice = |words: &str| Answer::Notice(Refusal::invalid(words).to_string());
    let parts: Vec<&RawValue> =
        serde_json::from_str(text).map_err(|_error| notice("a message is a list"))?;
    let mut parts = parts.into_iter().map(RawValue::get);
    let verb = parts.next().and_then(text_of);
    let verb = verb.ok_or_else(|| notice("a message begins with its name"))?;
    match verb.as_str() {
        "EVENT" => event(parts.next()).map(Asked::Event),
        "AUTH" => event(parts.next()).map(Asked::Auth),
        "CLOSE" => {
            let name = parts.next().and_then(text_of);
            let name = name.ok_or_else(|| notice("CLOSE needs the name of a subscription"))?;
            Ok(Asked::Close(name))
        }
        "REQ" => wanted(parts, limits, filters).map(|(name, wanted)| Asked::Req(name, wanted)),
        "COUNT" => wanted(parts, limits, filters).map(|(name, wanted)| Asked::Count(name, wanted)),
        _ => Err(Answer::Notice(
            Refusal::new(Prefix::Unsupported, "unknown message").to_string(),
        )),
    }
}

fn text_of(json: &str) -> Option<String> {
    serde_json::from_str(json).ok()
}

/// An event, or `OK` with `false` and the id that it says it has.
fn event(json: Option<&str>) -> Result<Parsed, Answer> {
    let read = json.map_or_else(|| Err(Fault::new("an event is missing")), Parsed::read);
    read.map_err(|fault| {
        let value: Option<Value> = json.and_then(|json| serde_json::from_str(json).ok());
        let id = value.as_ref().and_then(|it| it.get("id")?.as_str());
        // What is no id is not repeated: it may be of any length.
        let id = id.filter(|id| Id::parse(id).is_some()).unwrap_or_default();
        let words = Refusal::invalid(fault.0).to_string();
        Answer::Ok(id.to_owned(), false, words)
    })
}

/// The name of a subscription and its filters.
fn wanted<'a>(
    mut parts: impl Iterator<Item = &'a str>,
    limits: Limits,
    most: usize,
) -> Result<(String, Vec<Filter>), Answer> {
    let notice = |words: &str| Answer::Notice(Refusal::invalid(words).to_string());
    let name = parts.next().and_then(text_of);
    let name = name.ok_or_else(|| notice("a subscription needs a name"))?;
    let closed = |words: String| Answer::Closed(name.clone(), words);
    if name.is_empty() || name.chars().count() > NAME_LIMIT {
        let words = format!("the name of a subscription has 1 to {NAME_LIMIT} characters");
        // Repeated, so that it is known what was refused; but not at any length.
        let name = name.chars().take(REPEATED).collect();
        return Err(Answer::Closed(name, Refusal::invalid(words).to_string()));
    }
    let mut filters = Vec::new();
    for part in parts {
        if filters.len() == most {
            let words = format!("more than {most} filters");
            return Err(closed(Refusal::invalid(words).to_string()));
        }
        filters.push(Filter::read(part, limits).map_err(|fault| closed(fault.0))?);
    }
    if filters.is_empty() {
        return Err(closed(Refusal::invalid("no filter").to_string()));
    }
    Ok((name, filters))
}

#[cfg(test)]
mod tests {
    use super::super::Signer;
    use super::*;

    const LIMITS: Limits = Limits {
        values: 10,
        limit: 100,
        tags: 3,
    };

    fn refused(text: &str) -> String {
        asked(text, LIMITS, 2).unwrap_err().to_string()
    }

    #[test]
    fn each_message_is_read() {
        let event = Signer::random().event(1, 1, vec![], String::new()).json();
        let read = |text: String| asked(&text, LIMITS, 2).unwrap();
        assert!(matches!(
            read(format!(r#"["EVENT",{event}]"#)),
            Asked::Event(_)
        ));
        assert!(matches!(
            read(format!(r#"["AUTH",{event}]"#)),
            Asked::Auth(_)
        ));
        let req = read(r#" ["REQ", "a", {}, {"limit":1}] "#.to_owned());
        assert!(matches!(req, Asked::Req(name, filters) if name == "a" && filters.len() == 2));
        let count = read(r#"["COUNT","a",{}]"#.to_owned());
        assert!(matches!(count, Asked::Count(name, filters) if name == "a" && filters.len() == 1));
        let close = read(r#"["CLOSE","a"]"#.to_owned());
        assert!(matches!(close, Asked::Close(name) if name == "a"));
    }

    #[test]
    fn what_can_not_be_read_is_answered_in_the_way_of_what_it_was_meant_to_be() {
        let id = "ab".repeat(32);
        for (text, answer) in [
            (
                "",
                r#"["NOTICE","invalid: a message is a list"]"#.to_owned(),
            ),
            (
                "{}",
                r#"["NOTICE","invalid: a message is a list"]"#.to_owned(),
            ),
            (
                "[]",
                r#"["NOTICE","invalid: a message begins with its name"]"#.to_owned(),
            ),
            (
                "[1]",
                r#"["NOTICE","invalid: a message begins with its name"]"#.to_owned(),
            ),
            (
                r#"["HI"]"#,
                r#"["NOTICE","unsupported: unknown message"]"#.to_owned(),
            ),
            (
                r#"["EVENT"]"#,
                r#"["OK","",false,"invalid: an event is missing"]"#.to_owned(),
            ),
            (
                &format!(r#"["EVENT",{{"id":"{id}"}}]"#),
                format!(r#"["OK","{id}",false,"invalid: not an event: missing field `pubkey`"]"#),
            ),
            (
                r#"["REQ"]"#,
                r#"["NOTICE","invalid: a subscription needs a name"]"#.to_owned(),
            ),
            (
                r#"["REQ","",{}]"#,
                r#"["CLOSED","","invalid: the name of a subscription has 1 to 64 characters"]"#
                    .to_owned(),
            ),
            (
                r#"["REQ","a"]"#,
                r#"["CLOSED","a","invalid: no filter"]"#.to_owned(),
            ),
            (
                r#"["REQ","a",{},{},{}]"#,
                r#"["CLOSED","a","invalid: more than 2 filters"]"#.to_owned(),
            ),
            (
                r#"["REQ","a",{"x":1}]"#,
                r#"["CLOSED","a","unsupported: filter contains unknown elements"]"#.to_owned(),
            ),
            (
                r#"["CLOSE"]"#,
                r#"["NOTICE","invalid: CLOSE needs the name of a subscription"]"#.to_owned(),
            ),
        ] {
            assert_eq!(refused(text), answer, "{text}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_is_repeated_so_that_it_is_known_but_not_at_any_length() {
        for (length, repeated) in [(65, 65), (256, 256), (1_000, 256)] {
            let long = format!(r#"["REQ","{}",{{}}]"#, "é".repeat(length));
            let answer = format!(r#"["CLOSED","{}","invalid: "#, "é".repeat(repeated));
            assert!(refused(&long).starts_with(&answer), "{length}");
        }
    }
}
