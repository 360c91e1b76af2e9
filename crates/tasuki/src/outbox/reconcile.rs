//! The broker is a conveyor, the database is the truth.
//!
//! JetStream acknowledges before it writes to disk, unless told otherwise; a stream can be
//! deleted, recreated, or rolled back to an older copy. The sequence numbers of what was lost are
//! then used again, so comparing numbers proves nothing. The reconciler therefore looks at what
//! the stream *holds*: is it still the one that it was created as, and does the message at a
//! stored sequence still carry the stored id? Every few seconds it asks for the newest one, for
//! the one that was the newest when it last looked, and for a few others; it looks for two
//! events that were given the same sequence; and relays tell it when they see one again.
//!
//! If anything is wrong, all that are retained are compared, and every event whose message is
//! gone moves back to the waiting ones. Whoever had received it already absorbs the duplicate.
//!
//! Not seen: messages that the stream's own limits have removed. Keep published events for a
//! shorter time than the stream keeps messages, and nothing falls between.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use time::OffsetDateTime;
use uuid::Uuid;

use super::Outbox;
use super::store::{Store, Stored};
use crate::bus::{StreamError, StreamSpec, StreamState, Streams};
use crate::lease::{Line, OwnPool, Route};
use crate::testing::crash_point;
use crate::worker::{self, Tick, Wake, Worker};

/// Events that were published again because the broker had lost them, by stream.
const SENT_AGAIN: &str = "tasuki_outbox_sent_again_total";
/// When every stream was last found to hold what it should, by worker; seconds since 1970 by the
/// process's clock.
const CHECKED_AT: &str = "tasuki_outbox_reconciled_timestamp_seconds";

/// How many stored positions one look compares, beside the newest.
const SAMPLES: usize = 4;
/// How far back the first look of a process searches for sequences that were used twice.
const FIRST_LOOK: i64 = 100_000;
/// Rows that are compared, or moved, at a time.
const CHUNK: i64 = 2000;

/// Compares what the broker has acknowledged with what it holds. It is a worker; several of
/// them, in several processes, do no harm.
#[derive(Debug)]
pub struct Reconciler<B> {
    name: String,
    outbox: Outbox,
    bus: Arc<B>,
    pool: OwnPool,
    route: Route,
    streams: Vec<StreamSpec>,
    poll: Duration,
    suspicion: Suspicion,
    clock: crate::Clock,
    seen: Mutex<HashMap<Arc<str>, Seen>>,
}

/// What was the newest event of a stream, the last time and the time before.
#[derive(Clone, Copy, Debug)]
struct Seen {
    created_at: OffsetDateTime,
    newest: Stored,
    before: i64,
}

/// That the broker may have lost messages: raised by relays, looked into by reconcilers.
#[derive(Clone, Debug, Default)]
pub struct Suspicion(Arc<(AtomicBool, Wake)>);

impl Suspicion {
    /// Has everything compared, now.
    pub fn raise(&self) {
        self.0.0.store(true, Ordering::Release);
        self.0.1.wake();
    }

    fn take(&self) -> bool {
        self.0.0.swap(false, Ordering::AcqRel)
    }
}

/// A suspicion that is being looked into. What was not looked into to the end, because it failed
/// or was cut, is still suspected.
struct Unfinished<'a>(Option<&'a Suspicion>);

impl Unfinished<'_> {
    fn finish(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(suspicion) = self.0 {
            suspicion.raise();
        }
    }
}

