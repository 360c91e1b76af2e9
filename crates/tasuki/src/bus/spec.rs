//! What streams and durable consumers are to be, and how they are.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;

use super::subject;
use crate::worker;

const SECOND: Duration = Duration::from_secs(1);

/// What a stream is to be. Producer and consumer say the same, and whoever comes first makes
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamSpec {
    /// Its name: no white space, none of `.`, `*`, `>`, `/`, `\`.
    pub name: Arc<str>,
    /// The subjects that it stores; `*` stands for one word, a final `>` for the rest.
    pub subjects: Vec<String>,
    /// How long the broker refuses to store an id again. Saves traffic, proves nothing: the
    /// inbox decides.
    pub duplicate_window: Duration,
    /// How long messages stay, and so how long a consumer may be away or retry.
    pub max_age: Duration,
    /// How many servers hold it.
    pub replicas: usize,
    /// Where it is kept.
    pub storage: Storage,
    /// Whether a batch may be published as one. Where the server can't, batches are
    /// pipelined: slower, never wrong, and therefore no [`StreamError::Mismatch`].
    pub atomic_publish: bool,
    /// Whether any replica may be asked for a message. [`Streams::ids_at`](super::Streams::ids_at)
    /// is faster with it.
    pub direct_get: bool,
}

/// Where a stream is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Storage {
    /// On disk.
    File,
    /// In memory: gone with the server.
    Memory,
}

impl Storage {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Memory => "memory",
        }
    }
}

impl StreamSpec {
    /// A stream on one server's disk that keeps messages for seven days and ids for two
    /// minutes.
    pub fn new<S: Into<String>>(
        name: impl Into<Arc<str>>,
        subjects: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            name: name.into(),
            subjects: subjects.into_iter().map(Into::into).collect(),
            duplicate_window: 120 * SECOND,
            max_age: 7 * 24 * 3600 * SECOND,
            replicas: 1,
            storage: Storage::File,
            atomic_publish: true,
            direct_get: true,
        }
    }

    /// The same with another dedupe window.
    #[must_use]
    pub fn duplicate_window(mut self, window: Duration) -> Self {
        self.duplicate_window = window;
        self
    }

    /// The same with another age limit.
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = age;
        self
    }

    /// The same on so many servers.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// The same, kept elsewhere.
    #[must_use]
    pub fn storage(mut self, storage: Storage) -> Self {
        self.storage = storage;
        self
    }

    /// The same without atomic batches.
    #[must_use]
    pub fn without_atomic_publish(mut self) -> Self {
        self.atomic_publish = false;
        self
    }

    /// Whether the stream stores what is published to `subject`.
    #[must_use]
    pub fn takes(&self, subject: &str) -> bool {
        self.subjects
            .iter()
            .any(|pattern| subject::matches(pattern, subject))
    }

    /// What of `found` is not as this specification wants it.
    pub(super) fn differences(&self, found: &Self) -> Vec<Difference> {
        let mut differences = Vec::new();
        let mut compare = |field, wanted: String, found: String| {
            if wanted != found {
                differences.push(Difference {
                    field,
                    wanted,
                    found,
                });
            }
        };
        compare("subjects", sorted(&self.subjects), sorted(&found.subjects));
        compare(
            "duplicate_window",
            format!("{:?}", self.duplicate_window),
            format!("{:?}", found.duplicate_window),
        );
        compare(
            "max_age",
            format!("{:?}", self.max_age),
            format!("{:?}", found.max_age),
        );
        compare(
            "replicas",
            self.replicas.to_string(),
            found.replicas.to_string(),
        );
        compare(
            "storage",
            self.storage.as_str().to_owned(),
            found.storage.as_str().to_owned(),
        );
        compare(
            "direct_get",
            self.direct_get.to_string(),
            found.direct_get.to_string(),
        );
        // A stream that was made by an older server lacks atomic publish for ever, because an
        // existing one is never changed. Batches are pipelined there.
        if !self.atomic_publish {
            compare(
                "atomic_publish",
                self.atomic_publish.to_string(),
                found.atomic_publish.to_string(),
            );
        }
        differences
    }
}

/// Subjects are a set.
fn sorted(subjects: &[String]) -> String {
    let mut subjects: Vec<_> = subjects.iter().map(String::as_str).collect();
    subjects.sort_unstable();
    subjects.join(", ")
}

/// A stream at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamState {
    /// Its name.
    pub name: Arc<str>,
    /// When it was created, in microseconds, as PostgreSQL would store it.
    pub created_at: OffsetDateTime,
    /// The lowest number that it holds, or will give next when it holds none.
    pub first_sequence: u64,
    /// The highest number that it has given.
    pub last_sequence: u64,
    /// How many messages it holds.
    pub messages: u64,
}

impl StreamState {
    /// A stream at one moment, as a bus of your own reports it.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, created_at: OffsetDateTime) -> Self {
        Self {
            name: name.into(),
            created_at: to_micros(created_at),
            first_sequence: 1,
            last_sequence: 0,
            messages: 0,
        }
    }
}

/// PostgreSQL keeps microseconds: with more here, the stored time would never equal the time
/// that the broker tells.
pub(super) fn to_micros(at: OffsetDateTime) -> OffsetDateTime {
    let micros = at.microsecond();
    at.replace_microsecond(micros).unwrap_or(at)
}

