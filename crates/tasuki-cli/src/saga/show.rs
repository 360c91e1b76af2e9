//! One saga, whole: as the steps of its definition, with what became of each.

use std::process::ExitCode;

use anyhow::bail;
use comfy_table::Table;
use serde_json::{Value, json};
use sqlx::PgConnection;
use tasuki::saga::{Role, SagaId, Shape, State, StepState, StepView, View};

use super::{Desk, story};
use crate::outbox::time;
use crate::output::{say, say_json, table};

/// What a step is called that the saga has not come to.
const NOT_BEGUN: &str = "NOT_BEGUN";

/// Shows a saga; or, if there is none under this id, the story of the events that have it.
pub(super) async fn run(desk: &Desk, id: SagaId, json: bool) -> anyhow::Result<ExitCode> {
    let mut connection = desk.connect().await?;
    let shown = saga(desk, &mut connection, id, json).await?
        || story::show(desk, &mut connection, id, json).await?;
    if !shown {
        bail!(
            "there is no saga {id} and no story of that id, or it ended longer ago than those are kept: \
             `tasuki saga list` shows the sagas"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows a saga. `false`: there is none.
pub(super) async fn saga(
    desk: &Desk,
    connection: &mut PgConnection,
    id: SagaId,
    json: bool,
) -> anyhow::Result<bool> {
    let Some(view) = desk.sagas.get(connection, id).await? else {
        return Ok(false);
    };
    let outlines = desk.sagas.outlines(connection).await?.into_iter();
    let mut outlines =
        outlines.filter(|it| it.definition == view.definition && it.version == view.version);
    let steps = outlines.next().map(|outline| outline.steps);
    let steps = steps.unwrap_or_default();
    if json {
        say_json(&view_json(desk, &view, &steps))?;
    } else {
        print(desk, &view, &steps);
    }
    Ok(true)
}

/// The steps of its definition in their order, each with what became of it; behind them, if nobody
/// has written the definition down, those that it has come to.
fn lines<'a>(
    view: &'a View,
    steps: &'a [Shape],
) -> impl Iterator<Item = (&'a str, Option<&'a Shape>, Option<&'a StepView>)> {
    let declared = steps
        .iter()
        .map(|shape| (shape.name.as_str(), Some(shape), view.step(&shape.name)));
    let others = view
        .steps
        .iter()
        .filter(|step| steps.iter().all(|shape| shape.name != step.name))
        .map(|step| (step.name.as_str(), None, Some(step)));
    declared.chain(others)
}

fn view_json(desk: &Desk, view: &View, steps: &[Shape]) -> Value {
    let why = |why: &Option<(Option<String>, String)>| {
        why.as_ref()
            .map(|(step, reason)| json!({ "step": step, "reason": reason }))
    };
    let steps: Vec<Value> = lines(view, steps)
        .map(|(name, shape, step)| step_json(name, shape, step))
        .collect();
    let notes: Vec<Value> = view
        .notes
        .iter()
        .map(|note| {
            json!({
                "what": note.what, "by": note.by, "reason": note.reason, "at": time(note.at),
            })
        })
        .collect();
    json!({
        "id": view.id, "service": desk.name.as_str(), "definition": view.definition,
        "version": view.version, "state": view.state.as_str(), "stuck": why(&view.stuck),
        "failure": why(&view.failure), "input": view.input, "steps": steps, "notes": notes,
        "created_at": time(view.created_at), "updated_at": time(view.updated_at),
        "finished_at": view.finished_at.map(time), "due_at": view.due_at.map(time),
        "deadline_at": view.deadline_at.map(time), "locked_by": view.locked_by,
        "traceparent": view.traceparent,
    })
}

fn step_json(name: &str, shape: Option<&Shape>, step: Option<&StepView>) -> Value {
    json!({
        "name": name,
        "kind": shape.map(|shape| shape.kind.as_str()),
        "role": shape.map(|shape| shape.role.as_str()),
        "stage": shape.map(|shape| shape.stage),
        "state": step.map_or(NOT_BEGUN, |step| step.state.as_str()),
        "failed_attempts": step.map_or(0, |step| step.failed_attempts),
        "failed_undos": step.map_or(0, |step| step.failed_undos),
        "unsure": step.is_some_and(|step| step.unsure),
        "key": step.map(|step| step.key.as_str()),
        "input": step.map(|step| &step.input),
        "output": step.map(|step| &step.output),
        "error": step.and_then(|step| step.error.as_deref()),
        "begun_at": step.map(|step| time(step.begun_at)),
        "ended_at": step.and_then(|step| step.ended_at).map(time),
    })
}

fn print(desk: &Desk, view: &View, steps: &[Shape]) {
    let head = head(desk, view)
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| vec![name.to_owned(), value]);
    say(table(&["", ""], head));
    let header = [
        "STEP",
        "KIND",
        "STATE",
        "FAILED",
        "UNDO FAILED",
        "ENDED",
        "ERROR",
    ];
    let rows = lines(view, steps).map(|(name, shape, step)| row(name, shape, step));
    say(format_args!("\n{}", table(&header, rows)));
    let values = lines(view, steps).flat_map(|(_, _, step)| values(step));
    say(format_args!("\n{}", table(&["STEP", "HAS", ""], values)));
    if !view.notes.is_empty() {
        say(format_args!("\n{}", notes(view)));
    }
    if view.state == State::NeedsAttention {
        let id = view.id;
        say(format_args!(
            "\nWhen the reason is mended: tasuki saga resume {id} --reason ...\n\
             Otherwise: skip, retry, close; `tasuki saga help` says what each does."
        ));
    }
}

/// What people did about it.
fn notes(view: &View) -> Table {
    let notes = view.notes.iter().map(|note| {
        vec![
            time(note.at),
            note.by.clone(),
            note.what.clone(),
            note.reason.clone(),
        ]
    });
    table(&["AT", "WHO", "DID", "BECAUSE"], notes)
}

/// What went into a step and came out, a line each: they may be long.
fn values(step: Option<&StepView>) -> Vec<Vec<String>> {
    let Some(step) = step else {
        return Vec::new();
    };
    let json = |value: &Option<Value>| value.as_ref().map(Value::to_string);
    let all = [
        ("key", Some(step.key.clone())),
        ("input", json(&step.input)),
        ("output", json(&step.output)),
    ];
    all.into_iter()
        .filter_map(|(what, value)| Some(vec![step.name.clone(), what.to_owned(), value?]))
        .collect()
}

/// What is not empty is shown.
fn head(desk: &Desk, view: &View) -> Vec<(&'static str, String)> {
    let why = |why: &Option<(Option<String>, String)>| match why {
        Some((Some(step), reason)) => format!("{step}: {reason}"),
        Some((None, reason)) => reason.clone(),
        None => String::new(),
    };
    let stuck = match view.state {
        State::NeedsAttention => "stuck at",
        _ => "was stuck at",
    };
    let due = view.due_at.map(time).unwrap_or_default();
    let deadline = view.deadline_at.map(time).unwrap_or_default();
    vec![
        ("saga", view.id.to_string()),
        ("service", desk.name.as_str().to_owned()),
        ("definition", view.definition.clone()),
        ("version", view.version.to_string()),
        ("state", view.state.to_string()),
        (stuck, why(&view.stuck)),
        ("turned back by", why(&view.failure)),
        ("input", view.input.to_string()),
        ("started", time(view.created_at)),
        ("moved", time(view.updated_at)),
        ("ended", view.finished_at.map(time).unwrap_or_default()),
        ("due", due),
        ("turns back at", deadline),
        ("held by", view.locked_by.clone().unwrap_or_default()),
        ("trace", view.traceparent.clone().unwrap_or_default()),
    ]
}

fn row(name: &str, shape: Option<&Shape>, step: Option<&StepView>) -> Vec<String> {
    let kind = shape.map(|shape| match shape.role {
        Role::Pivot => format!("{} pivot", shape.kind.as_str()),
        _ => shape.kind.as_str().to_owned(),
    });
    let kind = kind.unwrap_or_default();
    let Some(step) = step else {
        return vec![name.to_owned(), kind, NOT_BEGUN.to_owned()];
    };
    let number = |failed: u32| match failed {
        0 => String::new(),
        failed => failed.to_string(),
    };
    let state = step.state.as_str();
    vec![
        name.to_owned(),
        kind,
        match step.state {
            StepState::Done | StepState::Undone => state.to_owned(),
            _ if step.unsure => format!("{state}, may have happened"),
            _ => state.to_owned(),
        },
        number(step.failed_attempts),
        number(step.failed_undos),
        step.ended_at.map(time).unwrap_or_default(),
        step.error.clone().unwrap_or_default(),
    ]
}
