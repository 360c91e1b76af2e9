//! What a job is: data, and how it wants to be treated.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use time::OffsetDateTime;

use super::Error;
use crate::retry::Backoff;

/// Nothing waits or is unique for longer: a hundred years.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// An index entry has its limits; so have people who read unique ids.
const UNIQUE_ID_LIMIT: usize = 512;
/// The longest kind, queue or schedule name.
const NAME_LIMIT: usize = 100;

/// Work to be done later: data that is stored as JSON, and its options.
///
/// Tries, timeout and backoff belong to the code and not to the row, so that a release that changes
/// them changes them for the jobs that are already waiting. Queue, priority and uniqueness are
/// written down when the job is enqueued. All but the queue take `&self`: a job may decide by its
/// data.
///
/// Kind and queue are checked by the compiler: 1 to 100 letters, digits and any of `. _ : / -`.
///
/// ```compile_fail
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Spaced;
/// impl tasuki::jobs::Job for Spaced {
///     const KIND: &'static str = "not a name";
/// }
/// tasuki::jobs::Registry::new().on::<Spaced, _>(async |_, _| Ok::<(), std::io::Error>(()));
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// What the rows call it. Never changes: rows outlive releases.
    const KIND: &'static str;

    /// The queue that it waits in. A queue has its own slots, so one that is busy starves no other.
    const QUEUE: &'static str = "default";

    /// Attempts in all, the first included. 0 means 1.
    fn tries(&self) -> u32 {
        3
    }

    /// How long one attempt may take before it is cut.
    fn timeout(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// How long to wait after a failed attempt.
    fn backoff(&self) -> Backoff {
        Backoff::list([1, 5, 10].map(Duration::from_secs))
    }

    /// Jobs of one kind with the same unique id are one job while the first waits or runs.
    fn unique_id(&self) -> Option<String> {
        None
    }

    /// How long the unique id holds at the most, however long the job waits or runs.
    fn unique_for(&self) -> Duration {
        Duration::from_secs(3600)
    }

    /// Who goes first within the queue.
    fn priority(&self) -> Priority {
        Priority::Normal
    }
}

/// Who goes first within a queue. What is due at a higher priority always does: a lower one waits
/// for as long as the higher ones never run dry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Priority {
    /// First: somebody is waiting for it.
    Urgent,
    /// Before most.
    High,
    /// Most jobs.
    #[default]
    Normal,
    /// When nothing else is due.
    Low,
}

impl Priority {
    /// How many there are: the lanes of a claim.
    pub(super) const COUNT: usize = 4;

    /// The priority as it is stored; 0 is served first.
    pub(super) const fn stored(self) -> i16 {
        match self {
            Self::Urgent => 0,
            Self::High => 1,
            Self::Normal => 2,
            Self::Low => 3,
        }
    }
}

/// When a job is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Schedule {
    /// As soon as its transaction has committed.
    #[default]
    Now,
    /// After this long, by the database's clock.
    In(Duration),
    /// At this time, by the database's clock. A time that has passed means now.
    At(OffsetDateTime),
}

/// A job as it is stored.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) payload: String,
    pub(super) priority: i16,
    pub(super) unique: Option<Unique>,
}

/// What keeps twins away.
#[derive(Debug)]
pub(super) struct Unique {
    pub(super) id: String,
    /// Seconds.
    pub(super) holds: f64,
}

impl Draft {
    /// Writes `job`, and checks what PostgreSQL would refuse in the middle of a transaction.
    pub(super) fn of<J: Job>(job: &J) -> Result<Self, Error> {
        const { check::<J>() };
        let kind = J::KIND;
        let payload =
            serde_json::to_string(job).map_err(|source| Error::Payload { kind, source })?;
        if has_nul(&payload) {
            return Err(Error::Nul { kind });
        }
        let unique = match job.unique_id() {
            None => None,
            Some(id) if id.is_empty() || id.len() > UNIQUE_ID_LIMIT || id.contains('\0') => {
                return Err(Error::UniqueId { kind });
            }
            Some(id) => Some(Unique {
                id,
                holds: seconds(job.unique_for())?,
            }),
        };
        Ok(Self {
            payload,
            priority: job.priority().stored(),
            unique,
        })
    }
}

/// A wait in seconds, unless no calendar reaches it.
pub(super) fn seconds(wait: Duration) -> Result<f64, Error> {
    if wait > LONGEST {
        return Err(Error::TooLong { wait });
    }
    Ok(wait.as_secs_f64())
}

/// Fails the build for a job whose kind or queue is no name.
pub(super) const fn check<J: Job>() {
    assert!(is_name(J::KIND), "a job's KIND is no name");
    assert!(is_name(J::QUEUE), "a job's QUEUE is no name");
}

/// Whether `name` can be a kind, a queue or a schedule.
pub(crate) const fn is_name(name: &str) -> bool {
    let mut rest = name.as_bytes();
    if rest.is_empty() || rest.len() > NAME_LIMIT {
        return false;
    }
    while let [byte, tail @ ..] = rest {
        if !byte.is_ascii_alphanumeric() && !matches!(byte, b'.' | b'_' | b':' | b'/' | b'-') {
            return false;
        }
        rest = tail;
    }
    true
}

/// Whether a text in this JSON has a NUL character. It is always escaped; but so is a backslash,
/// and one that was escaped escapes nothing.
fn has_nul(json: &str) -> bool {
    json.match_indices("\\u0000").any(|(at, _)| {
        let before = json.as_bytes().get(..at).unwrap_or_default();
        before.iter().rev().take_while(|b| **b == b'\\').count() % 2 == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nul_is_found_and_what_only_looks_like_one_is_not() {
        for (text, nul) in [
            ("\0", true),
            ("a\\\0", true),
            ("\\\\\0b", true),
            ("\\u0000", false),
            ("\\\\u0000", false),
            ("u0000", false),
            ("", false),
        ] {
            assert_eq!(
                has_nul(&serde_json::to_string(text).unwrap()),
                nul,
                "{text:?}"
            );
        }
    }

    #[test]
    fn names_are_plain() {
        for name in [
            "a",
            "mail.send",
            "billing/invoice:v2",
            "A-b_9",
            &"x".repeat(100),
        ] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a b", "é", "a\0", "a\n", &"x".repeat(101)] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
