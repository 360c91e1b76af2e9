//! Events that are signed once, before anything is measured: every relay gets the same bytes.
//!
//! A thousand authors, most of what they say is notes; a hundred topics, of which some are much
//! liked; replies, reactions, articles, profiles. Nothing replaces or deletes anything, so
//! that every event is accepted by everybody. Keys, texts and tags come from a fixed seed, times from
//! now: relays refuse what is old.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{BufRead as _, BufReader, BufWriter, Write as _},
    path::Path,
};

use anyhow::Context as _;
use aws_lc_rs::digest::{SHA256, digest};
use fastrand::Rng;
use secp256k1::{Keypair, SecretKey, schnorr};
use serde::{Deserialize, Serialize};

use super::words;

const SEED: u64 = 20_261_119;
const AUTHORS: usize = 1_000;
const TOPICS: f64 = 100.0;
/// Replies and reactions are to one of so many events before them.
const THREADS: usize = 2_000;
/// How old the oldest event is, in seconds.
const SPAN: i64 = 86_400;
/// Every so many-th event has a word of its own.
pub(super) const MARKED: usize = 25;
/// Kinds that come in a deck.
pub(super) const KINDS: [u16; 7] = [0, 1, 6, 7, 11, 1111, 30_023];

/// An event as it is on the wire.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Event {
    pub(super) id: String,
    pub(super) pubkey: String,
    pub(super) created_at: i64,
    pub(super) kind: u16,
    pub(super) tags: Vec<Vec<String>>,
    pub(super) content: String,
    pub(super) sig: String,
}

impl Event {
    /// The first value of a tag.
    pub(super) fn tag(&self, name: &str) -> Option<&str> {
        let mut tags = self.tags.iter();
        let tag = tags.find(|tag| tag.first().is_some_and(|it| it == name))?;
        tag.get(1).map(String::as_str)
    }
}

/// The word of its own of the event at a place.
pub(super) fn mark(place: usize) -> String {
    format!("mark{place}x")
}

/// Makes a deck of `count` events until `now`, and writes one on each line of a file.
pub(super) fn make(path: &Path, count: usize, now: i64) -> anyhow::Result<()> {
    let mut author = Author::new()?;
    let mut lines = BufWriter::new(File::create(path)?);
    for place in 0..count {
        let age = SPAN - SPAN * i64::try_from(place)? / i64::try_from(count)?;
        let event = author.event(place, now - age)?;
        serde_json::to_writer(&mut lines, &event)?;
        lines.write_all(b"\n")?;
    }
    lines.flush()?;
    Ok(())
}

/// Some events of a deck, each as text and read.
pub(super) fn read(path: &Path, from: usize, count: usize) -> anyhow::Result<Vec<(String, Event)>> {
    let file = File::open(path).with_context(|| format!("{} is no deck", path.display()))?;
    let lines = BufReader::new(file).lines().skip(from).take(count);
    let events = lines.map(|line| {
        let line = line?;
        let event = serde_json::from_str(&line)?;
        anyhow::Ok((line, event))
    });
    events.collect()
}

/// Removes a deck.
pub(super) fn forget(path: &Path) -> std::io::Result<()> {
    fs::remove_file(path)
}

/// Everybody who says something.
struct Author {
    keys: Vec<(Keypair, String)>,
    random: Rng,
    /// Ids and authors of events that others speak of.
    threads: Vec<(String, String)>,
}

impl Author {
    fn new() -> anyhow::Result<Self> {
        let mut random = Rng::with_seed(SEED);
        let keys: anyhow::Result<Vec<_>> = (0..AUTHORS).map(|_| key(&mut random)).collect();
        Ok(Self {
            keys: keys?,
            random,
            threads: Vec::new(),
        })
    }

