//! Events that get attention.

#![expect(
    unused_qualifications,
    reason = "what utoipa makes of the parameters names them in full"
)]

use std::collections::HashMap;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tasuki_contract::error::ErrorBody;
use tasuki_service::auth::Permitted;
use tasuki_service::http::{ApiError, Json, Query};
use utoipa::{IntoParams, ToSchema};

use super::{App, Read};
use crate::nostr::Id;
use crate::search::Window;
use crate::store::{attention, find};

/// Events of an answer, unless asked for otherwise, and at most.
const PAGE: (u16, u16) = (20, 100);
/// More are looked at: the index may not know yet that some have gone.
const SPARE: i64 = 50;

/// What is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// Only events of this topic.
    topic: Option<String>,
    /// How far back attention counts: `1h`, `24h` or `7d`; `24h` unless it is said.
    window: Option<String>,
    /// At most this many: 1 to 100, 20 unless it is said.
    limit: Option<u16>,
}

/// What gets the most attention, that first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Trending {
    /// How far back attention counts.
    window: &'static str,
    /// Events as they were signed.
    #[schema(value_type = Vec<Object>)]
    events: Vec<Box<RawValue>>,
    /// How much each of them gets, in the same order.
    attention: Vec<Got>,
}

/// How much attention an event gets.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Got {
    event_id: String,
    /// A reaction weighs 1, an answer, a repost or a zap 2, and half as much after a quarter of the window.
    score: f64,
    /// Who has reacted, answered, reposted or zapped: each counts once.
    people: i64,
}

/// Events that get attention.
///
/// Reactions, answers, reposts and zaps of others count, once for each of them and each event, and less the
/// older they are.
#[utoipa::path(
    get,
    path = "/v1/trending",
    tag = "search",
    security(("bearer" = [])),
    params(Asked),
    responses(
        (status = 200, description = "The most first", body = Trending),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:read` is missing", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn trending(
    State(app): State<App>,
    _permitted: Permitted<Read>,
    Query(asked): Query<Asked>,
) -> Result<Json<Trending>, ApiError> {
    let limit = asked.limit.unwrap_or(PAGE.0);
    if !(1..=PAGE.1).contains(&limit) {
        let message = format!("limit is from 1 to {}", PAGE.1);
        return Err(ApiError::bad_request(message));
    }
    let window = asked
        .window
        .as_deref()
        .map_or(Some(Window::Day), Window::parse);
    let window = window.ok_or_else(|| ApiError::bad_request("window is 1h, 24h or 7d"))?;
    // To the index, an empty one is all of them.
    if asked.topic.as_deref() == Some(attention::ALL) {
        return Err(ApiError::bad_request("topic is empty"));
    }
    let topic = asked
        .topic
        .map_or(attention::ALL.to_owned(), |it| it.to_lowercase());
    let found = async {
        let mut connection = app.searches.acquire().await?;
        let most = i64::from(limit) + SPARE;
        let rows = attention::trending(&mut connection, &topic, window, most).await?;
        let rows = rows.into_iter();
        let rows: Vec<_> = rows
            .filter_map(|row| Some((Id::from_slice(&row.target)?, row)))
            .collect();
        let ids: Vec<_> = rows.iter().map(|(id, _)| *id).collect();
        let bodies = find::bodies(&mut connection, &ids).await?;
        Ok::<_, sqlx::Error>((rows, bodies))
    };
    let (rows, bodies) = found.await.map_err(|error| ApiError::database(&error))?;
    let mut bodies: HashMap<_, _> = bodies.into_iter().collect();
    let found = rows.into_iter().filter_map(|(id, row)| {
        let event = RawValue::from_string(bodies.remove(&id)?).ok()?;
        let got = Got {
            event_id: id.to_string(),
            score: row.score,
            people: row.people,
        };
        Some((event, got))
    });
    let (events, attention) = found.take(limit.into()).unzip();
    Ok(Json(Trending {
        window: window.name(),
        events,
        attention,
    }))
}
