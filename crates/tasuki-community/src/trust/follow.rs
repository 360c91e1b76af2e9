//! The consumer `trust-v1`: follows the log, and keeps who is reported and who talks with whom.
//!
//! A row of the log says that something about an event has changed; what it is like now, the tables say. So
//! it does not matter how often a row comes, or for how many topics: what an event says is there once, for
//! as long as it can be seen. A report is history: it stays when its event is gone. Who made an event that is
//! answered or reported may be known only later; whatever waits for it is completed when it comes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use sqlx::{FromRow, PgConnection, PgPool};
use tasuki::seqlog::{Failure, Handler, Numbered, Snapshot, Tx};
use tasuki::testing::crash_point;

use super::assertion::Algorithm;
use super::facts::{Reference, Reported, Said};
use crate::node::Keys;
use crate::nostr::{Event, Id, Key, Parsed, REPORTS, Target};
use crate::store::trust::events::Kept;
use crate::store::trust::{assertions, contacts, events, rebuild, reports};

/// The handler.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    pub(crate) pool: PgPool,
    /// Kinds in which people talk with each other.
    pub(crate) kinds: Vec<u16>,
    /// Those of the node.
    pub(crate) keys: Option<Keys>,
    /// How soon a change is to be told.
    pub(crate) interval: Duration,
}

/// What of a row matters here.
#[derive(Debug, FromRow)]
pub(crate) struct Row {
    event_id: String,
}

/// What some events say.
#[derive(Default)]
struct Facts {
    said: Vec<Said>,
    reports: Vec<Reported>,
}

impl Facts {
    /// Events whose authors have to be looked up.
    fn answered(&self) -> Vec<Id> {
        let said = self.said.iter().filter_map(|it| match it.to {
            Reference::Event(id) => Some(id),
            Reference::Key(_) => None,
        });
        let reported = self.reports.iter().filter_map(|it| match it.target {
            Target::Event(id) => Some(id),
            _ => None,
        });
        let all: BTreeSet<_> = said.chain(reported).collect();
        all.into_iter().collect()
    }
}

impl Trust {
    /// Kinds whose bodies are read.
    fn read_kinds(&self) -> Vec<i32> {
        let kinds = self.kinds.iter().chain(&REPORTS);
        kinds.map(|kind| i32::from(*kind)).collect()
    }

    fn facts(&self, kept: &[Kept]) -> Facts {
        let mut facts = Facts::default();
        for kept in kept {
            let Some(event) = kept.body.as_deref().and_then(read) else {
                continue;
            };
            facts
                .reports
                .extend(Reported::of(&event, self.keys.as_ref()));
            if kept.is_visible {
                facts.said.extend(Said::of(&event, &self.kinds));
            }
        }
        facts
    }

    /// Writes what has changed; answers whom it concerns.
    async fn apply(
        &self,
        tx: &mut PgConnection,
        ids: &[Id],
    ) -> sqlx::Result<BTreeSet<(Target, Algorithm)>> {
        let kept = events::there(tx, ids, &self.read_kinds()).await?;
        let facts = self.facts(&kept);
        let authors = authors(tx, &facts).await?;
        let visible = kept.iter().filter(|it| it.is_visible);
        let visible: BTreeSet<_> = visible.map(|it| it.id).collect();
        let gone = ids.iter().filter(|id| !visible.contains(id));
        let gone: Vec<_> = gone.copied().collect();
        let come: Vec<_> = kept.iter().map(|it| (it.id, it.author)).collect();

        let mut talking = BTreeSet::new();
        let mut reported = BTreeSet::new();
        if !facts.said.is_empty() {
            talking.append(&mut contacts::put(tx, &facts.said, &authors).await?);
        }
        if !facts.reports.is_empty() {
            reported.append(&mut reports::put(tx, &facts.reports, &authors).await?);
        }
        if !come.is_empty() {
            talking.append(&mut contacts::learn(tx, &come).await?);
            reported.append(&mut reports::learn(tx, &come).await?);
        }
        if !gone.is_empty() {
            talking.append(&mut contacts::remove(tx, &gone).await?);
        }
        let talking = talking.into_iter().map(Target::Author);
        let talking = talking.map(|it| (it, Algorithm::Density));
        let reported = reported.into_iter().map(|it| (it, Algorithm::Risk));
        Ok(talking.chain(reported).collect())
    }
}

impl Handler for Trust {
    type Row = Row;

    async fn handle(&self, rows: &[Numbered<Row>], tx: &mut Tx) -> Result<(), Failure> {
        let ids: BTreeSet<_> = rows
            .iter()
            .filter_map(|it| Id::parse(&it.row.event_id))
            .collect();
        let ids: Vec<_> = ids.into_iter().collect();
        let tx = tx.get().await?;
        let concerned = self.apply(tx, &ids).await?;
        if !concerned.is_empty() {
            assertions::mark(tx, &concerned, self.interval).await?;
        }
        crash_point("community.counted");
        Ok(())
    }

    async fn rebuild(&self, snapshot: &mut Snapshot) -> Result<(), Failure> {
        let mut connection = self.pool.acquire().await?;
        let fresh = rebuild::fresh(snapshot.attempt());
        rebuild::begin(&mut connection, fresh).await?;
        let kinds = self.read_kinds();
        let mut after = Vec::new();
        loop {
            let page = events::page(snapshot.connection(), &kinds, &after).await?;
            let facts = self.facts(&page);
            let authors = authors(&mut connection, &facts).await?;
            rebuild::fill(&mut connection, fresh, &facts.said, &authors).await?;
            // History is nobody's to make anew: what it lacks is added, right where it is.
            if !facts.reports.is_empty() {
                reports::put(&mut connection, &facts.reports, &authors).await?;
            }
            let Some(last) = page.last() else { break };
            after = last.id.0.to_vec();
        }
        rebuild::learn_all(&mut connection).await?;
        rebuild::finish(&mut connection, fresh).await?;
        Ok(())
    }

    async fn switch_to(&self, tx: &mut PgConnection, attempt: i64) -> Result<(), Failure> {
        rebuild::switch(tx, rebuild::fresh(attempt)).await?;
        Ok(())
    }
}

/// Who made the events that are answered or reported, as far as it is known.
async fn authors(tx: &mut PgConnection, facts: &Facts) -> sqlx::Result<HashMap<Id, Key>> {
    let answered = facts.answered();
    if answered.is_empty() {
        return Ok(HashMap::new());
    }
    events::authors(tx, &answered).await
}

fn read(body: &str) -> Option<Arc<Event>> {
    Some(Parsed::read(body).ok()?.trusted())
}
