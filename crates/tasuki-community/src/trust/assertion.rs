//! Assertions (NIP-85), without I/O: what the node says of somebody, as an event, and whether there is
//! anything to say.
//!
//! Kinds 30382 (a key), 30383 (an event), 30384 (an address) and 30385 (an identifier of NIP-73); `d` is the
//! subject. `rank` is from 0 to 100 and the higher the better, as clients expect: of a risk it is what is
//! left to 100. Each algorithm has a key of its own.

use std::cmp::{max, min};

use crate::node::Voice;
use crate::nostr::{Coordinate, Event, Signer, Target};

/// Everything is looked at again this often, in seconds: windows end, and reporters become known.
const AGAIN: i64 = 24 * 60 * 60;
/// Nothing is looked at again sooner by itself.
const SOONEST: i64 = 60;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Algorithm {
    Risk,
    Density,
}

impl Algorithm {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Risk => "risk",
            Self::Density => "density",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        let both = [Self::Risk, Self::Density];
        both.into_iter().find(|it| it.name() == name)
    }

    /// Whose key signs.
    pub(crate) const fn voice(self) -> Voice {
        match self {
            Self::Risk => Voice::Risk,
            Self::Density => Voice::Density,
        }
    }
}

/// Where the assertion of `signer` about `subject` is.
pub(crate) fn place(signer: &Signer, subject: &Target) -> Coordinate {
    let (kind, d) = match subject {
        Target::Author(key) => (30_382, key.to_string()),
        Target::Event(id) => (30_383, id.to_string()),
        Target::Version(coordinate) => (30_384, coordinate.to_string()),
        Target::Identifier(text) => (30_385, text.clone()),
    };
    let author = signer.key();
    Coordinate { kind, author, d }
}

/// What is said: a value, and how many it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    pub(crate) value: u8,
    pub(crate) counted: u32,
}

/// How it is said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form<'a> {
    pub(crate) created_at: i64,
    pub(crate) expires_at: i64,
    /// Where the subject is to be found; empty if nobody has said.
    pub(crate) relay: &'a str,
    /// The topic under which it is to be found, where everything needs one.
    pub(crate) topic: Option<&'a str>,
}

/// The event that says it.
pub(crate) fn event(
    signer: &Signer,
    algorithm: Algorithm,
    subject: &Target,
    words: Words,
    form: &Form<'_>,
) -> Event {
    let Coordinate { kind, d, .. } = place(signer, subject);
    let tag = |name: &str, value: String| vec![name.to_owned(), value];
    let mut tags = vec![tag("d", d)];
    let rank = match algorithm {
        Algorithm::Risk => 100 - words.value.min(100),
        Algorithm::Density => words.value,
    };
    tags.push(tag("rank", rank.to_string()));
    tags.push(tag(algorithm.name(), words.value.to_string()));
    if algorithm == Algorithm::Risk && matches!(subject, Target::Author(_)) {
        tags.push(tag("reports_cnt_recd", words.counted.to_string()));
    }
    if let Target::Identifier(text) = subject {
        tags.push(tag("k", kind_of(text)));
    } else {
        let mut hint = subject.tag();
        if !form.relay.is_empty() {
            hint.push(form.relay.to_owned());
        }
        tags.push(hint);
    }
    tags.extend(form.topic.map(|topic| tag("t", topic.to_owned())));
    tags.push(tag("expiration", form.expires_at.to_string()));
    signer.event(form.created_at, kind, tags, String::new())
}

/// The kind of an identifier, as NIP-73 has it.
fn kind_of(identifier: &str) -> String {
    if identifier.starts_with("https://") || identifier.starts_with("http://") {
        return "web".to_owned();
    }
    if identifier.starts_with('#') {
        return "#".to_owned();
    }
    let kind = match identifier.split_once(':') {
        // What follows may have colons of its own.
        Some((kind @ ("isbn" | "doi" | "geo" | "isan" | "iso3166"), _)) => kind,
        Some(_) => identifier.rsplit_once(':').map_or("", |(kind, _)| kind),
        None => identifier,
    };
    kind.to_owned()
}

/// What is said already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) words: Words,
    pub(crate) expires_at: i64,
}

/// What is to be done about a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    /// Whether it is to be said, anew or again.
    pub(crate) is_said: bool,
    /// When to look again; nothing: there is nothing to say.
    pub(crate) again_at: Option<i64>,
}

