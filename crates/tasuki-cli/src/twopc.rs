//! `tasuki twopc`: which two-phase commits wait for whom, and what a person can do about one that
//! does not end.
//!
//! It decides nothing by itself: [`Ledger::resolve`] refuses whatever would turn a decision.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Value, json};
use sqlx::pool::PoolConnection;
use tasuki::admin::Admin;
use tasuki::twopc::{
    BranchState, Decision, Ledger, Listed, Record, Resolution, ResolveError, Story, TransactionId,
};
use tasuki_service::service::Tables;

use crate::args::{self, Conductor, Resolve, Source, Twopc};
use crate::outbox::{actor, time, whole};
use crate::output::{say, say_json, table};
use crate::platform::{self, Name, Platform};
use crate::sum::Sum;

/// Why nothing was done about an id.
const UNKNOWN: &str = "there is no such transaction, or it ended longer ago than those are kept";

/// The log of one service.
struct Desk {
    name: Name,
    tables: Tables,
    ledger: Ledger,
}

pub(crate) async fn run(
    source: &Source,
    args: &args::Twopcs,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let platform = platform::of_running(source)?;
    let desk = Desk::open(&platform, args.conductor).await?;
    match &args.command {
        Twopc::List { finished, limit } => {
            let which = match finished {
                true => Listed::Finished,
                false => Listed::Open,
            };
            list(&desk, which, *limit, json).await
        }
        Twopc::Show { id } => show(&desk, *id, json).await,
        Twopc::Resolve { ids, how, why } => {
            let (mut sum, how) = (Sum::default(), resolution(how));
            for id in ids {
                resolve(&desk, *id, &how, &why.reason, &mut sum).await?;
            }
            sum.report("resolved", "resolved", json)
        }
    }
}

impl Desk {
    async fn open(platform: &Platform, conductor: Conductor) -> anyhow::Result<Self> {
        let tables = platform.conducting(conductor.service)?;
        tables
            .database
            .wait(platform.common.database.connect_timeout)
            .await?;
        Ok(Self {
            name: conductor.service,
            ledger: Ledger::new(&tables.schema),
            tables,
        })
    }

    async fn connect(&self) -> anyhow::Result<PoolConnection<sqlx::Postgres>> {
        Ok(self.tables.database.workers.acquire().await?)
    }
}

