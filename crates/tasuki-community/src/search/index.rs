//! The consumer `index-v1`: follows the log, and keeps the documents as the events are.
//!
//! A row of the log says that something about an event has changed; what it is like now, the tables say. So
//! it does not matter how often a row comes, or how late: a document is there if, and only if, its event
//! can be seen, and so is the attention that it pays to others. A rebuild fills other tables from all events,
//! which take the places of those in use.

use std::collections::BTreeSet;
use std::sync::Arc;

use sqlx::pool::PoolConnection;
use sqlx::{FromRow, PgConnection, PgPool, Postgres};
use tasuki::seqlog::{Failure, Handler, Numbered, Snapshot, Tx};
use tasuki::testing::crash_point;
use tokio::task::spawn_blocking;
use tokio::try_join;

use super::attention::KINDS;
use super::{Attention, Document};
use crate::nostr::{Event, Id, Parsed};
use crate::store::fresh::Fresh;
use crate::store::search::Visible;
use crate::store::{attention, find, search};

/// The handler.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    pub(crate) pool: PgPool,
    /// Kinds that can be searched.
    pub(crate) kinds: Vec<u16>,
}

/// What of a row matters here.
#[derive(Debug, FromRow)]
pub(crate) struct Row {
    event_id: String,
}

/// An event, and its topics.
type Read<'a> = (Arc<Event>, &'a [String]);

/// What some events come to.
#[derive(Default)]
struct Made {
    documents: Vec<Document>,
    attention: Vec<Attention>,
}

impl Index {
    fn make(&self, events: &[Read<'_>]) -> Made {
        let each = || events.iter();
        let documents =
            each().filter_map(|(event, topics)| Document::of(event, topics, &self.kinds));
        Made {
            documents: documents.collect(),
            attention: each().flat_map(|(event, _)| Attention::of(event)).collect(),
        }
    }

    /// The same of a page, on another thread.
    async fn made(&self, bodies: Vec<Visible>) -> Result<Made, Failure> {
        let index = self.clone();
        let make = move || {
            let events = bodies.iter();
            let events = events.filter_map(|(body, topics)| Some((read(body)?, &**topics)));
            index.make(&events.collect::<Vec<_>>())
        };
        let made = spawn_blocking(make).await;
        made.map_err(|panic| Failure::Failed(Box::new(panic)))
    }

    /// Kinds whose events are read.
    fn read_kinds(&self) -> Vec<u16> {
        let kinds: BTreeSet<_> = self.kinds.iter().chain(&KINDS).copied().collect();
        kinds.into_iter().collect()
    }
}

/// Who writes the fresh tables: making their rows, and then their indexes, takes a process of the server
/// longer than reading and cutting up the texts, so two of them share it.
struct Writers {
    first: PoolConnection<Postgres>,
    second: PoolConnection<Postgres>,
    documents: Fresh,
    attention: Fresh,
}

impl Writers {
    /// Makes the tables of this attempt.
    async fn open(pool: &PgPool, attempt: i64) -> sqlx::Result<Self> {
        let (first, second) = try_join!(pool.acquire(), pool.acquire())?;
        let (documents, attention) = (search::fresh(attempt), attention::fresh(attempt));
        let mut writers = Self {
            first,
            second,
            documents,
            attention,
        };
        search::begin_rebuild(&mut writers.first, documents).await?;
        attention::begin_rebuild(&mut writers.first, attention).await?;
        Ok(writers)
    }

    /// Writes what a page comes to.
    async fn fill(&mut self, page: &Made) -> sqlx::Result<()> {
        let (one, other) = page.documents.split_at(page.documents.len() / 2);
        let one = search::fill(&mut self.first, self.documents, one);
        let rest = async {
            search::fill(&mut self.second, self.documents, other).await?;
            attention::fill(&mut self.second, self.attention, &page.attention).await
        };
        try_join!(one, rest).map(drop)
    }

    /// Makes the indexes of what is written.
    async fn finish(&mut self) -> sqlx::Result<()> {
        let words = search::index_words(&mut self.first, self.documents);
        let rest = async {
            search::index_rest(&mut self.second, self.documents).await?;
            attention::finish_rebuild(&mut self.second, self.attention).await
        };
        try_join!(words, rest)?;
        search::finish_rebuild(&mut self.first, self.documents).await
    }
}

impl Handler for Index {
    type Row = Row;

    async fn handle(&self, rows: &[Numbered<Row>], tx: &mut Tx) -> Result<(), Failure> {
        let ids: BTreeSet<_> = rows
            .iter()
            .filter_map(|it| Id::parse(&it.row.event_id))
            .collect();
        let ids: Vec<_> = ids.into_iter().collect();
        let tx = tx.get().await?;
        let seen = find::seen(tx, &ids).await?;
        let there: BTreeSet<_> = seen.iter().map(|(id, ..)| *id).collect();
        let events = seen.iter();
        let events = events.filter_map(|(_, body, topics)| Some((read(body)?, &**topics)));
        let events: Vec<Read<'_>> = events.collect();
        let made = self.make(&events);
        let gone: Vec<_> = ids.into_iter().filter(|id| !there.contains(id)).collect();
        if !made.documents.is_empty() {
            search::put(tx, &made.documents).await?;
        }
        if !made.attention.is_empty() {
            attention::put(tx, &made.attention).await?;
        }
        if !events.is_empty() {
            attention::learn(tx, &events).await?;
        }
        if !gone.is_empty() {
            search::remove(tx, &gone).await?;
            attention::remove(tx, &gone).await?;
        }
        crash_point("community.indexed");
        Ok(())
    }

    async fn rebuild(&self, snapshot: &mut Snapshot) -> Result<(), Failure> {
        let mut writers = Writers::open(&self.pool, snapshot.attempt()).await?;
        search::begin_reading(snapshot.connection(), &self.read_kinds()).await?;
        let mut page = search::read(snapshot.connection()).await?;
        let mut ready = Made::default();
        while !page.is_empty() {
            // While one page is written, what the next comes to is made, and the one behind it is read.
            let (written, made, next) = tokio::join!(
                writers.fill(&ready),
                self.made(page),
                search::read(snapshot.connection()),
            );
            written?;
            ready = made?;
            page = next?;
        }
        writers.fill(&ready).await?;
        writers.finish().await?;
        Ok(())
    }

    async fn switch_to(&self, tx: &mut PgConnection, attempt: i64) -> Result<(), Failure> {
        search::switch(tx, search::fresh(attempt)).await?;
        attention::switch(tx, attention::fresh(attempt)).await?;
        Ok(())
    }
}

fn read(body: &str) -> Option<Arc<Event>> {
    Some(Parsed::read(body).ok()?.trusted())
}
