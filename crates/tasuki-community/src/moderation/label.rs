//! A label, and the event by which the node says it. Without I/O.

use std::fmt;

use time::OffsetDateTime;
use uuid::Uuid;

use super::rule::LABEL;
use crate::nostr::{DELETION, Event, Id, Key, Signer, Target, short_hash};

/// Labels that hold at one time, of one target.
pub(crate) const MOST: usize = 5;

/// Who labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    Rule,
    Operator,
}

impl Origin {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Operator => "operator",
        }
    }
}

/// A label, as it is first said.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Label {
    pub(crate) target: Target,
    pub(crate) label: String,
    pub(crate) origin: Origin,
    /// How often a person has said it, this time included.
    pub(crate) round: i32,
    pub(crate) rule: Option<(Uuid, i32)>,
    pub(crate) author: Option<Key>,
    pub(crate) confidence: f64,
    pub(crate) issued_at: OffsetDateTime,
    /// In seconds: the relay knows no finer time.
    pub(crate) seconds: i64,
    pub(crate) policy_url: Option<String>,
    pub(crate) policy_ref: Option<String>,
    pub(crate) topics: Vec<String>,
    pub(crate) is_before_target: bool,
    pub(crate) actor: Option<String>,
    pub(crate) reason: Option<String>,
}

/// What no other label has. The word of a label has no colon, so the parts can be told apart.
impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.origin.as_str())?;
        if self.round > 1 {
            write!(f, "-{}", self.round)?;
        }
        write!(f, ":{}:{}", self.label, self.target)
    }
}

impl Label {
    pub(crate) fn id(&self) -> Uuid {
        short_hash(&[b"label", self.to_string().as_bytes()])
    }

    /// When it lapses: here and in the relay at the same second.
    pub(crate) fn expires_at(&self) -> OffsetDateTime {
        let end = self.issued_at.unix_timestamp() + self.seconds;
        OffsetDateTime::from_unix_timestamp(end).unwrap_or(self.issued_at)
    }

    /// The event: it depends on the label alone, so the same label is the same event.
    pub(crate) fn event(&self, signer: &Signer) -> Event {
        let tag = |name: &str, value: String| vec![name.to_owned(), value];
        let end = self.expires_at().unix_timestamp().to_string();
        let mut tags = vec![
            tag("d", self.to_string()),
            tag("target", self.target.to_string()),
            self.target.tag(),
            tag("label", self.label.clone()),
            tag("confidence", self.confidence.to_string()),
            tag("exp", end.clone()),
            tag("expiration", end),
        ];
        let policy = [
            ("policy_url", &self.policy_url),
            ("policy_ref", &self.policy_ref),
        ];
        for (name, value) in policy {
            tags.extend(value.clone().map(|value| tag(name, value)));
        }
        tags.extend(self.topics.iter().map(|topic| tag("t", topic.clone())));
        signer.event(self.issued_at.unix_timestamp(), LABEL, tags, String::new())
    }
}

/// The event that takes a label back.
pub(crate) fn withdrawal(
    signer: &Signer,
    label: Id,
    topics: &[String],
    at: OffsetDateTime,
    reason: &str,
) -> Event {
    let tag = |name: &str, value: String| vec![name.to_owned(), value];
    let mut tags = vec![tag("e", label.to_string()), tag("k", LABEL.to_string())];
    tags.extend(topics.iter().map(|topic| tag("t", topic.clone())));
    signer.event(at.unix_timestamp(), DELETION, tags, reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        Label {
            target: Target::Event(Id([7; 32])),
            label: "spam".to_owned(),
            origin: Origin::Rule,
            round: 1,
            rule: None,
            author: None,
            confidence: 0.75,
            issued_at: OffsetDateTime::from_unix_timestamp_nanos(1_700_000_000_999_999_000)
                .unwrap(),
            seconds: 60,
            policy_url: Some("https://example.com/policy".to_owned()),
            policy_ref: None,
            topics: vec!["news".to_owned()],
            is_before_target: false,
            actor: None,
            reason: None,
        }
    }

    #[test]
    fn a_label_is_said_in_the_same_words_each_time() {
        let signer = Signer::random();
        let event = label().event(&signer);
        assert_eq!(event.json(), label().event(&signer).json());
        assert_eq!((event.kind, event.created_at), (39_006, 1_700_000_000));
        assert_eq!(event.expiration(), Some(1_700_000_060));
        let id = "07".repeat(32);
        let written: Vec<_> = event.tags.iter().map(|tag| tag.join("=")).collect();
        assert_eq!(
            written,
            [
                &format!("d=rule:spam:event:{id}"),
                &format!("target=event:{id}"),
                &format!("e={id}"),
                "label=spam",
                "confidence=0.75",
                "exp=1700000060",
                "expiration=1700000060",
                "policy_url=https://example.com/policy",
                "t=news",
            ]
        );
    }

    #[test]
    fn no_two_labels_take_each_others_place() {
        let mut texts = vec![label().to_string()];
        let mut other = |change: fn(&mut Label)| {
            let mut label = label();
            change(&mut label);
            texts.push(label.to_string());
        };
        other(|it| it.label = "nsfw".to_owned());
        other(|it| it.origin = Origin::Operator);
        other(|it| (it.origin, it.round) = (Origin::Operator, 2));
        other(|it| it.target = Target::Author(Key([7; 32])));
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), 5);
    }
}
