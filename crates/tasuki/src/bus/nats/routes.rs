//! Which stream takes a subject, and what is known of that stream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::Subject;
use serde::Deserialize;
use serde_json::json;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::NatsBus;
use super::api::Failure;
use crate::bus::spec::to_micros;
use crate::bus::{PublishError, StreamError, subject};

/// How long what was learned of a stream is believed, on one connection and without a failure.
const FRESH: Duration = Duration::from_secs(2);
/// Subjects of streams that are not ours and that are remembered.
const MAX_NAMES: usize = 1024;

/// What was learned of the streams. Shared by the clones of a bus.
#[derive(Debug, Default)]
pub(super) struct Routes {
    streams: Mutex<HashMap<Arc<str>, Entry>>,
    /// The streams of subjects that no specification of ours takes.
    names: Mutex<HashMap<Arc<str>, Arc<str>>>,
    /// Streams that refused atomic batches, and on which connection.
    pipelined: Mutex<HashMap<Arc<str>, u64>>,
}

#[derive(Debug)]
struct Entry {
    known: Arc<Known>,
    subjects: Vec<String>,
    learned_at: Instant,
    connects: u64,
}

/// A stream, as far as publishing goes.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: Arc<str>,
    pub(super) created_at: OffsetDateTime,
    pub(super) takes_batches: bool,
}

/// The way to a stream.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) subject: Subject,
    pub(super) stream: Arc<Known>,
}

#[derive(Deserialize)]
struct Names {
    streams: Option<Vec<Arc<str>>>,
}

impl NatsBus {
    /// Finds the stream that takes `subject`, and makes it if it is ours and missing.
    pub(super) async fn route(&self, subject: &Arc<str>) -> Result<Route, PublishError> {
        let own = self.own.iter().find(|spec| spec.takes(subject));
        let name = match own {
            Some(spec) => Arc::clone(&spec.name),
            None => self.look_up(subject).await?,
        };
        let stream = match self.routes.fresh(&name, subject, self.api.connects()) {
            Some(known) => known,
            None => self.learn(&name, subject).await?,
        };
        Ok(Route {
            subject: Subject::from(&**subject),
            stream,
        })
    }

    /// Asks the broker which stream takes `subject`.
    async fn look_up(&self, subject: &Arc<str>) -> Result<Arc<str>, PublishError> {
        if let Some(name) = lock(&self.routes.names).get(subject) {
            return Ok(Arc::clone(name));
        }
        let question = json!({ "subject": &**subject });
        let asked = self.api.ask("STREAM.NAMES".to_owned(), &question);
        let names: Names = asked.await.map_err(PublishError::unreachable)?;
        let first = names.streams.into_iter().flatten().next();
        // There may have been one, and it may come back: no message should die of its absence.
        let name = first.ok_or_else(|| {
            PublishError::unreachable(format!("no stream takes the subject {subject:?}"))
        })?;
        let mut known = lock(&self.routes.names);
        if known.len() >= MAX_NAMES {
            known.clear();
        }
        known.insert(Arc::clone(subject), Arc::clone(&name));
        Ok(name)
    }

    /// Reads what the stream is now.
    async fn learn(&self, name: &Arc<str>, subject: &str) -> Result<Arc<Known>, PublishError> {
        // Before the question: a reconnect while it is answered makes the answer stale.
        let connects = self.api.connects();
        let info = match self.info(name).await.map_err(PublishError::unreachable)? {
            Some(info) => info,
            None => self.make(name).await.map_err(PublishError::unreachable)?,
        };
        if !subject::matches_any(&info.config.subjects, subject) {
            lock(&self.routes.names).retain(|_, known| known != name);
            let why = format!("stream {name} does not take the subject {subject:?}");
            return Err(PublishError::unreachable(why));
        }
        let refused = lock(&self.routes.pipelined).get(name) == Some(&connects);
        let known = Arc::new(Known {
            name: Arc::clone(name),
            created_at: to_micros(info.created),
            takes_batches: info.config.allow_atomic_publish && !refused,
        });
        let entry = Entry {
            known: Arc::clone(&known),
            subjects: info.config.subjects,
            learned_at: Instant::now(),
            connects,
        };
        lock(&self.routes.streams).insert(Arc::clone(name), entry);
        Ok(known)
    }

    /// Makes a stream that is ours.
    async fn make(&self, name: &str) -> Result<async_nats::jetstream::stream::Info, StreamError> {
        let Some(spec) = self.own.iter().find(|spec| &*spec.name == name) else {
            lock(&self.routes.names).retain(|_, known| &**known != name);
            return Err(StreamError::not_found(name));
        };
        tracing::info!(stream = name, "stream is missing, creating it");
        self.create(spec).await
    }
}

impl Routes {
    fn fresh(&self, name: &str, subject: &str, connects: u64) -> Option<Arc<Known>> {
        let streams = lock(&self.streams);
        let entry = streams.get(name)?;
        let is_fresh = entry.connects == connects
            && entry.learned_at.elapsed() < FRESH
            && subject::matches_any(&entry.subjects, subject);
        is_fresh.then(|| Arc::clone(&entry.known))
    }

    /// After a failure: the next call asks again.
    pub(super) fn forget(&self, stream: &str) {
        lock(&self.streams).remove(stream);
        lock(&self.names).retain(|_, known| &**known != stream);
    }

    /// The server of this connection takes no batches with message ids: the first servers
    /// with atomic batches did not.
    pub(super) fn pipeline_from_now_on(&self, stream: &Known, connects: u64) {
        lock(&self.pipelined).insert(Arc::clone(&stream.name), connects);
        lock(&self.streams).remove(&stream.name);
    }
}

/// Nothing panics while it holds one of these, and what they guard is only a memory.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<Failure> for PublishError {
    fn from(failure: Failure) -> Self {
        super::wire::Shared::from(failure).for_message()
    }
}