/// Decides about a subject: `standing` is what anybody can see now, `life` how long an assertion holds, and
/// `fades_in` when the value will be another one.
///
/// It is said when it has changed, or when it has a quarter of its life left. A zero is said once, in the
/// place of something else, and then left to end.
pub(crate) fn next(
    now: i64,
    words: Words,
    standing: Option<Standing>,
    life: i64,
    fades_in: Option<i64>,
) -> Next {
    let margin = max(life / 4, 1);
    let standing = standing.filter(|it| it.expires_at > now);
    let has_changed = match standing {
        Some(standing) => standing.words != words,
        None => words.value > 0,
    };
    let ends = standing.is_some_and(|it| it.expires_at - now <= margin);
    let is_said = has_changed || (ends && words.value > 0);
    let expires_at = match standing {
        _ if is_said => now + life,
        Some(standing) => standing.expires_at,
        None => {
            let again_at = None;
            return Next { is_said, again_at };
        }
    };
    let renewed_at = if words.value > 0 {
        expires_at - margin
    } else {
        expires_at
    };
    let fades_at = now + fades_in.map_or(AGAIN, |soon| max(soon + 1, SOONEST));
    let again_at = min(max(renewed_at, now + 1), min(fades_at, now + AGAIN));
    Next {
        is_said,
        again_at: Some(again_at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::{Id, Key};

    const NOW: i64 = 1_800_000_000;
    const LIFE: i64 = 7 * 86_400;

    fn words(value: u8) -> Words {
        Words { value, counted: 3 }
    }

    fn standing(value: u8, left: i64) -> Option<Standing> {
        Some(Standing {
            words: words(value),
            expires_at: NOW + left,
        })
    }

    #[test]
    fn it_is_said_when_it_is_new_has_changed_or_ends() {
        let said = |value, standing| next(NOW, words(value), standing, LIFE, None).is_said;
        assert!(said(5, None) && !said(0, None));
        assert!(!said(5, standing(5, LIFE)) && said(5, standing(6, LIFE)));
        assert!(!said(5, standing(5, LIFE / 4 + 1)) && said(5, standing(5, LIFE / 4)));
        assert!(said(5, standing(5, 0)), "it has ended");
        assert!(said(0, standing(5, LIFE)) && !said(0, standing(0, 1)));
        let other = Words {
            value: 5,
            counted: 4,
        };
        assert!(next(NOW, other, standing(5, LIFE), LIFE, None).is_said);
    }

    #[test]
    fn it_is_looked_at_again_when_it_fades_or_ends_and_once_a_day() {
        let again =
            |value, standing, fades| next(NOW, words(value), standing, LIFE, fades).again_at;
        assert_eq!(again(0, None, None), None);
        assert_eq!(again(0, standing(0, 9), None), Some(NOW + 9), "left to end");
        assert_eq!(again(5, None, Some(9_000)), Some(NOW + 9_001));
        assert_eq!(again(5, None, Some(0)), Some(NOW + SOONEST));
        assert_eq!(again(5, None, Some(LIFE)), Some(NOW + AGAIN));
        let left = LIFE / 4 + 50;
        assert_eq!(again(5, standing(5, left), Some(LIFE)), Some(NOW + 50));
        let short = next(NOW, words(5), None, 10, Some(LIFE));
        assert_eq!(short.again_at, Some(NOW + 8));
    }

    #[test]
    fn every_subject_has_its_kind_and_its_tags() {
        let signer = Signer::random();
        let hex = "ab".repeat(32);
        let address = format!("30023:{hex}:a");
        let form = Form {
            created_at: 1,
            expires_at: 9,
            relay: "wss://r",
            topic: None,
        };
        let of = |algorithm, subject: &Target| {
            let event = event(&signer, algorithm, subject, words(30), &form);
            let tags = event.tags.iter().map(|tag| tag.join(" "));
            (event.kind, tags.collect::<Vec<_>>().join(", "))
        };
        for (subject, kind, tags) in [
            (
                Target::Author(Key::parse(&hex).unwrap()),
                30_382,
                format!("d {hex}, rank 70, risk 30, reports_cnt_recd 3, p {hex} wss://r"),
            ),
            (
                Target::Event(Id::parse(&hex).unwrap()),
                30_383,
                format!("d {hex}, rank 70, risk 30, e {hex} wss://r"),
            ),
            (
                Target::Version(Coordinate::parse(&address).unwrap()),
                30_384,
                format!("d {address}, rank 70, risk 30, a {address} wss://r"),
            ),
            (
                Target::Identifier("isbn:1".to_owned()),
                30_385,
                "d isbn:1, rank 70, risk 30, k isbn".to_owned(),
            ),
        ] {
            let wanted = (kind, format!("{tags}, expiration 9"));
            assert_eq!(of(Algorithm::Risk, &subject), wanted);
        }
        let author = Target::Author(Key::parse(&hex).unwrap());
        let wanted = format!("d {hex}, rank 30, density 30, p {hex} wss://r, expiration 9");
        assert_eq!(of(Algorithm::Density, &author), (30_382, wanted));
    }

    #[test]
    fn identifiers_have_the_kinds_of_nip_73() {
        for (identifier, kind) in [
            ("https://example.com/a:b", "web"),
            ("#rust", "#"),
            ("geo:ezs42", "geo"),
            ("podcast:item:guid:d98d", "podcast:item:guid"),
            ("bitcoin:tx:a1", "bitcoin:tx"),
            ("doi:10.1000/a:b", "doi"),
        ] {
            assert_eq!(kind_of(identifier), kind);
        }
    }
}
