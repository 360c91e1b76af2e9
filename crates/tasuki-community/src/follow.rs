//! Reads the log, and tells those who listen in this process what other processes have taken in.
//!
//! It keeps no offset: who begins to listen gets what is stored, then what is new. A process that was away
//! begins at the end.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::{FromRow, PgPool};
use tasuki::seqlog::Log;
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
    /// The last number that was read, once there is one.
    pub(crate) place: Mutex<Option<i64>>,
}

/// What of a row matters here.
#[derive(Debug, FromRow)]
struct Row {
    op: String,
    event_id: String,
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
        let mut connection = self.pool.acquire().await?;
        let Some(after) = *place else {
            *place = Some(self.log.head(&mut connection).await?.last_seq);
            return Ok(Tick::Worked);
        };
        let rows = self.log.read::<Row>(&mut connection, after, BATCH).await?;
        let Some(last) = rows.last().map(|row| row.seq) else {
            // What is gone by now, or was never there since a failover, is not waited for.
            let head = self.log.head(&mut connection).await?;
            if after > head.last_seq || after < head.floor_seq {
                *place = Some(head.last_seq);
            }
            return Ok(Tick::Idle);
        };
        let upserts = rows.iter().filter(|row| row.row.op == "upsert");
        let ids: Vec<_> = upserts
            .filter_map(|row| Id::parse(&row.row.event_id))
            .collect();
        let bodies = find::bodies(&mut connection, &ids).await?;
        let mut bodies: HashMap<_, _> = bodies.into_iter().collect();
        // From here on nothing is waited for: a row is told, or read again, and never both. In the order
        // of the log; they were verified by whoever stored them.
        let news = ids.into_iter().filter(|id| self.live.is_news(*id));
        let events = news.filter_map(|id| Parsed::read(&bodies.remove(&id)?).ok());
        let events: Vec<_> = events.map(|event| Told::new(event.trusted())).collect();
        self.live.tell(&events);
        *place = Some(last);
        Ok(Tick::Worked)
    }
}
