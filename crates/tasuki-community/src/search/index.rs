//! The consumer `index-v1`: follows the log, and keeps the documents as the events are.
//!
//! A row of the log says that something about an event has changed; what it is like now, the tables say. So
//! it does not matter how often a row comes, or how late: a document is there if, and only if, its event
//! can be seen, and so is the attention that it pays to others. A rebuild fills other tables from all events,
//! which take the places of those in use.

use std::collections::BTreeSet;
use std::sync::Arc;

use sqlx::{FromRow, PgConnection, PgPool};
use tasuki::seqlog::{Failure, Handler, Numbered, Snapshot, Tx};
use tasuki::testing::crash_point;
use tasuki_service::database::Held;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::try_join;

use super::attention::KINDS;
use super::{Attention, Document};
use crate::nostr::{Event, Id, Parsed};
use crate::store::fresh::Fresh;
use crate::store::search::Visible;
use crate::store::{attention, find, search};

/// Pages of a rebuild that are read before those in front of them are written.
const AHEAD: usize = 2;

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

    /// The same of a page, on another thread, from now on.
    fn making(&self, bodies: Vec<Visible>) -> JoinHandle<Made> {
        let index = self.clone();
        spawn_blocking(move || {
            let events = bodies.iter();
            let events = events.filter_map(|(body, topics)| Some((read(body)?, &**topics)));
            index.make(&events.collect::<Vec<_>>())
        })
    }

    /// Reads page after page, and has each made into what it comes to.
    async fn read_all(
        &self,
        snapshot: &mut Snapshot,
        pages: Sender<JoinHandle<Made>>,
    ) -> Result<(), Failure> {
        search::begin_reading(snapshot.connection(), &self.read_kinds()).await?;
        loop {
            let page = search::read(snapshot.connection()).await?;
            // Nobody takes more if writing has failed, which is what is told then.
            if page.is_empty() || pages.send(self.making(page)).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Kinds whose events are read.
    fn read_kinds(&self) -> Vec<u16> {
        let kinds: BTreeSet<_> = self.kinds.iter().chain(&KINDS).copied().collect();
        kinds.into_iter().collect()
    }
}

/// The fresh tables of an attempt, and two who write them: making their rows, and then their indexes, takes
/// a process of the server longer than reading and cutting up the texts. What is cut in the middle does not
/// go back to the pool.
struct Writers {
    first: Held,
    second: Held,
    documents: Fresh,
    attention: Fresh,
}

impl Writers {
    async fn open(pool: &PgPool, attempt: i64) -> sqlx::Result<Self> {
        let (first, second) = try_join!(Held::of(pool), Held::of(pool))?;
        let (documents, attention) = (search::fresh(attempt), attention::fresh(attempt));
        let mut writers = Self {
            first,
            second,
            documents,
            attention,
        };
        let connection = writers.first.connection();
        search::begin_rebuild(connection, documents).await?;
        attention::begin_rebuild(connection, attention).await?;
        Ok(writers)
    }

    /// Writes all pages, each of the two the next one as soon as it can.
    async fn write_all(&mut self, pages: Receiver<JoinHandle<Made>>) -> Result<(), Failure> {
        let (documents, attention) = (self.documents, self.attention);
        let pages = Mutex::new(pages);
        let write = async |connection: &mut PgConnection| -> Result<(), Failure> {
            loop {
                let page = pages.lock().await.recv().await;
                let Some(making) = page else {
                    return Ok(());
                };
                let page = making.await.map_err(|it| Failure::Failed(Box::new(it)))?;
                search::fill(connection, documents, &page.documents).await?;
                attention::fill(connection, attention, &page.attention).await?;
            }
        };
        let (first, second) = (self.first.connection(), self.second.connection());
        try_join!(write(first), write(second)).map(drop)
    }

    /// Makes the indexes of what is written.
    async fn finish(mut self) -> sqlx::Result<()> {
        let (first, second) = (self.first.connection(), self.second.connection());
        let words = search::index_words(first, self.documents);
        let rest = async {
            search::index_rest(second, self.documents).await?;
            attention::finish_rebuild(second, self.attention).await
        };
        try_join!(words, rest)?;
        search::finish_rebuild(self.first.connection(), self.documents).await?;
        self.first.give_back();
        self.second.give_back();
        Ok(())
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
        let (made, pages) = mpsc::channel(AHEAD);
        let reading = self.read_all(snapshot, made);
        try_join!(reading, writers.write_all(pages))?;
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