    fn event(&mut self, place: usize, created_at: i64) -> anyhow::Result<Event> {
        let kind = match self.random.u8(..100) {
            0..72 => 1,
            72..84 => 7,
            84..90 => 1111,
            90..94 => 6,
            94..97 => 11,
            97..99 => 30_023,
            _ => 0,
        };
        let mut content = match kind {
            7 => "+".to_owned(),
            6 => String::new(),
            0 => serde_json::json!({"name": words::text(&mut self.random)}).to_string(),
            _ => words::text(&mut self.random),
        };
        if place.is_multiple_of(MARKED) && !matches!(kind, 0 | 6 | 7) {
            write!(content, " {}", mark(place))?;
        }
        let tags = self.tags(kind, place);
        let (pair, pubkey) = match kind {
            // Nobody has two profiles.
            0 => key(&mut self.random)?,
            _ => {
                let place = self.random.usize(..self.keys.len());
                self.keys.get(place).context("there are authors")?.clone()
            }
        };
        let event = signed(&pair, pubkey, created_at, kind, tags, content)?;
        if self.threads.len() < THREADS {
            self.threads.push((event.id.clone(), event.pubkey.clone()));
        } else if let Some(thread) = self.threads.get_mut(place % THREADS) {
            *thread = (event.id.clone(), event.pubkey.clone());
        }
        Ok(event)
    }

    fn tags(&mut self, kind: u16, place: usize) -> Vec<Vec<String>> {
        let mut tags = Vec::new();
        let mut tag = |name: &str, value: String| tags.push(vec![name.to_owned(), value]);
        if kind == 30_023 {
            tag("d", format!("article-{place}"));
            tag("title", words::text(&mut self.random));
        }
        let is_reply = matches!(kind, 6 | 7 | 1111) || (kind == 1 && self.random.u8(..3) == 0);
        if is_reply && !self.threads.is_empty() {
            let thread = self.random.usize(..self.threads.len());
            if let Some((id, pubkey)) = self.threads.get(thread) {
                tag("e", id.clone());
                tag("p", pubkey.clone());
            }
        }
        if kind != 0 && kind != 7 {
            for _ in 0..self.random.u8(..3) {
                let topic = self.random.f64().powi(2) * TOPICS;
                tag("t", format!("topic-{topic:.0}"));
            }
        }
        tags.dedup();
        tags
    }
}

fn key(random: &mut Rng) -> anyhow::Result<(Keypair, String)> {
    let mut secret = [0; 32];
    random.fill(&mut secret);
    let pair = Keypair::from_secret_key(&SecretKey::from_secret_bytes(secret)?);
    let public = hex(&pair.x_only_public_key().0.to_byte_array());
    Ok((pair, public))
}

fn signed(
    pair: &Keypair,
    pubkey: String,
    created_at: i64,
    kind: u16,
    tags: Vec<Vec<String>>,
    content: String,
) -> anyhow::Result<Event> {
    let words = serde_json::to_vec(&(0, &pubkey, created_at, kind, &tags, &content))?;
    let id = digest(&SHA256, &words);
    let sig = schnorr::sign_no_aux_rand(id.as_ref(), pair);
    Ok(Event {
        id: hex(id.as_ref()),
        pubkey,
        created_at,
        kind,
        tags,
        content,
        sig: hex(&sig.to_byte_array()),
    })
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let written = write!(text, "{byte:02x}");
        debug_assert!(written.is_ok(), "writing to a string does not fail");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_deck_is_the_same_each_time_and_no_event_replaces_another() {
        let deck = || {
            let mut author = Author::new().unwrap();
            let events = (0..2_000).map(|place| author.event(place, 1_800_000_000).unwrap());
            events.collect::<Vec<_>>()
        };
        let (one, other) = (deck(), deck());
        assert_eq!(
            serde_json::to_string(&one).unwrap(),
            serde_json::to_string(&other).unwrap()
        );
        let versions = one.iter().filter(|it| matches!(it.kind, 0 | 30_023));
        let versions: Vec<_> = versions
            .map(|it| (it.kind, &it.pubkey, it.tag("d")))
            .collect();
        let distinct: BTreeSet<_> = versions.iter().collect();
        assert_eq!(distinct.len(), versions.len());
        assert!(one.iter().all(|it| KINDS.contains(&it.kind)));
        assert!(one[MARKED * 3].content.contains(&mark(MARKED * 3)) || one[MARKED * 3].kind == 7);
    }
}
