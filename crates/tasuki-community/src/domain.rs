//! What becomes of events that arrive together, without I/O: which are stored, which are known, which
//! take the place of another, and which their author has deleted already.
//!
//! Events are taken one after the other; each sees what became of those before it. What the database
//! knows of them is read beforehand, under locks that nobody else takes meanwhile.

use std::collections::{HashMap, HashSet};

use crate::nostr::{Class, Coordinate, DELETION, Event, Id, Key, class};

/// What the database knows of the events that have arrived.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// By its clock, in seconds.
    pub(crate) now: i64,
    /// Events that were accepted before.
    pub(crate) seen: HashSet<Id>,
    /// Single events that their author has deleted.
    pub(crate) deleted: HashSet<(Id, Key)>,
    /// Versions that their author has deleted, up to and including this time.
    pub(crate) deleted_until: HashMap<Coordinate, i64>,
    /// The latest version of each, whether anybody sees it or not.
    pub(crate) latest: HashMap<Coordinate, Version>,
}

/// Which version of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) created_at: i64,
    pub(crate) id: Id,
}

impl Version {
    const fn of(event: &Event) -> Self {
        Self {
            created_at: event.created_at,
            id: event.id,
        }
    }

    /// Whether it takes the place of `other`: the later one does, and of two at the same second the one
    /// with the lower id (NIP-01).
    fn replaces(&self, other: &Self) -> bool {
        self.created_at > other.created_at
            || (self.created_at == other.created_at && self.id < other.id)
    }
}

/// How an event ended that was well made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is stored.
    Stored,
    /// It is stored, and what came with it has already replaced or deleted it: nobody sees it.
    Overtaken,
    /// It was accepted before.
    Duplicate,
    /// A later version is here.
    Outdated,
    /// Its author has deleted it.
    Deleted,
    /// Its time is over.
    Expired,
    /// It is from further in the future than clocks differ.
    Future,
}

/// What is to be written, in this order: what is replaced goes, what is new comes, what is deleted goes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// A verdict for each event.
    pub(crate) verdicts: Vec<Verdict>,
    /// Events that were accepted for the first time.
    pub(crate) accepted: Vec<usize>,
    /// Those of them that are stored.
    pub(crate) stored: Vec<usize>,
    /// Whose stored version goes because another one comes.
    pub(crate) replaced: Vec<Coordinate>,
    /// Deletions among what is stored: what they name goes, and stays away.
    pub(crate) deletions: Vec<usize>,
}

/// Judges `events`, in their order. `ahead` is how far in the future an event may be.
pub(crate) fn decide(events: &[&Event], mut known: Known, ahead: i64) -> Plan {
    let mut plan = Plan::default();
    // Where the latest version of each is among the events of this batch.
    let mut here = HashMap::new();
    for (index, event) in events.iter().enumerate() {
        let coordinate = event.coordinate();
        let verdict = judge(event, coordinate.as_ref(), &known, ahead);
        plan.verdicts.push(verdict);
        if verdict != Verdict::Stored {
            continue;
        }
        known.seen.insert(event.id);
        plan.accepted.push(index);
        plan.stored.push(index);
        if let Some(coordinate) = coordinate {
            let before = known.latest.insert(coordinate.clone(), Version::of(event));
            match here.insert(coordinate.clone(), index) {
                Some(earlier) => plan.overtake(earlier),
                None if before.is_some() => plan.replaced.push(coordinate),
                None => {}
            }
        }
        if let Some(deletion) = event.deletion() {
            plan.deletions.push(index);
            for id in &deletion.ids {
                known.deleted.insert((*id, event.author));
            }
            for coordinate in deletion.coordinates {
                let until = known.deleted_until.entry(coordinate).or_insert(i64::MIN);
                *until = event.created_at.max(*until);
            }
        }
    }
    // What was stored before its deletion came, in the same batch, goes by the same statement as what was
    // stored long ago; nobody is told of it.
    for index in plan.stored.clone() {
        let event = events.get(index);
        if event.is_some_and(|event| is_deleted(event, event.coordinate().as_ref(), &known))
            && let Some(verdict) = plan.verdicts.get_mut(index)
        {
            *verdict = Verdict::Overtaken;
        }
    }
    plan
}

impl Plan {
    fn overtake(&mut self, index: usize) {
        self.stored.retain(|stored| *stored != index);
        if let Some(verdict) = self.verdicts.get_mut(index) {
            *verdict = Verdict::Overtaken;
        }
    }
}

