//! Who pays attention to which event, without I/O: by a reaction, an answer, a repost or a zap.

use std::time::Duration;

use crate::nostr::{Event, Id, Key, Parsed};

const NOTE: u16 = 1;
const REPOST: u16 = 6;
const REACTION: u16 = 7;
const REPOST_OF_ANY: u16 = 16;
const COMMENT: u16 = 1111;
const ZAP_REQUEST: u16 = 9734;
const ZAP: u16 = 9735;
/// The kinds of events that pay attention to others.
pub(crate) const KINDS: [u16; 6] = [NOTE, REPOST, REACTION, REPOST_OF_ANY, COMMENT, ZAP];

/// Somebody pays attention to an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attention {
    pub(crate) event: Id,
    pub(crate) target: Id,
    pub(crate) from: Key,
    pub(crate) kind: u16,
    pub(crate) at: i64,
}

impl Attention {
    /// To whom `event` pays attention: one event, or the one that it answers and the one with which all of
    /// it began. Mentions are none, and neither is a reaction that says no (NIP-25).
    pub(crate) fn of(event: &Event) -> Vec<Self> {
        let (from, targets) = match event.kind {
            NOTE => (Some(event.author), answered(event)),
            COMMENT => (Some(event.author), [named(event, "E"), named(event, "e")]),
            REPOST | REPOST_OF_ANY => (Some(event.author), [named(event, "e"), None]),
            REACTION if event.content.trim() == "-" => (None, [None; 2]),
            REACTION => (Some(event.author), [None, ids(event, "e").last()]),
            ZAP => (zapper(event), [named(event, "e"), None]),
            _ => (None, [None; 2]),
        };
        let [first, second] = targets;
        let targets = first
            .into_iter()
            .chain(second.filter(|it| Some(*it) != first));
        let given = from.map(|from| {
            targets.map(move |target| Self {
                event: event.id,
                target,
                from,
                kind: event.kind,
                at: event.created_at,
            })
        });
        given.into_iter().flatten().collect()
    }
}

fn ids<'a>(event: &'a Event, name: &'a str) -> impl Iterator<Item = Id> + 'a {
    event
        .tags
        .iter()
        .filter_map(move |tag| match tag.as_slice() {
            [first, id, ..] if first == name => Id::parse(id),
            _ => None,
        })
}

fn named(event: &Event, name: &str) -> Option<Id> {
    ids(event, name).next()
}

/// What a note answers (NIP-10): by the marks of its tags, or by their place where there are none.
fn answered(event: &Event) -> [Option<Id>; 2] {
    let (mut root, mut reply, mut unmarked) = (None, None, Vec::new());
    for tag in &event.tags {
        let ("e", Some(id)) = (
            tag.first().map_or("", String::as_str),
            tag.get(1).and_then(|id| Id::parse(id)),
        ) else {
            continue;
        };
        match tag.get(3).map_or("", String::as_str) {
            "root" => root = root.or(Some(id)),
            "reply" => reply = reply.or(Some(id)),
            "mention" => {}
            _ => unmarked.push(id),
        }
    }
    if root.is_some() || reply.is_some() {
        return [root, reply];
    }
    [unmarked.first().copied(), unmarked.last().copied()]
}

/// Who has zapped (NIP-57): the receipt is signed by somebody else, and has the signed request in it.
fn zapper(event: &Event) -> Option<Key> {
    let mut tags = event.tags.iter();
    let request = tags.find(|tag| tag.first().is_some_and(|it| it == "description"))?;
    let request = Parsed::read(request.get(1)?).ok()?;
    let is_it =
        request.claims().kind == ZAP_REQUEST && named(request.claims(), "e") == named(event, "e");
    let request = is_it.then(|| request.verify().ok())??;
    Some(request.author)
}

/// How far back attention counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    Hour,
    Day,
    Week,
}

impl Window {
    const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Week];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Hour => "1h",
            Self::Day => "24h",
            Self::Week => "7d",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    pub(crate) const fn length(self) -> Duration {
        let hours = match self {
            Self::Hour => 1,
            Self::Day => 24,
            Self::Week => 7 * 24,
        };
        Duration::from_secs(hours * 60 * 60)
    }

    /// How long it takes until attention weighs half.
    pub(crate) fn half_life(self) -> Duration {
        self.length() / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::Signer;

    fn id(n: u8) -> String {
        format!("{n:02x}").repeat(32)
    }

    fn made(by: &Signer, kind: u16, content: &str, tags: &[&[&str]]) -> Event {
        let tags = tags
            .iter()
            .map(|tag| tag.iter().map(|it| (*it).to_owned()).collect());
        by.event(5, kind, tags.collect(), content.to_owned())
    }

    fn targets(event: &Event) -> Vec<String> {
        let given = Attention::of(event);
        assert!(given.iter().all(|it| it.event == event.id && it.at == 5));
        given.iter().map(|it| it.target.to_string()).collect()
    }

    #[test]
    fn each_kind_names_its_target_in_its_own_way() {
        let (by, [a, b, c]) = (Signer::random(), [id(1), id(2), id(3)]);
        let (e, p): ([&str; 2], [&str; 2]) = (["e", &a], ["p", &b]);
        let of = |kind, content, tags: &[&[&str]]| targets(&made(&by, kind, content, tags));
        assert_eq!(of(7, "+", &[&e, &["e", &b]]), [&*b], "the last");
        assert_eq!(of(7, "-", &[&e]), [""; 0]);
        assert_eq!(of(6, "", &[&p, &e]), [&*a]);
        assert_eq!(of(16, "", &[&e]), [&*a]);
        assert_eq!(of(1, "", &[&p, &["q", &a]]), [""; 0]);
        assert_eq!(of(1, "", &[&e]), [&*a]);
        assert_eq!(of(1, "", &[&e, &["e", &b], &["e", &c]]), [&*a, &*c]);
        let marked: [&[&str]; 4] = [
            &["e", &b, "", "mention"],
            &["e", &a, "", "root"],
            &["e", &c, "", "reply"],
            &["e", "x", "", "reply"],
        ];
        assert_eq!(of(1, "", &marked), [&*a, &*c]);
        assert_eq!(of(1, "", &marked[..2]), [&*a]);
        assert_eq!(of(1, "", &marked[..1]), [""; 0]);
        assert_eq!(of(1111, "", &[&["E", &a], &["e", &a]]), [&*a]);
        assert_eq!(of(1111, "", &[&["E", &a], &["e", &b]]), [&*a, &*b]);
        assert_eq!(of(0, "", &[&e]), [""; 0]);
    }

    #[test]
    fn a_zap_is_of_whoever_has_signed_its_request() {
        let (payer, service, a) = (Signer::random(), Signer::random(), id(1));
        let request = made(&payer, 9734, "", &[&["e", &a]]).json();
        let zap = |request: &str, target: &str| {
            let tags: [&[&str]; 2] = [&["e", target], &["description", request]];
            Attention::of(&made(&service, 9735, "", &tags))
        };
        let given = zap(&request, &a);
        assert_eq!(given.len(), 1);
        assert_eq!(given[0].from, payer.key());
        assert_eq!(zap(&request, &id(2)), [], "it was for another");
        let forged = request.replace(&payer.key().to_string(), &service.key().to_string());
        assert_eq!(zap(&forged, &a), [], "he has not signed it");
        let note = made(&payer, 1, "", &[&["e", &a]]).json();
        assert_eq!(zap(&note, &a), []);
        assert_eq!(zap("{}", &a), []);
    }
}
