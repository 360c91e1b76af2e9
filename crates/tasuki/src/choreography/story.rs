//! One story out of the parts of many services. Pure: the parts may come from anywhere.
//!
//! What holds: the same parts give the same story, in whatever order and however often they come;
//! no event is left out, and none stands before what it follows from.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

/// What one service knows of one event: that it told it, or that it reacted to it. As JSON it
/// travels between services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, sqlx::FromRow)]
#[non_exhaustive]
pub struct Entry {
    /// The chain.
    pub correlation_id: String,
    /// The event.
    pub event_id: Uuid,
    /// The event that it follows from.
    pub causation_id: Option<Uuid>,
    /// What it is called.
    pub event_type: String,
    /// The service that told it or reacted to it.
    pub service: String,
    /// Who reacted to it; `None` if the service told it.
    pub consumer: Option<String>,
    /// When, by the clock of that service's database.
    #[serde(with = "time::serde::rfc3339")]
    pub recorded_at: OffsetDateTime,
}

/// A chain of events, as a tree of causes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Story {
    turns: Vec<Turn>,
}

/// One event of a story.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Turn {
    /// The event.
    pub event_id: Uuid,
    /// What it is called.
    pub event_type: String,
    /// What it follows from. At depth 0 it is none, or one that no part knows.
    pub causation_id: Option<Uuid>,
    /// How many known events are between it and the beginning.
    pub depth: usize,
    /// Who told it; `None` if that service's part is not here.
    pub told: Option<Told>,
    /// Who reacted to it, the first one first.
    pub reactions: Vec<Told>,
}

/// That a service told an event, or reacted to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Told {
    /// When, by the clock of that service's database.
    pub at: OffsetDateTime,
    /// The service.
    pub service: String,
    /// Its consumer, for a reaction.
    pub consumer: Option<String>,
}

impl Story {
    /// The story that these entries are parts of.
    #[must_use]
    pub fn of(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut turns: BTreeMap<Uuid, Turn> = BTreeMap::new();
        for entry in entries {
            let turn = turns.entry(entry.event_id);
            turn.or_insert_with(|| Turn::of(&entry)).add(entry);
        }
        Self {
            turns: as_tree(turns),
        }
    }

    /// The events as a tree: each is followed by those that follow from it, the older ones first,
    /// one deeper.
    #[must_use]
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// The events by their times, but none before its cause: clocks differ.
    #[must_use]
    pub fn timeline(&self) -> Vec<&Turn> {
        let mut follow: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
        let mut next = BinaryHeap::new();
        let key = |(index, turn): (usize, &Turn)| Reverse((turn.at(), turn.event_id, index));
        for (index, turn) in self.turns.iter().enumerate() {
            match turn.causation_id.filter(|_| turn.depth > 0) {
                Some(cause) => follow.entry(cause).or_default().push(index),
                None => next.push(key((index, turn))),
            }
        }
        let mut timeline = Vec::with_capacity(self.turns.len());
        while let Some(Reverse((_, event_id, index))) = next.pop() {
            timeline.extend(self.turns.get(index));
            let freed = follow.remove(&event_id).unwrap_or_default().into_iter();
            next.extend(freed.filter_map(|index| Some(key((index, self.turns.get(index)?)))));
        }
        timeline
    }
}

impl Turn {
    fn of(entry: &Entry) -> Self {
        Self {
            event_id: entry.event_id,
            event_type: entry.event_type.clone(),
            causation_id: entry.causation_id,
            depth: 0,
            told: None,
            reactions: Vec::new(),
        }
    }

    fn add(&mut self, entry: Entry) {
        let told = Told {
            at: entry.recorded_at,
            service: entry.service,
            consumer: entry.consumer,
        };
        if told.consumer.is_none() {
            // Whoever told it knows best.
            self.causation_id = entry.causation_id;
            self.event_type = entry.event_type;
            self.told = Some(told);
        } else if let Err(place) = self.reactions.binary_search(&told) {
            self.reactions.insert(place, told);
        }
    }

    /// When it was told, as far as is known.
    fn at(&self) -> Option<OffsetDateTime> {
        let first = self.told.as_ref().or(self.reactions.first());
        first.map(|told| told.at)
    }
}

/// The turns in the order of the tree, with their depths.
fn as_tree(mut turns: BTreeMap<Uuid, Turn>) -> Vec<Turn> {
    let mut roots = Vec::new();
    let mut follow: BTreeMap<Uuid, Vec<(Option<OffsetDateTime>, Uuid)>> = BTreeMap::new();
    for turn in turns.values() {
        let place = (turn.at(), turn.event_id);
        match turn.causation_id.filter(|cause| turns.contains_key(cause)) {
            Some(cause) => follow.entry(cause).or_default().push(place),
            None => roots.push(place),
        }
    }
    let mut tree = Vec::with_capacity(turns.len());
    loop {
        // What is left when no root is has itself for its cause, by somebody's mistake: it is shown
        // all the same.
        if roots.is_empty() {
            roots.extend(turns.values().map(|turn| (turn.at(), turn.event_id)).min());
        }
        if roots.is_empty() {
            return tree;
        }
        // From the back: the last that is put there is the next that is taken.
        let mut stack: Vec<(Uuid, usize)> = sorted(std::mem::take(&mut roots), 0);
        while let Some((event_id, depth)) = stack.pop() {
            let Some(mut turn) = turns.remove(&event_id) else {
                continue;
            };
            turn.depth = depth;
            tree.push(turn);
            stack.extend(sorted(
                follow.remove(&event_id).unwrap_or_default(),
                depth + 1,
            ));
        }
    }
}