/// A durable pull consumer: its position lives in the broker, and any number of processes may
/// fetch from it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerSpec {
    /// The stream it reads; a consumer that comes before its producer makes it.
    pub stream: StreamSpec,
    /// Its name, without white space, `.`, `*`, `>`, `/`, `\`.
    pub durable: Arc<str>,
    /// What it reads of the stream; everything when empty.
    pub filters: Vec<String>,
    /// How long a delivery may go without a word before the message is delivered again.
    pub ack_wait: Duration,
    /// How many deliveries may be open at once, over all processes.
    pub max_ack_pending: usize,
    /// How often a message is delivered before the broker gives it up, and says so in an
    /// advisory. `None`: until its age limit, so that no outage uses deliveries up.
    pub max_deliver: Option<u32>,
}

impl ConsumerSpec {
    /// A consumer of the whole stream: thirty seconds for a delivery, 10,000 open ones, as many
    /// deliveries as it takes.
    pub fn new(stream: StreamSpec, durable: impl Into<Arc<str>>) -> Self {
        Self {
            stream,
            durable: durable.into(),
            filters: Vec::new(),
            ack_wait: 30 * SECOND,
            max_ack_pending: 10_000,
            max_deliver: None,
        }
    }

    /// The same, reading only these subjects.
    #[must_use]
    pub fn filters<S: Into<String>>(mut self, filters: impl IntoIterator<Item = S>) -> Self {
        self.filters = filters.into_iter().map(Into::into).collect();
        self
    }

    /// The same with another time for a delivery.
    #[must_use]
    pub fn ack_wait(mut self, wait: Duration) -> Self {
        self.ack_wait = wait;
        self
    }

    /// The same with another number of open deliveries.
    #[must_use]
    pub fn max_ack_pending(mut self, max: usize) -> Self {
        self.max_ack_pending = max;
        self
    }

    /// The same, giving a message up after so many deliveries.
    #[must_use]
    pub fn max_deliver(mut self, deliveries: u32) -> Self {
        self.max_deliver = Some(deliveries);
        self
    }

    /// What of `found` is not as this specification wants it.
    pub(super) fn differences(&self, found: &Self) -> Vec<Difference> {
        let often = |spec: &Self| match spec.max_deliver {
            Some(deliveries) => deliveries.to_string(),
            None => "unlimited".to_owned(),
        };
        let pairs = [
            ("filters", sorted(&self.filters), sorted(&found.filters)),
            (
                "ack_wait",
                format!("{:?}", self.ack_wait),
                format!("{:?}", found.ack_wait),
            ),
            (
                "max_ack_pending",
                self.max_ack_pending.to_string(),
                found.max_ack_pending.to_string(),
            ),
            ("max_deliver", often(self), often(found)),
        ];
        let differing = pairs
            .into_iter()
            .filter(|(_, wanted, found)| wanted != found);
        differing
            .map(|(field, wanted, found)| Difference {
                field,
                wanted,
                found,
            })
            .collect()
    }
}

/// A setting that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// The setting.
    pub field: &'static str,
    /// What the specification says.
    pub wanted: String,
    /// What there is.
    pub found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            wanted,
            found,
        } = self;
        write!(f, "{field} is {found}, wanted {wanted}")
    }
}

/// Why a question about a stream or a durable got no good answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// Nobody answered in time, or the broker can't answer now.
    #[error("the broker can't be reached")]
    Unreachable(#[source] worker::Error),
    /// There is no such stream, or no such durable on it.
    #[error("stream {stream} does not exist, or has no such consumer")]
    NotFound {
        /// The stream.
        stream: Arc<str>,
    },
    /// It exists with other settings, and is left as it is.
    #[error("{name} exists with other settings: {}", list(differences))]
    Mismatch {
        /// The stream, or `<stream>/<durable>`.
        name: String,
        /// Every setting that differs.
        differences: Vec<Difference>,
    },
    /// The broker says no: a name that it does not take, a limit that is reached.
    #[error("the broker refuses")]
    Refused(#[source] worker::Error),
}

impl StreamError {
    pub(super) fn unreachable(why: impl Into<worker::Error>) -> Self {
        Self::Unreachable(why.into())
    }

    pub(super) fn refused(why: impl Into<worker::Error>) -> Self {
        Self::Refused(why.into())
    }

    pub(super) fn not_found(stream: &str) -> Self {
        Self::NotFound {
            stream: stream.into(),
        }
    }
}

fn list(differences: &[Difference]) -> String {
    let each: Vec<_> = differences.iter().map(ToString::to_string).collect();
    each.join("; ")
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn every_setting_that_differs_is_named() {
        let wanted = StreamSpec::new("orders", ["orders.>", "refunds"]);
        let mut found = wanted.clone().max_age(SECOND).replicas(3);
        found.subjects.reverse();
        let fields: Vec<_> = wanted
            .differences(&found)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            fields,
            ["max_age is 1s, wanted 604800s", "replicas is 3, wanted 1"]
        );
    }

    #[test]
    fn a_stream_without_atomic_publish_is_good_enough_but_not_one_with_it_unasked() {
        let with = StreamSpec::new("orders", ["orders.>"]);
        let without = with.clone().without_atomic_publish();
        assert_eq!(with.differences(&without), []);
        assert_eq!(without.differences(&with).len(), 1);
    }

    #[test]
    fn times_are_cut_to_what_postgres_keeps() {
        let nanos = datetime!(2026-11-15 13:59:01.123_456_789 UTC);
        let micros = datetime!(2026-11-15 13:59:01.123_456 UTC);
        assert_eq!(to_micros(nanos), micros);
    }
}
