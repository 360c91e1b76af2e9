//! Redrive and discard: what a person can do about letters.

use sqlx::{PgConnection, PgPool};

use super::store::Act;
use super::{Action, Error, Filter, Letters};
use crate::transaction;

/// The longest name of an actor, and the longest reason.
pub(crate) const ACTOR_LIMIT: usize = 128;
pub(crate) const REASON_LIMIT: usize = 1000;
/// What an actor and a reason must be.
pub(crate) const ACTOR_RULE: &str = "1 to 128 characters, none of them a control character";
pub(crate) const REASON_RULE: &str = "1 to 1000 characters, none of them a control character";

/// What a redrive or a discard did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Acted {
    /// Letters that were changed by this very call.
    pub letters: u64,
    /// Of the ids that were asked for: those about which something had been done before.
    pub already: u64,
    /// Of the ids that were asked for: those that are no letters.
    pub missing: u64,
    /// Open letters that were meant and could not be changed: their row is not `FAILED` any
    /// more (only discarding ends those), or their source is not known here. Counted when
    /// there is no more.
    pub stuck: u64,
    /// There may be more: call again, in another transaction.
    pub more: bool,
    /// The tables whose rows were changed. After a redrive has committed, ring their bells.
    pub sources: Vec<&'static str>,
}

impl Letters {
    /// Puts the rows of the open letters that `filter` means back: waiting, due now, with no
    /// attempt counted. `last_error` stays until the next claim, so that whoever looks at the
    /// row meanwhile sees what it had died of.
    ///
    /// Joins the caller's transaction. Changes at most a batch, the oldest death first.
    ///
    /// # Errors
    /// When actor, reason or filter are not acceptable, or the database can't be asked.
    pub async fn redrive(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
        actor: &str,
        reason: Option<&str>,
    ) -> Result<Acted, Error> {
        let act = act(Action::Redrive, actor, reason)?;
        self.act(connection, filter, &act).await
    }

    /// Gives up the open letters that `filter` means: their rows are deleted, if they are still
    /// `FAILED`, and the letters closed.
    ///
    /// Joins the caller's transaction. Changes at most a batch, the oldest death first.
    ///
    /// # Errors
    /// When actor, reason or filter are not acceptable, or the database can't be asked.
    pub async fn discard(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
        actor: &str,
        reason: &str,
    ) -> Result<Acted, Error> {
        let act = act(Action::Discard, actor, Some(reason))?;
        self.act(connection, filter, &act).await
    }

    /// [`redrive`](Self::redrive)s everything that `filter` means, one transaction per batch.
    /// What dies after the call began is left alone: a row that dies at once again would
    /// otherwise be put back for ever.
    ///
    /// # Errors
    /// As for `redrive`. Batches before the error are committed; calling again goes on.
    pub async fn redrive_all(
        &self,
        pool: &PgPool,
        filter: &Filter,
        actor: &str,
        reason: Option<&str>,
    ) -> Result<Acted, Error> {
        let act = act(Action::Redrive, actor, reason)?;
        self.act_on_all(pool, filter, &act).await
    }

    /// [`discard`](Self::discard)s everything that `filter` means, one transaction per batch.
    /// What dies after the call began is left alone.
    ///
    /// # Errors
    /// As for `discard`. Batches before the error are committed; calling again goes on.
    pub async fn discard_all(
        &self,
        pool: &PgPool,
        filter: &Filter,
        actor: &str,
        reason: &str,
    ) -> Result<Acted, Error> {
        let act = act(Action::Discard, actor, Some(reason))?;
        self.act_on_all(pool, filter, &act).await
    }

    async fn act(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
        act: &Act<'_>,
    ) -> Result<Acted, Error> {
        filter.check()?;
        if let Some(source) = &filter.source
            && !self.sources().any(|known| known == source)
        {
            return Err(Error::UnknownSource(source.clone()));
        }
        let mut acted = Acted::default();
        let mut room = u64::from(self.batch);
        for source in &self.statements.sources {
            let meant = filter.source.as_deref();
            if room == 0 || meant.is_some_and(|meant| meant != source.name) {
                continue;
            }
            let changed = source.act(connection, filter, act, room).await?;
            if changed > 0 {
                acted.sources.push(source.name);
            }
            acted.letters += changed;
            room = room.saturating_sub(changed);
        }
        acted.more = room == 0;
        self.account(connection, filter, act, &mut acted).await?;
        Ok(acted)
    }

    /// Says what became of those that were meant and not changed.
    async fn account(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
        act: &Act<'_>,
        acted: &mut Acted,
    ) -> Result<(), Error> {
        let statements = &self.statements;
        if let Some(ids) = &filter.ids {
            let (distinct, known, closed) = statements.known(connection, ids).await?;
            acted.missing = distinct.saturating_sub(known);
            acted.already = closed.saturating_sub(acted.letters);
        }
        if !acted.more {
            acted.stuck = match act.action {
                Action::Redrive => statements.stuck(connection, filter).await?,
                Action::Discard => statements.foreign(connection, filter).await?,
            };
        }
        Ok(())
    }

    async fn act_on_all(
        &self,
        pool: &PgPool,
        filter: &Filter,
        act: &Act<'_>,
    ) -> Result<Acted, Error> {
        let mut total = Acted::default();
        let mut filter = filter.clone();
        let mut tx = transaction::begin(pool).await?;
        let now = self.statements.now(&mut tx).await?;
        drop(tx);
        filter.failed_before = Some(filter.failed_before.map_or(now, |before| before.min(now)));
        loop {
            let mut tx = transaction::begin(pool).await?;
            let acted = self.act(&mut tx, &filter, act).await?;
            transaction::commit(tx).await?;
            if total.letters == 0 {
                // Later batches would count those of this call as well.
                total.already = acted.already;
            }
            total.letters += acted.letters;
            total.missing = acted.missing;
            total.stuck = acted.stuck;
            for source in acted.sources {
                if !total.sources.contains(&source) {
                    total.sources.push(source);
                }
            }
            if !acted.more {
                return Ok(total);
            }
        }
    }
}

fn act<'a>(action: Action, actor: &'a str, reason: Option<&'a str>) -> Result<Act<'a>, Error> {
    if !is_plain(actor, ACTOR_LIMIT) {
        return Err(Error::Invalid {
            what: "actor",
            rule: ACTOR_RULE,
        });
    }
    if reason.is_some_and(|reason| !is_plain(reason, REASON_LIMIT)) {
        return Err(Error::Invalid {
            what: "reason",
            rule: REASON_RULE,
        });
    }
    Ok(Act {
        action,
        actor,
        reason,
    })
}

/// Whether a person can have meant this text, and PostgreSQL takes it.
pub(crate) fn is_plain(text: &str, limit: usize) -> bool {
    !text.trim().is_empty()
        && text.chars().count() <= limit
        && !text.chars().any(|c| c.is_control() && c != '\n')
}
