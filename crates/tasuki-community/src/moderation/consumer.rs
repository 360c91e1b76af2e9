//! The consumer `moderation-v1`: follows the log, labels by the rules, and collects reports.
//!
//! A row of the log only says that there is something to look at. Events that nobody sees any more are
//! passed over, and take nothing with them; what was labelled or counted before is found as it is. A
//! rebuild works in place, because it takes nothing away either: a label that was published is a fact, and
//! so is a report whose event is gone. It makes what is missing and mends what is wrong.

use std::collections::BTreeSet;

use sqlx::{FromRow, PgPool};
use tasuki::begin;
use tasuki::seqlog::{Failure, Handler, Numbered, Snapshot, Tx};
use tasuki::testing::crash_point;

use super::Moderator;
use crate::nostr::Id;
use crate::store::moderation::events;

/// Rows that are handled together: each may be five labels, and each of those takes two locks.
pub(crate) const BATCH: u32 = 100;
/// What makes an event visible.
const UPSERT: &str = "upsert";

/// The handler.
#[derive(Clone, Debug)]
pub(crate) struct Moderation {
    pub(crate) pool: PgPool,
    pub(crate) moderator: Moderator,
}

/// What of a row matters here.
#[derive(Debug, FromRow)]
pub(crate) struct Row {
    op: String,
    event_id: String,
}

impl Handler for Moderation {
    type Row = Row;

    async fn handle(&self, rows: &[Numbered<Row>], tx: &mut Tx) -> Result<(), Failure> {
        let upserts = rows.iter().filter(|it| it.row.op == UPSERT);
        let ids: BTreeSet<_> = upserts
            .filter_map(|it| Id::parse(&it.row.event_id))
            .collect();
        if ids.is_empty() {
            return Ok(());
        }
        let tx = tx.get().await?;
        let seen = events::seen(tx, &ids.into_iter().collect::<Vec<_>>()).await?;
        self.moderator.apply(tx, &seen).await?;
        crash_point("community.labelled");
        Ok(())
    }

    async fn rebuild(&self, snapshot: &mut Snapshot) -> Result<(), Failure> {
        let mut after = Vec::new();
        loop {
            let page = events::visible(snapshot.connection(), &after, BATCH.into()).await?;
            let mut tx = begin(&self.pool).await?;
            self.moderator.apply(&mut tx, &page.events).await?;
            tx.commit().await?;
            let Some(last) = page.last else { break };
            after = last;
        }
        Ok(())
    }
}
