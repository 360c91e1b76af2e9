//! The consumer `moderation-v1`: follows the log, labels by the rules, and collects reports.
//!
//! A row of the log only says that there is something to look at. What is stored is labelled and counted,
//! whether anybody sees it by then or not: whoever was quick has done so before it was hidden, and what
//! comes out must not depend on that. A rebuild works in place, because nothing takes anything away: a label
//! that was published is a fact, and so is a report whose event is gone. It makes what is missing and mends
//! what is wrong.

use std::collections::BTreeSet;

use sqlx::{FromRow, PgConnection, PgPool};
use tasuki::begin;
use tasuki::seqlog::{Failure, Handler, Numbered, Snapshot, Tx};
use tasuki::testing::crash_point;

use super::Moderator;
use crate::nostr::Id;
use crate::pressure::Rows;
use crate::store::moderation::events;

/// Events of one transaction: each may be five labels, and each of those takes two locks, of which the
/// server has a table for everybody.
const TOGETHER: u32 = 100;
/// Rows that are handled together: one transaction, unless it is behind.
pub(crate) const BATCH: Rows = Rows {
    usual: TOGETHER,
    most: 5 * TOGETHER,
};
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

impl Moderation {
    async fn label(&self, tx: &mut PgConnection, ids: &[Id]) -> Result<(), Failure> {
        let stored = events::there(tx, ids).await?;
        self.moderator.apply(tx, &stored).await?;
        Ok(())
    }
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
        let ids: Vec<_> = ids.into_iter().collect();
        let mut parts = ids.chunks(usize::try_from(TOGETHER).unwrap_or(1));
        let last = parts.next_back().unwrap_or_default();
        // What was committed before a crash is found as it is when its rows come again.
        for ids in parts {
            let mut own = begin(&self.pool).await?;
            self.label(&mut own, ids).await?;
            own.commit().await?;
        }
        self.label(tx.get().await?, last).await?;
        crash_point("community.labelled");
        Ok(())
    }

    async fn rebuild(&self, snapshot: &mut Snapshot) -> Result<(), Failure> {
        let mut after = Vec::new();
        loop {
            let page = events::page(snapshot.connection(), &after, TOGETHER.into()).await?;
            let mut tx = begin(&self.pool).await?;
            self.moderator.apply(&mut tx, &page.events).await?;
            tx.commit().await?;
            let Some(last) = page.last else { break };
            after = last;
        }
        Ok(())
    }
}
