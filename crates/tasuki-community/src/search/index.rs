//! The consumer `index-v1`: follows the log, and keeps the documents as the events are.
//!
//! A row of the log says that something about an event has changed; what it is like now, the tables say. So
//! it does not matter how often a row comes, or how late: a document is there if, and only if, its event
//! can be seen. A rebuild fills another table from all events, which takes the place of the one in use.

use std::collections::BTreeSet;

use sqlx::pool::PoolConnection;
use sqlx::{FromRow, PgConnection, PgPool, Postgres};
use tasuki::seqlog::{Failure, Handler, Numbered, Snapshot, Tx};
use tokio::task::spawn_blocking;
use tokio::try_join;

use super::Document;
use crate::nostr::{Id, Parsed};
use crate::store::fresh::Fresh;
use crate::store::search::Visible;
use crate::store::{find, search};

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

impl Index {
    fn document(&self, body: &str, topics: &[String]) -> Option<Document> {
        let event = Parsed::read(body).ok()?.trusted();
        Document::of(&event, topics, &self.kinds)
    }

    /// The documents of a page, made on another thread.
    async fn documents(&self, bodies: Vec<Visible>) -> Result<Vec<Document>, Failure> {
        let index = self.clone();
        let make = move || {
            let bodies = bodies.iter();
            let made = bodies.filter_map(|(body, topics)| index.document(body, topics));
            made.collect()
        };
        let made = spawn_blocking(make).await;
        made.map_err(|panic| Failure::Failed(Box::new(panic)))
    }
}

/// Who writes a fresh table: making its rows, and then its indexes, takes a process of the server longer
/// than reading and cutting up the texts, so two of them share it.
struct Writers {
    first: PoolConnection<Postgres>,
    second: PoolConnection<Postgres>,
}

impl Writers {
    async fn open(pool: &PgPool) -> sqlx::Result<Self> {
        let (first, second) = try_join!(pool.acquire(), pool.acquire())?;
        Ok(Self { first, second })
    }

    /// Writes a page.
    async fn fill(&mut self, fresh: Fresh, page: &[Document]) -> sqlx::Result<()> {
        let (one, other) = page.split_at(page.len() / 2);
        let one = search::fill(&mut self.first, fresh, one);
        let other = search::fill(&mut self.second, fresh, other);
        try_join!(one, other).map(drop)
    }

    /// Makes the indexes of what is written.
    async fn finish(&mut self, fresh: Fresh) -> sqlx::Result<()> {
        let words = search::index_words(&mut self.first, fresh);
        let rest = search::index_rest(&mut self.second, fresh);
        try_join!(words, rest)?;
        search::finish_rebuild(&mut self.first, fresh).await
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
        let documents = seen.iter();
        let documents: Vec<_> = documents
            .filter_map(|(_, body, topics)| self.document(body, topics))
            .collect();
        let gone: Vec<_> = ids.into_iter().filter(|id| !there.contains(id)).collect();
        if !documents.is_empty() {
            search::put(tx, &documents).await?;
        }
        if !gone.is_empty() {
            search::remove(tx, &gone).await?;
        }
        Ok(())
    }

    async fn rebuild(&self, snapshot: &mut Snapshot) -> Result<(), Failure> {
        let mut writers = Writers::open(&self.pool).await?;
        let fresh = search::fresh(snapshot.attempt());
        search::begin_rebuild(&mut writers.first, fresh).await?;
        search::begin_reading(snapshot.connection(), &self.kinds).await?;
        let mut page = search::read(snapshot.connection()).await?;
        let mut ready = Vec::new();
        while !page.is_empty() {
            // While one page is written, the documents of the next are made, and the one behind it is read.
            let (written, made, next) = tokio::join!(
                writers.fill(fresh, &ready),
                self.documents(page),
                search::read(snapshot.connection()),
            );
            written?;
            ready = made?;
            page = next?;
        }
        writers.fill(fresh, &ready).await?;
        writers.finish(fresh).await?;
        Ok(())
    }

    async fn switch_to(&self, tx: &mut PgConnection, attempt: i64) -> Result<(), Failure> {
        search::switch(tx, search::fresh(attempt)).await?;
        Ok(())
    }
}
