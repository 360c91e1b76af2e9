//! Events, found by what they say.

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
use crate::search::{self, QUESTION};
use crate::store::{find, search as store};

/// Events of a page, unless asked for otherwise, and at most.
const PAGE: (u16, u16) = (50, 500);

/// What is searched for.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// Words, all of which must be there; Japanese without spaces is found wherever it stands.
    q: String,
    /// Only events of this topic.
    topic: Option<String>,
    /// At most this many: 1 to 500, 50 unless it is said.
    limit: Option<u16>,
}

/// What was found, the newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Found {
    /// Events as they were signed.
    #[schema(value_type = Vec<Object>)]
    events: Vec<Box<RawValue>>,
}

/// Events that say something.
#[utoipa::path(
    get,
    path = "/v1/search",
    tag = "search",
    security(("bearer" = [])),
    params(Asked),
    responses(
        (status = 200, description = "The newest first", body = Found),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:read` is missing", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn search(
    State(app): State<App>,
    _permitted: Permitted<Read>,
    Query(asked): Query<Asked>,
) -> Result<Json<Found>, ApiError> {
    let limit = asked.limit.unwrap_or(PAGE.0);
    if !(1..=PAGE.1).contains(&limit) {
        let message = format!("limit is from 1 to {}", PAGE.1);
        return Err(ApiError::bad_request(message));
    }
    if asked.q.len() > QUESTION {
        let message = format!("q is longer than {QUESTION} bytes");
        return Err(ApiError::bad_request(message));
    }
    let question = search::Query::of(&asked.q, asked.topic.as_deref());
    let question = question.ok_or_else(|| ApiError::bad_request("q has no words"))?;
    let found = async {
        let mut connection = app.searches.acquire().await?;
        let limit = i64::from(limit);
        let ids = store::indexed(&mut connection, &question, limit).await?;
        let bodies = find::bodies(&mut connection, &ids).await?;
        if bodies.len() == ids.len() {
            return Ok::<_, sqlx::Error>((ids, bodies));
        }
        // The index does not know yet that some have gone: others take their places.
        let ids = store::visible_only(&mut connection, &question, limit).await?;
        let bodies = find::bodies(&mut connection, &ids).await?;
        Ok((ids, bodies))
    };
    let (ids, bodies) = found.await.map_err(|error| ApiError::database(&error))?;
    let mut bodies: HashMap<_, _> = bodies.into_iter().collect();
    let events = ids
        .iter()
        .filter_map(|id| RawValue::from_string(bodies.remove(id)?).ok());
    Ok(Json(Found {
        events: events.collect(),
    }))
}