fn judge(event: &Event, coordinate: Option<&Coordinate>, known: &Known, ahead: i64) -> Verdict {
    // What nobody sees any more is not taken, however often it was before: who sends it again must not
    // believe that it is here.
    if event.expiration().is_some_and(|end| end <= known.now) {
        return Verdict::Expired;
    }
    if is_deleted(event, coordinate, known) {
        return Verdict::Deleted;
    }
    let latest = coordinate.and_then(|it| known.latest.get(it));
    let latest = latest.filter(|latest| latest.id != event.id);
    if latest.is_some_and(|latest| !Version::of(event).replaces(latest)) {
        return Verdict::Outdated;
    }
    if known.seen.contains(&event.id) {
        return Verdict::Duplicate;
    }
    if event.created_at > known.now.saturating_add(ahead) {
        return Verdict::Future;
    }
    Verdict::Stored
}

/// Whether its author has deleted it. Nothing deletes a deletion (NIP-09).
fn is_deleted(event: &Event, coordinate: Option<&Coordinate>, known: &Known) -> bool {
    let by_id = known.deleted.contains(&(event.id, event.author));
    let until = coordinate.and_then(|it| known.deleted_until.get(it));
    let by_version = until.is_some_and(|until| event.created_at <= *until);
    event.kind != DELETION && (by_id || by_version)
}

/// Whether events of this kind are stored at all.
pub(crate) fn is_stored(kind: u16) -> bool {
    class(kind) != Class::Ephemeral
}

#[cfg(test)]
mod tests {
    use super::Verdict::{Deleted, Duplicate, Expired, Future, Outdated, Overtaken, Stored};
    use super::*;
    use crate::nostr::Signer;

    const NOW: i64 = 1_000;

    fn known() -> Known {
        Known {
            now: NOW,
            ..Known::default()
        }
    }

    fn made(by: &Signer, at: i64, kind: u16, tags: &[[&str; 2]]) -> Event {
        let tags = tags.iter().map(|tag| tag.map(str::to_owned).to_vec());
        by.event(at, kind, tags.collect(), String::new())
    }

    fn verdicts(events: &[&Event], known: Known) -> Vec<Verdict> {
        decide(events, known, 10).verdicts
    }

    #[test]
    fn an_event_is_stored_once() {
        let event = made(&Signer::random(), 1, 1, &[]);
        assert_eq!(verdicts(&[&event, &event], known()), [Stored, Duplicate]);
        let mut known = known();
        known.seen.insert(event.id);
        assert_eq!(verdicts(&[&event], known), [Duplicate]);
    }

    #[test]
    fn what_was_taken_once_and_is_gone_is_not_taken_again() {
        let by = Signer::random();
        let (old, new) = (made(&by, 1, 0, &[]), made(&by, 2, 0, &[]));
        let ended = made(&by, 1, 1, &[["expiration", "1000"]]);
        let note = made(&by, 1, 1, &[]);
        let mut known = known();
        let events = [&old, &new, &ended, &note];
        known.seen.extend(events.map(|event| event.id));
        known.deleted.insert((note.id, by.key()));
        let coordinate = new.coordinate().unwrap();
        known.latest.insert(coordinate, Version::of(&new));
        let wanted = [Outdated, Duplicate, Expired, Deleted];
        assert_eq!(verdicts(&events, known), wanted);
    }

    #[test]
    fn times_are_judged_to_the_second() {
        let by = Signer::random();
        let at = |at| made(&by, at, 1, &[]);
        let events = [at(NOW + 10), at(NOW + 11)];
        let both: Vec<_> = events.iter().collect();
        assert_eq!(verdicts(&both, known()), [Stored, Future]);
        let ending = |end: &str| made(&by, 1, 1, &[["expiration", end]]);
        let events = [ending("1000"), ending("1001"), ending("never")];
        let all: Vec<_> = events.iter().collect();
        assert_eq!(verdicts(&all, known()), [Expired, Stored, Stored]);
    }

