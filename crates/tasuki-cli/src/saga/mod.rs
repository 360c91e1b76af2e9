//! `tasuki saga`: which sagas there are, how each came to where it is, and what a person can do
//! about one that can't go on by itself.

mod act;
mod show;
mod story;

use std::cmp::Reverse;
use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Value, json};
use sqlx::PgConnection;
use sqlx::pool::PoolConnection;
use tasuki::admin::{Admin, SagaStats};
use tasuki::saga::{Close, Filter, Sagas, State, Summary};
use tasuki_service::service::Tables;

use crate::args::{self, Conductor, Saga, Source};
use crate::outbox::{time, whole};
use crate::output::{say, say_json, table};
use crate::platform::{self, Name, Platform};
use act::{Act, Which};

/// The most that a preview shows.
const MOST: u32 = 1000;
/// The states that are no steps, as a list has them: who needs attention, who is under way (all that go
/// forward are `STARTED`), who has ended.
const ORDER: [&[State]; 3] = [
    &[State::NeedsAttention],
    &[State::Started, State::Compensating],
    &[State::Completed, State::Compensated],
];

/// The sagas of one service.
struct Desk {
    name: Name,
    tables: Tables,
    sagas: Sagas,
}

/// Which sagas are meant.
struct Wanted<'a> {
    definition: Option<&'a str>,
    state: Option<&'a str>,
    limit: u32,
}

pub(crate) async fn run(
    source: &Source,
    args: &args::Sagas,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let platform = platform::of_running(source)?;
    let desk = Desk::open(&platform, args.conductor).await?;
    match &args.command {
        Saga::List {
            definition,
            state,
            limit,
        } => {
            let wanted = Wanted {
                definition: definition.as_deref(),
                state: state.as_deref(),
                limit: *limit,
            };
            list(&desk, &wanted, json).await
        }
        Saga::Show { id } => show::run(&desk, *id, json).await,
        Saga::Resume {
            ids,
            all,
            definition,
            preview,
            why,
        } => {
            let which = match all {
                true => Which::All(definition.as_deref()),
                false => Which::These(ids),
            };
            if *preview {
                return self::preview(&desk, &which, json).await;
            }
            act::run(&desk, &which, &Act::Resume, &why.reason, json).await
        }
        Saga::Retry { id, from, why } => {
            let which = Which::These(std::slice::from_ref(id));
            act::run(&desk, &which, &Act::Retry { from }, &why.reason, json).await
        }
        Saga::Skip {
            id,
            step,
            output,
            why,
        } => {
            let which = Which::These(std::slice::from_ref(id));
            let output = output.as_ref();
            let act = Act::Skip { step, output };
            act::run(&desk, &which, &act, &why.reason, json).await
        }
        Saga::Close { id, ended, why } => {
            let which = Which::These(std::slice::from_ref(id));
            let act = Act::Close(match ended.completed {
                true => Close::Completed,
                false => Close::Compensated,
            });
            act::run(&desk, &which, &act, &why.reason, json).await
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
            sagas: Sagas::new(&tables.schema),
            tables,
        })
    }

    async fn connect(&self) -> anyhow::Result<PoolConnection<sqlx::Postgres>> {
        Ok(self.tables.database.workers.acquire().await?)
    }

    /// Those that are wanted; without a state, those first for which a person is waited.
    async fn find(
        &self,
        connection: &mut PgConnection,
        wanted: &Wanted<'_>,
    ) -> anyhow::Result<Vec<Summary>> {
        let mut filter = Filter::new().limit(wanted.limit);
        if let Some(definition) = wanted.definition {
            filter = filter.definition(definition);
        }
        if let Some(state) = wanted.state {
            return Ok(self.sagas.list(connection, &filter.state(state)).await?);
        }
        let mut found: Vec<Summary> = Vec::new();
        for states in ORDER {
            let mut part = Vec::new();
            for state in states {
                let filter = filter.clone().state(state.as_str());
                part.extend(self.sagas.list(connection, &filter).await?);
            }
            part.sort_unstable_by_key(|saga| Reverse(saga.id));
            // One that has moved on since is there already.
            part.retain(|saga| found.iter().all(|it| it.id != saga.id));
            found.extend(part);
            found.truncate(usize::try_from(wanted.limit)?);
        }
        Ok(found)
    }

    /// Refuses a name or a state that there is not: an empty list would say that all is well.
    async fn check(
        &self,
        connection: &mut PgConnection,
        wanted: &Wanted<'_>,
    ) -> anyhow::Result<()> {
        let outlines = self.sagas.outlines(connection).await?;
        if let Some(name) = wanted.definition
            && outlines.iter().all(|it| it.definition != name)
        {
            let mut known: Vec<_> = outlines.iter().map(|it| it.definition.as_str()).collect();
            known.dedup();
            bail!(
                "there is no saga called {name:?}: {}",
                one_of(&known, "none was ever run here")
            );
        }
        let mut steps = outlines.iter().flat_map(|it| &it.steps);
        if let Some(state) = wanted.state
            && !steps.any(|step| step.name == state)
            && states().all(|it| it.as_str() != state)
        {
            let known: Vec<&str> = states().map(State::as_str).collect();
            let known = known.join(", ");
            bail!(
                "there is no state called {state:?}: it is one of {known}, or the name of a step"
            );
        }
        Ok(())
    }
}

