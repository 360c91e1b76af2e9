//! The story of an order that no saga moves: the events of this service that have its id in common,
//! each behind what it follows from.

use comfy_table::Table;
use serde_json::{Value, json};
use sqlx::PgConnection;
use tasuki::choreography::{Choreography, Story, Told, Turn};
use tasuki::outbox::Outbox;
use tasuki::saga::SagaId;

use super::Desk;
use crate::outbox::time;
use crate::output::{say, say_json, table};

/// Shows it. `false`: there is none.
pub(super) async fn show(
    desk: &Desk,
    connection: &mut PgConnection,
    id: SagaId,
    json: bool,
) -> anyhow::Result<bool> {
    let schema = &desk.tables.schema;
    let choreography = Choreography::new(schema, desk.name.as_str(), &Outbox::new(schema));
    let part = choreography.part(connection, &id.to_string()).await?;
    if part.is_empty() {
        return Ok(false);
    }
    let story = Story::of(part);
    if json {
        let events: Vec<Value> = story.turns().iter().map(turn_json).collect();
        say_json(&json!({
            "correlation_id": id, "service": desk.name.as_str(), "events": events,
        }))?;
    } else {
        say(format_args!(
            "no saga moves {id}; its events at {}:\n\n{}",
            desk.name.as_str(),
            events(&story)
        ));
    }
    Ok(true)
}

fn turn_json(turn: &Turn) -> Value {
    let told = |told: &Told| {
        json!({
            "service": told.service, "consumer": told.consumer, "at": time(told.at),
        })
    };
    json!({
        "event_id": turn.event_id, "event_type": turn.event_type,
        "causation_id": turn.causation_id, "depth": turn.depth,
        "told": turn.told.as_ref().map(told),
        "heard": turn.reactions.iter().map(told).collect::<Vec<_>>(),
    })
}

fn events(story: &Story) -> Table {
    let rows = story.turns().iter().map(|turn| {
        let heard = turn.reactions.iter().map(|heard| {
            let consumer = heard.consumer.as_deref().unwrap_or_default();
            format!("{consumer} at {}", time(heard.at))
        });
        vec![
            format!("{:indent$}{}", "", turn.event_type, indent = 2 * turn.depth),
            turn.told
                .as_ref()
                .map(|told| time(told.at))
                .unwrap_or_default(),
            heard.collect::<Vec<_>>().join("\n"),
            turn.event_id.to_string(),
        ]
    });
    table(&["EVENT", "TOLD", "HEARD BY", "ID"], rows)
}
