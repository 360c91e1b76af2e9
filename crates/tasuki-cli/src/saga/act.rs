//! What a person does about sagas that need one: each in a transaction of its own, with a note of
//! who and why.

use std::process::ExitCode;

use serde_json::Value;
use sqlx::PgConnection;
use tasuki::saga::{By, Close, Error, Filter, SagaId, State, View};
use tasuki::{begin, is_away};

use super::{Desk, Wanted};
use crate::outbox::{actor, time};
use crate::sum::Sum;

/// Sagas that are listed at a time.
const PAGE: u32 = 1000;
/// Why nothing was done about an id.
const UNKNOWN: &str = "there is no such saga, or it ended longer ago than those are kept";

/// One, some or all of them.
pub(super) enum Which<'a> {
    These(&'a [SagaId]),
    /// All that need attention, of one definition or of any.
    All(Option<&'a str>),
}

/// What is to be done.
pub(super) enum Act<'a> {
    Resume,
    Retry {
        from: &'a str,
    },
    Skip {
        step: &'a str,
        output: Option<&'a Value>,
    },
    Close(Close),
}

pub(super) async fn run(
    desk: &Desk,
    which: &Which<'_>,
    act: &Act<'_>,
    reason: &str,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let (mut sum, by) = (Sum::default(), By::new(&actor(), reason));
    match which {
        Which::These(ids) => {
            for id in *ids {
                one(desk, *id, act, &by, &mut sum).await?;
            }
        }
        Which::All(definition) => all(desk, *definition, act, &by, &mut sum).await?,
    }
    let done = act.done();
    sum.report(done, done, json)
}

/// Goes through those that need attention, the newest first. One that is stuck again meanwhile is not
/// met again.
async fn all(
    desk: &Desk,
    definition: Option<&str>,
    act: &Act<'_>,
    by: &By,
    sum: &mut Sum,
) -> anyhow::Result<()> {
    let attention = State::NeedsAttention;
    let mut filter = Filter::new().state(attention.as_str()).limit(PAGE);
    if let Some(definition) = definition {
        filter = filter.definition(definition);
    }
    let mut is_first = true;
    loop {
        let mut connection = desk.connect().await?;
        let page = desk.sagas.list(&mut connection, &filter).await?;
        if std::mem::take(&mut is_first) && page.is_empty() {
            let wanted = Wanted {
                definition,
                state: None,
                limit: PAGE,
            };
            desk.check(&mut connection, &wanted).await?;
        }
        drop(connection);
        let Some(last) = page.last() else {
            return Ok(());
        };
        filter = filter.before(last.id);
        for saga in &page {
            one(desk, saga.id, act, by, sum).await?;
        }
    }
}

/// Acts on one. What is wrong with that one, or held by somebody, is told, and keeps no other.
async fn one(desk: &Desk, id: SagaId, act: &Act<'_>, by: &By, sum: &mut Sum) -> anyhow::Result<()> {
    match attempt(desk, id, act, by, sum).await {
        Err(error) if !is_about_all(&error) => {
            sum.not(id, &format!("{:#}", anyhow::Error::from(error)));
            Ok(())
        }
        done => Ok(done?),
    }
}

/// Whether the next one would fail in the same way.
fn is_about_all(error: &Error) -> bool {
    match error {
        Error::Invalid { .. } => true,
        Error::Store(error) => is_away(error),
        _ => false,
    }
}

async fn attempt(
    desk: &Desk,
    id: SagaId,
    act: &Act<'_>,
    by: &By,
    sum: &mut Sum,
) -> Result<(), Error> {
    let mut tx = begin(&desk.tables.database.workers).await?;
    match act.apply(desk, &mut tx, id, by).await {
        Ok(()) => {
            tx.commit().await?;
            sum.done += 1;
        }
        Err(Error::NotFound(_)) => sum.not(id, UNKNOWN),
        Err(Error::Refused { why, .. }) => {
            let view = desk.sagas.get(&mut tx, id).await?;
            match view.filter(|view| act.is_done(view)) {
                Some(view) => sum.already(id, &already(&view, &act.note())),
                None => sum.not(id, &why),
            }
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Who did it, if that is known.
fn already(view: &View, what: &str) -> String {
    let state = &view.state;
    let note = view.notes.iter().rfind(|note| note.what == what);
    match note {
        Some(note) => format!(
            "already {state}: {what} by {} at {}",
            note.by,
            time(note.at)
        ),
        None => format!("already {state}: it needs nobody"),
    }
}

impl Act<'_> {
    async fn apply(
        &self,
        desk: &Desk,
        tx: &mut PgConnection,
        id: SagaId,
        by: &By,
    ) -> Result<(), Error> {
        let sagas = &desk.sagas;
        match self {
            Self::Resume => sagas.resume(tx, id, by).await,
            Self::Retry { from } => sagas.retry_from(tx, id, from, by).await,
            Self::Skip { step, output } => sagas.skip(tx, id, step, *output, by).await,
            Self::Close(how) => sagas.close(tx, id, *how, by).await,
        }
    }

    /// Whether a saga that can't be acted on is as it was asked to be: every command can be given
    /// twice.
    fn is_done(&self, view: &View) -> bool {
        let is_last = || {
            view.notes
                .last()
                .is_some_and(|note| note.what == self.note())
        };
        match self {
            _ if view.state == State::NeedsAttention => false,
            // It goes on, or has.
            Self::Resume => true,
            Self::Retry { .. } | Self::Skip { .. } => is_last(),
            Self::Close(Close::Completed) => view.state == State::Completed,
            Self::Close(_) => view.state == State::Compensated,
        }
    }

    /// How the story calls it.
    fn note(&self) -> String {
        match self {
            Self::Resume => "resume".to_owned(),
            Self::Retry { from } => format!("retry from {from}"),
            Self::Skip { step, .. } => format!("skip {step}"),
            Self::Close(Close::Completed) => "close as COMPLETED".to_owned(),
            Self::Close(_) => "close as COMPENSATED".to_owned(),
        }
    }

    const fn done(&self) -> &'static str {
        match self {
            Self::Resume => "resumed",
            Self::Retry { .. } => "retried",
            Self::Skip { .. } => "skipped",
            Self::Close(_) => "closed",
        }
    }
}