fn states() -> impl Iterator<Item = &'static State> {
    ORDER.into_iter().flatten()
}

fn one_of(known: &[&str], none: &str) -> String {
    match known {
        [] => none.to_owned(),
        known => format!("it is one of {}", known.join(", ")),
    }
}

async fn list(desk: &Desk, wanted: &Wanted<'_>, json: bool) -> anyhow::Result<ExitCode> {
    let mut connection = desk.connect().await?;
    let stats = Admin::new(&desk.tables.schema)
        .sagas(&mut connection)
        .await?;
    let found = desk.find(&mut connection, wanted).await?;
    if found.is_empty() {
        desk.check(&mut connection, wanted).await?;
    }
    if json {
        say_json(&list_json(desk, &stats, &found))?;
        return Ok(ExitCode::SUCCESS);
    }
    say(counts(&stats));
    if found.is_empty() {
        let all = wanted.definition.is_none() && wanted.state.is_none();
        say(if all { "there are none" } else { "none fits" });
        return Ok(ExitCode::SUCCESS);
    }
    let header = ["ID", "SAGA", "STATE", "STARTED", "MOVED", "REASON"];
    let rows = found.into_iter().map(|saga| {
        vec![
            saga.id.to_string(),
            format!("{} {}", saga.definition, saga.version),
            saga.state.to_string(),
            time(saga.created_at),
            time(saga.updated_at),
            saga.reason.unwrap_or_default(),
        ]
    });
    say(format_args!("\n{}", table(&header, rows)));
    Ok(ExitCode::SUCCESS)
}

/// How many are how, in a line.
fn counts(stats: &SagaStats) -> String {
    let mut line = format!(
        "{} need attention, {} go forward, {} go back",
        stats.needs_attention, stats.started, stats.compensating
    );
    let late = stats.oldest_due.map(whole).filter(|late| !late.is_zero());
    if let Some(late) = late {
        let late = humantime::format_duration(late);
        line.push_str(&format!("; one has been due for {late}"));
    }
    line
}

fn list_json(desk: &Desk, stats: &SagaStats, found: &[Summary]) -> Value {
    let sagas: Vec<Value> = found
        .iter()
        .map(|saga| {
            json!({
                "id": saga.id, "definition": saga.definition, "version": saga.version,
                "state": saga.state.as_str(), "reason": saga.reason,
                "created_at": time(saga.created_at), "updated_at": time(saga.updated_at),
                "finished_at": saga.finished_at.map(time),
            })
        })
        .collect();
    json!({
        "service": desk.name.as_str(),
        "needs_attention": stats.needs_attention,
        "started": stats.started,
        "compensating": stats.compensating,
        "oldest_due_seconds": stats.oldest_due.map(|age| age.as_secs_f64()),
        "sagas": sagas,
    })
}

async fn preview(desk: &Desk, which: &Which<'_>, json: bool) -> anyhow::Result<ExitCode> {
    match which {
        Which::These(ids) => {
            let mut connection = desk.connect().await?;
            for id in *ids {
                if !show::saga(desk, &mut connection, *id, json).await? {
                    bail!("there is no saga {id}, or it ended longer ago than those are kept");
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        Which::All(definition) => {
            let state = State::NeedsAttention;
            let wanted = Wanted {
                definition: *definition,
                state: Some(state.as_str()),
                limit: MOST,
            };
            list(desk, &wanted, json).await
        }
    }
}