/// Why a look at the broker did not come to its end.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the stream can't be asked")]
    Stream(#[from] StreamError),
    #[error("the published events can't be read or moved")]
    Store(#[from] sqlx::Error),
}

impl<B: Streams> Reconciler<B> {
    /// A reconciler for the streams that the relay of `outbox` publishes to; each is made
    /// anew, as it is specified, when it is gone.
    #[must_use]
    pub fn new(
        name: &str,
        outbox: &Outbox,
        bus: Arc<B>,
        pool: PgPool,
        streams: Vec<StreamSpec>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            outbox: outbox.clone(),
            bus,
            pool: OwnPool::beside(pool, 1),
            route: Route::Direct,
            streams,
            poll: Duration::from_secs(5),
            suspicion: Suspicion::default(),
            clock: crate::Clock::system(),
            seen: Mutex::default(),
        }
    }

    /// Looks this often. Every look costs a handful of small statements and of questions to the
    /// broker, for each stream.
    #[must_use]
    pub const fn every(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// How the pool reaches PostgreSQL, if not directly.
    #[must_use]
    pub const fn through(mut self, route: Route) -> Self {
        self.route = route;
        self
    }

    /// Compares everything when `suspicion` is raised: a relay's
    /// [`suspicion`](super::Relay::suspicion).
    #[must_use]
    pub fn suspecting(mut self, suspicion: Suspicion) -> Self {
        self.suspicion = suspicion;
        self
    }

    /// Compares everything that is retained with what the streams hold, and sends again what is
    /// gone. Answers how many events that were.
    ///
    /// # Errors
    /// When the broker or the database can't be asked.
    pub async fn verify(&self) -> Result<u64, worker::Error> {
        let mut sent = 0;
        for spec in &self.streams {
            let state = self.state(spec).await?;
            sent += self.sent_elsewhere(&state).await?;
            sent += self.compare(&state.name).await?;
        }
        Ok(sent)
    }

    /// A quick look at one stream; everything, if that finds something wrong.
    async fn look(&self, spec: &StreamSpec, suspected: bool) -> Result<u64, Error> {
        let state = self.state(spec).await?;
        // There from the beginning: an increase from nothing is no increase to whoever watches.
        metrics::counter!(SENT_AGAIN, "stream" => state.name.to_string()).increment(0);
        let elsewhere = self.sent_elsewhere(&state).await?;
        let hold = self.samples_hold(&state).await?;
        if hold && !suspected {
            return Ok(elsewhere);
        }
        tracing::error!(
            worker = self.name,
            stream = &*state.name,
            "the broker has lost acknowledged messages, comparing everything",
        );
        Ok(elsewhere + self.compare(&state.name).await?)
    }

    /// The stream as it is, made if it is missing. One with other settings is still a stream to
    /// be compared with.
    async fn state(&self, spec: &StreamSpec) -> Result<StreamState, Error> {
        match self.bus.ensure_stream(spec).await {
            Err(error @ StreamError::Mismatch { .. }) => {
                tracing::warn!(
                    worker = self.name,
                    error = &error as &(dyn std::error::Error + 'static),
                    "the stream has other settings than it should",
                );
                self.bus
                    .stream(&spec.name)
                    .await?
                    .ok_or_else(|| error.into())
            }
            state => Ok(state?),
        }
    }

    /// Events that are said to be in a stream of this name that is no more.
    async fn sent_elsewhere(&self, state: &StreamState) -> Result<u64, Error> {
        let store = self.store();
        let (name, created_at) = (&*state.name, state.created_at);
        let mut line = self.line().await?;
        let elsewhere = store.elsewhere(line.connection(), name, created_at).await?;
        line.close().await?;
        if !elsewhere {
            return Ok(0);
        }
        tracing::error!(
            worker = self.name,
            stream = name,
            "the stream is not the one that was published to, sending everything again",
        );
        let mut all = 0;
        loop {
            let mut line = self.line().await?;
            let sent = store.send_again_elsewhere(line.connection(), name, created_at, CHUNK);
            let sent = sent.await?;
            line.close().await?;
            crash_point("outbox.sent_again");
            if sent == 0 {
                return Ok(all);
            }
            all += sent;
            self.tell(name, sent);
        }
    }

    /// Whether the newest published event, and a few others, are where the broker put them, and
    /// no two are in the same place.
    async fn samples_hold(&self, state: &StreamState) -> Result<bool, Error> {
        let store = self.store();
        let (name, created_at) = (&*state.name, state.created_at);
        let mut line = self.line().await?;
        let Some(newest) = store.newest(line.connection(), name, created_at).await? else {
            return Ok(true);
        };
        let first = i64::try_from(state.first_sequence).unwrap_or(i64::MAX);
        if newest.stream_seq < first {
            return Ok(true); // All of them are older than what the stream's limits keep.
        }
        let mut samples = vec![newest];
        let seen = self.seen(state);
        samples.extend(seen.map(|seen| seen.newest));
        samples.retain(|sample| sample.stream_seq >= first);
        for _ in 0..SAMPLES {
            let from = fastrand::i64(first..=newest.stream_seq);
            let rows = store.at_or_after(line.connection(), name, created_at, from, 2);
            samples.extend(rows.await?);
        }
        let recent = seen.map_or(newest.stream_seq - FIRST_LOOK, |seen| seen.before);
        let reused = store.reused(line.connection(), name, created_at, recent.max(first));
        let reused = reused.await?;
        line.close().await?;
        let sequences: Vec<u64> = samples.iter().map(sequence).collect();
        let ids = self.bus.ids_at(name, &sequences).await?;
        // Only now: what a look that failed would have shown is to be looked at again.
        self.saw(state, newest, seen);
        let holds = |(row, id): (&Stored, Option<Uuid>)| id == Some(row.event_id);
        Ok(!reused && samples.iter().zip(ids).all(holds))
    }

    /// What the last look at this very stream saw.
    fn seen(&self, state: &StreamState) -> Option<Seen> {
        let all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let last = all.get(&state.name).copied();
        last.filter(|seen| seen.created_at == state.created_at)
    }

    /// Remembers the newest event for the next look.
    fn saw(&self, state: &StreamState, newest: Stored, last: Option<Seen>) {
        let now = Seen {
            created_at: state.created_at,
            newest,
            before: last.map_or(newest.stream_seq, |seen| seen.newest.stream_seq),
        };
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(Arc::clone(&state.name), now);
    }

    /// Compares every retained event with its message, and sends again those that are gone.
    async fn compare(&self, stream: &str) -> Result<u64, Error> {
        // The database is asked first: what is published while we compare is above both.
        let mut line = self.line().await?;
        let newest = self.store().highest(line.connection(), stream).await?;
        line.close().await?;
        let (Some(until), Some(state)) = (newest, self.bus.stream(stream).await?) else {
            return Ok(0);
        };
        let mut from = i64::try_from(state.first_sequence).unwrap_or(i64::MAX);
        let mut all = 0;
        loop {
            let rows = self.chunk(&state, from, until).await?;
            let lost = self.lost(&state, &rows).await?;
            if !lost.is_empty() {
                let mut line = self.line().await?;
                let store = self.store();
                let sent = store.send_again(line.connection(), stream, state.created_at, &lost);
                let sent = sent.await?;
                line.close().await?;
                crash_point("outbox.compared");
                all += sent;
                self.tell(stream, sent);
                if usize::try_from(sent).unwrap_or(usize::MAX) < lost.len() {
                    // Another reconciler is at the rest. If it fails, somebody has to look again.
                    self.suspicion.raise();
                }
            }
            match rows.last() {
                // Two rows may have the same sequence, one on each side of the chunk's end:
                // the next chunk begins with it, unless it is all that this one had.
                Some(last) if rows.len() >= usize::try_from(CHUNK).unwrap_or(usize::MAX) => {
                    from = last.stream_seq + i64::from(last.stream_seq == from);
                }
                _ => return Ok(all),
            }
        }
    }

    async fn chunk(
        &self,
        state: &StreamState,
        from: i64,
        until: i64,
    ) -> Result<Vec<Stored>, Error> {
        let mut line = self.line().await?;
        let store = self.store();
        let rows = store.at_or_after(
            line.connection(),
            &state.name,
            state.created_at,
            from,
            CHUNK,
        );
        let mut rows = rows.await?;
        line.close().await?;
        rows.retain(|row| row.stream_seq <= until);
        Ok(rows)
    }

    /// Those of `rows` whose message is not where it was.
    async fn lost(&self, state: &StreamState, rows: &[Stored]) -> Result<Vec<Stored>, Error> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return Ok(Vec::new());
        };
        let (low, high) = (sequence(first), sequence(last).min(state.last_sequence));
        let held: HashMap<u64, Uuid> = if low <= high {
            let ids = self.bus.ids_between(&state.name, low, high).await?;
            ids.into_iter().collect()
        } else {
            HashMap::new()
        };
        let gone = |row: &&Stored| held.get(&sequence(row)) != Some(&row.event_id);
        let missing: Vec<Stored> = rows.iter().filter(gone).copied().collect();
        // A reader may have been behind: what it did not see is asked for once more, of whoever
        // must know.
        let sequences: Vec<u64> = missing.iter().map(sequence).collect();
        let ids = self.bus.ids_at(&state.name, &sequences).await?;
        let asked = missing.iter().zip(ids);
        let lost = asked.filter(|(row, id)| *id != Some(row.event_id));
        Ok(lost.map(|(row, _)| *row).collect())
    }

    async fn line(&self) -> sqlx::Result<Line> {
        Line::open(self.pool.get(), self.route).await
    }

    fn tell(&self, stream: &str, sent: u64) {
        metrics::counter!(SENT_AGAIN, "stream" => stream.to_owned()).increment(sent);
        tracing::warn!(
            worker = self.name,
            stream,
            events = sent,
            "lost events are sent again"
        );
        self.outbox.ring();
    }

    fn store(&self) -> &Store {
        &self.outbox.store
    }
}

impl<B: Streams> Worker for Reconciler<B> {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        self.poll
    }

    fn wake(&self) -> Wake {
        self.suspicion.0.1.clone()
    }

    /// To compare everything takes its time, and begun anew it would never come to its end.
    fn tick_limit(&self) -> Duration {
        Duration::from_secs(3600)
    }

    fn stall_after(&self) -> Duration {
        Duration::from_secs(600)
    }

    async fn tick(&self) -> Result<Tick, worker::Error> {
        let suspected = self.suspicion.take();
        let unfinished = Unfinished(suspected.then_some(&self.suspicion));
        let mut failed = None;
        for spec in &self.streams {
            // One that can't be asked keeps nobody from asking the others.
            if let Err(error) = self.look(spec, suspected).await {
                failed = Some(error);
            }
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        unfinished.finish();
        let now = self.clock.now().unix_timestamp();
        metrics::gauge!(CHECKED_AT, "worker" => self.name.clone())
            .set(u32::try_from(now).unwrap_or(u32::MAX));
        Ok(Tick::Idle)
    }
}

fn sequence(row: &Stored) -> u64 {
    u64::try_from(row.stream_seq).unwrap_or(0)
}
