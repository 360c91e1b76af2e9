//! What somebody searches for.

use super::Terms;
use super::document::topic_term;
use crate::nostr::searched;

/// A question to the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    /// For PostgreSQL's `english`; all of them must be there.
    pub(crate) words: String,
    /// A `tsquery` of everything else; empty when there is none.
    pub(crate) rest: String,
}

impl Query {
    /// Reads what somebody has written; nothing if there is nothing to search for. `key:value`, which
    /// NIP-50 keeps for what a relay may not know, is left out.
    pub(crate) fn of(text: &str, topic: Option<&str>) -> Option<Self> {
        let terms = Terms::of(&searched(text));
        if terms.is_empty() {
            return None;
        }
        let mut rest = terms.query();
        if let Some(topic) = topic {
            let and = if rest.is_empty() { "" } else { " & " };
            rest.push_str(&format!("{and}'{}'", topic_term(&topic.to_lowercase())));
        }
        let words = terms.words.join(" ");
        Some(Self { words, rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_english_and_the_rest() {
        let query = Query::of("running 駅伝 language:ja", Some("News")).unwrap();
        assert_eq!(query.words, "running");
        assert_eq!(query.rest, "('駅伝') & '=news'");
        assert_eq!(Query::of("駅伝", None).unwrap().words, "");
        assert_eq!(Query::of("run", None).unwrap().rest, "");
        assert_eq!(Query::of("… language:ja", None), None);
        assert_eq!(
            Query::of("https://example.com", None).unwrap().words,
            "https example com"
        );
        assert_eq!(Query::of("naïve run", None).unwrap().words, "run");
    }
}
