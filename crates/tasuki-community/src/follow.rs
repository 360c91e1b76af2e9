//! Reads the log, and tells those who listen in this process what other processes have taken in.
//!
//! It keeps no offset: who begins to listen gets what is stored, then what is new. So nobody looks for
//! what is stored before it has a place in the log ([`Live::followed`]). Its last row is read again with
//! each batch: if that is another one now, or rows behind it are gone, the database has been put back or
//! was away for too long, and nobody can say what was missed. Then every client is cut, and told to come
//! again.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::{FromRow, PgPool};
use tasuki::seqlog::{Log, Numbered};
use tasuki::worker::{Error, Tick, Wake, Worker};
use tokio::sync::Mutex;

use crate::nostr::{Id, Parsed};
use crate::relay::live::{Live, Told};
use crate::store::find;

/// Rows that are read at a time.
const BATCH: u32 = 500;
/// How late news of others are when nobody has rung.
const POLL: Duration = Duration::from_millis(500);

/// The worker.
pub(crate) struct Follow {
    pub(crate) log: Log,
    pub(crate) pool: PgPool,
    pub(crate) live: Live,
    pub(crate) wake: Wake,
    /// Where it is, once it is anywhere.
    pub(crate) place: Mutex<Option<Place>>,
}

/// The last row that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    seq: i64,
    /// Nothing where the log is empty, or begins behind it.
    row: Option<Row>,
}

/// What of a row matters here.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
struct Row {
    op: String,
    event_id: String,
    topic_id: String,
}

/// What comes behind a place.
enum Next {
    /// These rows, maybe none.
    Rows(Vec<Numbered<Row>>),
    /// What is known there is not what was, or something is missing in between.
    Lost,
}

impl Worker for Follow {
    fn name(&self) -> &str {
        "community.live"
    }

    fn poll_interval(&self) -> Duration {
        POLL
    }

    fn wake(&self) -> Wake {
        self.wake.clone()
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let mut place = self.place.lock().await;
        let Some(at) = place.clone() else {
            *place = Some(self.head().await?);
            self.live.is_followed();
            return Ok(Tick::Worked);
        };
        let rows = match self.next(&at).await? {
            Next::Rows(rows) => rows,
            Next::Lost => {
                tracing::warn!(
                    seq = at.seq,
                    "the log is not what it was: all clients come again"
                );
                *place = Some(self.head().await?);
                self.live.missed();
                return Ok(Tick::Worked);
            }
        };
        let Some(last) = rows.last() else {
            return Ok(Tick::Idle);
        };
        let upserts = rows.iter().filter(|row| row.row.op == "upsert");
        let ids: Vec<_> = upserts
            .filter_map(|row| Id::parse(&row.row.event_id))
            .collect();
        // Most are our own, and told already.
        let open: Vec<_> = ids
            .iter()
            .copied()
            .filter(|id| self.live.is_open(*id))
            .collect();
        let mut bodies: HashMap<_, _> = match open.is_empty() {
            true => HashMap::new(),
            false => {
                let mut connection = self.pool.acquire().await?;
                let bodies = find::bodies(&mut connection, &open).await?;
                bodies.into_iter().collect()
            }
        };
        // From here on nothing is waited for: a row is told, or read again, and never both. In the order
        // of the log; they were verified by whoever stored them.
        let news = ids.into_iter().filter(|id| self.live.is_news(*id));
        let events = news.filter_map(|id| Parsed::read(&bodies.remove(&id)?).ok());
        let events: Vec<_> = events.map(|event| Told::new(event.trusted())).collect();
        self.live.tell(&events);
        *place = Some(Place {
            seq: last.seq,
            row: Some(last.row.clone()),
        });
        Ok(Tick::Worked)
    }
}

impl Follow {
    /// The end of the log.
    async fn head(&self) -> Result<Place, Error> {
        let mut connection = self.pool.acquire().await?;
        let seq = self.log.head(&mut connection).await?.last_seq;
        let mut rows = self.log.read::<Row>(&mut connection, seq - 1, 1).await?;
        let row = rows.pop().filter(|row| row.seq == seq);
        let row = row.map(|row| row.row);
        Ok(Place { seq, row })
    }

    /// What comes behind `at`, if that is still there.
    async fn next(&self, at: &Place) -> Result<Next, Error> {
        let mut connection = self.pool.acquire().await?;
        let mut rows = self
            .log
            .read::<Row>(&mut connection, at.seq - 1, BATCH)
            .await?;
        if rows.first().is_some_and(|row| row.seq == at.seq) {
            let same = rows.remove(0);
            // Who began at the end of an empty log, or of one that was cleaned, knows no row.
            if at.row.as_ref().is_some_and(|row| *row != same.row) {
                return Ok(Next::Lost);
            }
        }
        match rows.first() {
            Some(row) if row.seq != at.seq + 1 => Ok(Next::Lost),
            Some(_) => Ok(Next::Rows(rows)),
            None => {
                let head = self.log.head(&mut connection).await?;
                let is_ahead = at.seq > head.last_seq;
                // What was read may be older than what is kept by now; what was not must not be.
                let is_behind = at.seq < head.floor_seq;
                Ok(match is_ahead || is_behind {
                    true => Next::Lost,
                    false => Next::Rows(Vec::new()),
                })
            }
        }
    }
}