async fn list(desk: &Desk, which: Listed, limit: u32, json: bool) -> anyhow::Result<ExitCode> {
    let mut connection = desk.connect().await?;
    let stats = Admin::new(&desk.tables.schema)
        .twopc(&mut connection)
        .await?;
    let found = desk
        .ledger
        .list(&mut connection, which, None, limit)
        .await?;
    if json {
        let transactions: Vec<Value> = found.iter().map(record_json).collect();
        say_json(&json!({
            "service": desk.name.as_str(),
            "open": stats.open,
            "oldest_open_seconds": stats.oldest.map(|age| age.as_secs_f64()),
            "transactions": transactions,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    match stats.oldest.map(whole) {
        None => say("none is open"),
        Some(age) => say(format_args!(
            "{} open, the oldest for {}",
            stats.open,
            humantime::format_duration(age)
        )),
    }
    if found.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let header = [
        "ID",
        "NAME",
        "DECISION",
        "STARTED",
        "ENDED",
        "TRIES",
        "NEXT TRY",
        "PARTICIPANTS",
        "ERROR",
    ];
    let rows = found.iter().map(|record| {
        vec![
            record.id.to_string(),
            record.name.clone(),
            decision(record).to_owned(),
            time(record.created_at),
            record.finished_at.map(time).unwrap_or_default(),
            record.tries.to_string(),
            record.next_try_at.map(time).unwrap_or_default(),
            participants(record),
            record.last_error.clone().unwrap_or_default(),
        ]
    });
    say(format_args!("\n{}", table(&header, rows)));
    Ok(ExitCode::SUCCESS)
}

/// What was decided, in a word.
fn decision(record: &Record) -> &'static str {
    record.decision.map_or("none", Decision::as_str)
}

/// Everybody, and where each is.
fn participants(record: &Record) -> String {
    let each = record.branches.iter();
    let each = each.map(|(name, branch)| format!("{name} {}", branch.state.as_str()));
    each.collect::<Vec<_>>().join(", ")
}

fn record_json(record: &Record) -> Value {
    let branches: Vec<Value> = record
        .branches
        .iter()
        .map(|(name, branch)| {
            json!({
                "participant": name, "state": branch.state.as_str(), "gid": branch.gid,
                "tries": branch.tries, "error": branch.error,
            })
        })
        .collect();
    let waiting: Vec<&str> = record.waiting_for().map(|(name, _)| name).collect();
    json!({
        "id": record.id, "name": record.name,
        "decision": record.decision.map(Decision::as_str),
        "decided_at": record.decided_at.map(time),
        "waiting_for": waiting, "participants": branches, "tries": record.tries,
        "last_error": record.last_error, "locked_by": record.owner,
        "created_at": time(record.created_at), "next_try_at": record.next_try_at.map(time),
        "finished_at": record.finished_at.map(time),
    })
}

async fn show(desk: &Desk, id: TransactionId, json: bool) -> anyhow::Result<ExitCode> {
    let mut connection = desk.connect().await?;
    let Some(story) = desk.ledger.show(&mut connection, id).await? else {
        bail!(
            "there is no transaction {id}, or it ended longer ago than those are kept: `tasuki twopc list` shows them"
        );
    };
    if json {
        let mut shown = record_json(&story.record);
        if let Some(fields) = shown.as_object_mut() {
            fields.insert("service".to_owned(), json!(desk.name.as_str()));
            fields.insert("trail".to_owned(), trail_json(&story));
        }
        say_json(&shown)?;
    } else {
        print(desk, &story);
    }
    Ok(ExitCode::SUCCESS)
}

fn trail_json(story: &Story) -> Value {
    let trail = story.trail.iter().map(|it| {
        json!({
            "action": it.action, "participant": it.participant, "actor": it.actor,
            "reason": it.reason, "at": time(it.acted_at),
        })
    });
    trail.collect()
}

fn print(desk: &Desk, story: &Story) {
    let record = &story.record;
    let head = [
        ("transaction", record.id.to_string()),
        ("service", desk.name.as_str().to_owned()),
        ("name", record.name.clone()),
        ("decision", decision(record).to_owned()),
        ("decided", record.decided_at.map(time).unwrap_or_default()),
        ("started", time(record.created_at)),
        ("ended", record.finished_at.map(time).unwrap_or_default()),
        ("tries", record.tries.to_string()),
        ("next try", record.next_try_at.map(time).unwrap_or_default()),
        ("held by", record.owner.clone().unwrap_or_default()),
        ("last error", record.last_error.clone().unwrap_or_default()),
    ];
    let head = head
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| vec![name.to_owned(), value]);
    say(table(&["", ""], head));
    let rows = record.branches.iter().map(|(name, branch)| {
        vec![
            name.clone(),
            branch.state.as_str().to_owned(),
            branch.tries.to_string(),
            branch.error.clone().unwrap_or_default(),
            branch.gid.clone().unwrap_or_default(),
        ]
    });
    let header = ["PARTICIPANT", "STATE", "TRIES", "ERROR", "PREPARED AS"];
    say(format_args!("\n{}", table(&header, rows)));
    if story.trail.is_empty() {
        return;
    }
    let trail = story.trail.iter().map(|it| {
        let about = it.participant.as_deref().unwrap_or_default();
        let did = format!("{} {about}", it.action);
        vec![
            time(it.acted_at),
            it.actor.clone(),
            did.trim_end().to_owned(),
            it.reason.clone(),
        ]
    });
    let header = ["AT", "WHO", "DID", "BECAUSE"];
    say(format_args!("\n{}", table(&header, trail)));
}

fn resolution(how: &Resolve) -> Resolution {
    match &how.write_off {
        Some(participant) => Resolution::WriteOff(participant.clone()),
        None if how.commit => Resolution::Commit,
        None => Resolution::Abort,
    }
}

async fn resolve(
    desk: &Desk,
    id: TransactionId,
    how: &Resolution,
    reason: &str,
    sum: &mut Sum,
) -> anyhow::Result<()> {
    let mut tx = tasuki::begin(&desk.tables.database.workers).await?;
    let actor = actor();
    let resolved = desk.ledger.resolve(&mut tx, id, how, &actor, reason);
    let refused = match resolved.await {
        Ok(_decision) => {
            tx.commit().await?;
            sum.done += 1;
            return Ok(());
        }
        Err(error @ (ResolveError::Invalid { .. } | ResolveError::Store(_))) => {
            return Err(error.into());
        }
        Err(refused) => refused,
    };
    let Some(story) = desk.ledger.show(&mut tx, id).await? else {
        sum.not(id, UNKNOWN);
        return Ok(());
    };
    let why = why(&refused, &story.record);
    if is_so(how, &story.record) {
        sum.already(id, &why);
    } else {
        sum.not(id, &why);
    }
    Ok(())
}

/// Whether it is as it was asked to be: every command can be given twice.
fn is_so(how: &Resolution, record: &Record) -> bool {
    match how {
        Resolution::WriteOff(participant) => record
            .branches
            .get(participant)
            .is_some_and(|branch| branch.state == BranchState::WrittenOff),
        Resolution::Commit => record.decision == Some(Decision::Commit),
        _ => record.decision == Some(Decision::Abort),
    }
}

fn why(refused: &ResolveError, record: &Record) -> String {
    if let Some(at) = record.finished_at {
        let (decision, participants) = (decision(record), participants(record));
        return format!("ended at {}: {decision}, {participants}", time(at));
    }
    match refused {
        ResolveError::Decided { decision, .. } => {
            let decision = decision.as_str();
            format!("it is decided: {decision}, and participants may have acted on it")
        }
        ResolveError::Undecided(_) => "it is not decided: it can only be aborted".to_owned(),
        ResolveError::NotWaiting { participant, .. } => match record.branches.get(participant) {
            Some(branch) => format!("{participant} is {} already", branch.state.as_str()),
            None => format!("{participant} takes no part in it"),
        },
        other => other.to_string(),
    }
}