    #[test]
    fn the_later_version_stays_and_the_lower_id_of_two_at_the_same_second() {
        let by = Signer::random();
        let early = made(&by, 1, 0, &[]);
        let mut twins = [
            made(&by, 2, 0, &[["x", "1"]]),
            made(&by, 2, 0, &[["x", "2"]]),
        ];
        twins.sort_by_key(|event| event.id);
        let [lower, higher] = &twins;
        // Within one batch only the last version is written.
        let plan = decide(&[&early, higher, lower], known(), 10);
        assert_eq!(plan.verdicts, [Overtaken, Overtaken, Stored]);
        assert_eq!((plan.accepted, plan.stored), (vec![0, 1, 2], vec![2]));
        assert!(plan.replaced.is_empty(), "none of them was stored before");
        assert_eq!(
            verdicts(&[lower, higher, &early], known()),
            [Stored, Outdated, Outdated]
        );

        let mut before = known();
        let coordinate = early.coordinate().unwrap();
        before
            .latest
            .insert(coordinate.clone(), Version::of(&early));
        let plan = decide(&[higher, lower], before, 10);
        assert_eq!(plan.verdicts, [Overtaken, Stored]);
        assert_eq!(plan.replaced, [coordinate]);
    }

    #[test]
    fn versions_of_others_kinds_and_names_stay_beside_each_other() {
        let (a, b) = (Signer::random(), Signer::random());
        let events = [
            made(&a, 1, 30_000, &[["d", "x"]]),
            made(&a, 1, 30_000, &[["d", "y"]]),
            made(&a, 1, 30_001, &[["d", "x"]]),
            made(&b, 1, 30_000, &[["d", "x"]]),
        ];
        let all: Vec<_> = events.iter().collect();
        assert_eq!(verdicts(&all, known()), [Stored; 4]);
    }

    #[test]
    fn a_deletion_works_on_what_comes_before_and_after_it() {
        let by = Signer::random();
        let note = made(&by, 1, 1, &[]);
        let id = note.id.to_string();
        let deletion = made(&by, 2, DELETION, &[["e", &id]]);
        assert_eq!(verdicts(&[&deletion, &note], known()), [Stored, Deleted]);
        let plan = decide(&[&note, &deletion], known(), 10);
        assert_eq!(plan.verdicts, [Overtaken, Stored]);
        assert_eq!(plan.deletions, [1]);
    }

    #[test]
    fn nobody_deletes_what_is_others_and_nothing_deletes_a_deletion() {
        let (a, b) = (Signer::random(), Signer::random());
        let note = made(&a, 1, 1, &[]);
        let id = note.id.to_string();
        let by_other = made(&b, 2, DELETION, &[["e", &id]]);
        assert_eq!(verdicts(&[&by_other, &note], known()), [Stored, Stored]);
        assert_eq!(verdicts(&[&note, &by_other], known()), [Stored, Stored]);
        let page = made(&a, 1, 30_000, &[["d", "x"]]);
        let place = page.coordinate().unwrap().to_string();
        let by_address = made(&b, 2, DELETION, &[["a", &place]]);
        assert_eq!(
            verdicts(&[&by_address, &page, &by_address], known()),
            [Stored, Stored, Duplicate]
        );
        assert_eq!(verdicts(&[&page, &by_address], known()), [Stored, Stored]);
        let first = made(&a, 2, DELETION, &[["e", &id]]);
        let second = made(&a, 3, DELETION, &[["e", &first.id.to_string()]]);
        assert_eq!(
            verdicts(&[&second, &first, &note], known()),
            [Stored, Stored, Deleted]
        );
    }

    #[test]
    fn a_deletion_of_versions_covers_those_up_to_its_own_time() {
        let by = Signer::random();
        let version = |at| made(&by, at, 30_000, &[["d", "x"]]);
        let coordinate = version(1).coordinate().unwrap().to_string();
        let deletion = made(&by, 5, DELETION, &[["a", &coordinate]]);
        let (before, same, after) = (version(4), version(5), version(6));
        assert_eq!(
            verdicts(&[&deletion, &before, &same, &after], known()),
            [Stored, Deleted, Deleted, Stored]
        );
        assert_eq!(verdicts(&[&after, &deletion], known()), [Stored, Stored]);
        assert_eq!(verdicts(&[&same, &deletion], known()), [Overtaken, Stored]);
        // A later deletion that covers less takes nothing back.
        let earlier = made(&by, 2, DELETION, &[["a", &coordinate]]);
        assert_eq!(
            verdicts(&[&deletion, &earlier, &same], known()),
            [Stored, Stored, Deleted]
        );
    }
}