/// The youngest first.
fn sorted(places: Vec<(Option<OffsetDateTime>, Uuid)>, depth: usize) -> Vec<(Uuid, usize)> {
    let places: BTreeSet<_> = places.into_iter().collect();
    let last_first = places.into_iter().rev();
    last_first.map(|(_, event_id)| (event_id, depth)).collect()
}

/// One line per event, indented by its depth.
impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for turn in &self.turns {
            writeln!(f, "{:indent$}{turn}", "", indent = 2 * turn.depth)?;
        }
        Ok(())
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = self.told.as_ref();
        let service = told.map_or("somebody else", |told| told.service.as_str());
        write!(f, "{} by {service}", self.event_type)?;
        if let (0, Some(cause)) = (self.depth, self.causation_id) {
            write!(f, " after {cause}, which is not here")?;
        }
        for (nth, reaction) in self.reactions.iter().enumerate() {
            let joint = if nth == 0 { ", heard by" } else { " and" };
            let consumer = reaction.consumer.as_deref().unwrap_or_default();
            write!(f, "{joint} {consumer} of {}", reaction.service)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: time::Duration = time::Duration::MINUTE;

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn told(n: u128, cause: Option<u128>, service: &str, minute: i32) -> Entry {
        Entry {
            correlation_id: "order:17".to_owned(),
            event_id: id(n),
            causation_id: cause.map(id),
            event_type: format!("E{n}"),
            service: service.to_owned(),
            consumer: None,
            recorded_at: OffsetDateTime::UNIX_EPOCH + MINUTE * minute,
        }
    }

    fn heard(of: &Entry, service: &str, minute: i32) -> Entry {
        Entry {
            service: service.to_owned(),
            consumer: Some(format!("{service}.intake")),
            recorded_at: OffsetDateTime::UNIX_EPOCH + MINUTE * minute,
            ..of.clone()
        }
    }

    fn shape(story: &Story) -> Vec<(u128, usize)> {
        let turns = story.turns().iter();
        turns
            .map(|turn| (turn.event_id.as_u128(), turn.depth))
            .collect()
    }

    fn times(story: &Story) -> Vec<u128> {
        let turns = story.timeline().into_iter();
        turns.map(|turn| turn.event_id.as_u128()).collect()
    }

    /// 1 causes 2 and 4, 2 causes 3. The clock of `late` is an hour slow.
    fn parts() -> Vec<Entry> {
        let first = told(1, None, "shop", 0);
        let second = told(2, Some(1), "late", -58);
        vec![
            heard(&first, "late", -58),
            heard(&second, "shop", 4),
            told(3, Some(2), "shop", 4),
            told(4, Some(1), "mail", 3),
            heard(&first, "mail", 3),
            second,
            first,
        ]
    }

    #[test]
    fn parts_in_any_order_and_twice_make_one_tree_of_causes() {
        let story = Story::of(parts());
        assert_eq!(shape(&story), [(1, 0), (2, 1), (3, 2), (4, 1)]);
        assert_eq!(Story::of(parts().into_iter().rev()), story);
        assert_eq!(Story::of(parts().into_iter().chain(parts())), story);
        let first = &story.turns()[0];
        assert_eq!(first.told.as_ref().unwrap().service, "shop");
        let by: Vec<_> = first.reactions.iter().map(|it| &*it.service).collect();
        assert_eq!(by, ["late", "mail"]);
    }

    #[test]
    fn a_slow_clock_puts_no_event_before_its_cause() {
        // By time alone, 2 would be an hour before 1.
        assert_eq!(times(&Story::of(parts())), [1, 2, 4, 3]);
    }

    #[test]
    fn an_event_whose_cause_nobody_knows_begins_a_tree_and_says_so() {
        let mut parts = parts();
        parts.retain(|entry| entry.event_id != id(1));
        let story = Story::of(parts);
        assert_eq!(shape(&story), [(2, 0), (3, 1), (4, 0)]);
        let cause = id(1);
        assert_eq!(
            story.to_string(),
            format!(
                "E2 by late after {cause}, which is not here, heard by shop.intake of shop\n  \
                 E3 by shop\nE4 by mail after {cause}, which is not here\n"
            )
        );
    }

    #[test]
    fn an_event_that_was_only_heard_of_is_there_too() {
        let first = told(1, None, "stranger", 0);
        let story = Story::of([heard(&first, "shop", 1), told(2, Some(1), "shop", 1)]);
        assert_eq!(shape(&story), [(1, 0), (2, 1)]);
        assert_eq!(story.turns()[0].told, None);
        assert!(story.to_string().starts_with("E1 by somebody else"));
    }

    #[test]
    fn causes_in_a_circle_are_somebodys_mistake_and_shown_all_the_same() {
        let story = Story::of([
            told(1, Some(3), "a", 0),
            told(2, Some(1), "a", 1),
            told(3, Some(2), "a", 2),
            told(4, Some(4), "a", 3),
        ]);
        assert_eq!(shape(&story), [(1, 0), (2, 1), (3, 2), (4, 0)]);
        assert_eq!(times(&story), [1, 2, 3, 4]);
        assert_eq!(Story::of([]), Story::default());
    }

    #[test]
    fn an_entry_travels_as_json() {
        let entry = heard(&told(1, None, "shop", 0), "mail", 1);
        let json = serde_json::to_string(&entry).unwrap();
        assert!(
            json.contains(r#""recorded_at":"1970-01-01T00:01:00Z""#),
            "{json}"
        );
        assert_eq!(serde_json::from_str::<Entry>(&json).unwrap(), entry);
    }
}
