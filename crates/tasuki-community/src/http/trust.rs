//! What is known of somebody, by what others report and by whom he talks with.

#![expect(
    unused_qualifications,
    reason = "what utoipa makes of the parameters names them in full"
)]

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sqlx::PgConnection;
use tasuki_contract::error::ErrorBody;
use tasuki_service::auth::Permitted;
use tasuki_service::http::{ApiError, Json, Query};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

use super::{App, Read};
use crate::nostr::Target;
use crate::store::trust::{assertions, scores};
use crate::trust::{Algorithm, Fading, place};

/// Of whom.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// `pubkey:<key>`, `event:<id>`, `address:<kind:pubkey:d>` or `identifier:<NIP-73>`; keys and ids are
    /// 64 digits of lower-case hexadecimal.
    subject: String,
}

/// How a score was made, and what the node says of it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Basis {
    /// What is older than this does not count.
    window_seconds: i64,
    /// What is this old counts half.
    half_life_seconds: i64,
    /// By the clock of the database.
    #[serde(with = "time::serde::rfc3339")]
    as_of: OffsetDateTime,
    /// The event that the node has signed last (NIP-85), as long as it holds. It is made a few seconds after
    /// a change.
    #[schema(value_type = Option<Object>)]
    assertion: Option<Box<RawValue>>,
    /// How long that holds.
    #[serde(with = "time::serde::rfc3339::option")]
    expires_at: Option<OffsetDateTime>,
}

/// How risky something is.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Risk {
    subject: String,
    /// From 0 to 100.
    value: u8,
    /// Who has reported it, each once; of an author, also what he made.
    reporters: u32,
    #[serde(flatten)]
    basis: Basis,
}

/// How densely somebody talks with others.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Density {
    subject: String,
    /// From 0 to 100.
    value: u8,
    /// With whom, in both directions.
    contacts: u32,
    /// To whom, whether they answer or not.
    spoken_to: u32,
    #[serde(flatten)]
    basis: Basis,
}

/// How risky something is, by who has reported it.
#[utoipa::path(
    get,
    path = "/v1/trust/risk",
    tag = "trust",
    security(("bearer" = [])),
    params(Asked),
    responses(
        (status = 200, description = "Of a subject that nobody knows: 0, by nobody", body = Risk),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:read` is missing", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn risk(
    State(app): State<App>,
    _permitted: Permitted<Read>,
    Query(asked): Query<Asked>,
) -> Result<Json<Risk>, ApiError> {
    let subject = subject(&asked)?;
    let found = async {
        let mut connection = app.pool.acquire().await?;
        let now = scores::now(&mut connection).await?;
        let subjects = std::slice::from_ref(&subject);
        let scores = app.scores.risks(&mut connection, subjects, now).await?;
        let fading = app.scores.risk;
        let basis = basis(
            &app,
            &mut connection,
            (Algorithm::Risk, &subject),
            fading,
            now,
        )
        .await?;
        Ok::<_, sqlx::Error>((scores.into_iter().next(), basis))
    };
    let (score, basis) = found.await.map_err(|error| ApiError::database(&error))?;
    Ok(Json(Risk {
        subject: subject.to_string(),
        value: score.map_or(0, |it| it.value()),
        reporters: score.map_or(0, |it| it.counted),
        basis,
    }))
}

/// How densely somebody talks with others.
#[utoipa::path(
    get,
    path = "/v1/trust/density",
    tag = "trust",
    security(("bearer" = [])),
    params(Asked),
    responses(
        (status = 200, description = "Of a key that nobody knows: 0, with nobody", body = Density),
        (status = 400, description = "`BAD_REQUEST`: names the field", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`: the scope `community:read` is missing", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`", body = ErrorBody),
    )
)]
pub(super) async fn density(
    State(app): State<App>,
    _permitted: Permitted<Read>,
    Query(asked): Query<Asked>,
) -> Result<Json<Density>, ApiError> {
    let subject = subject(&asked)?;
    let Target::Author(key) = &subject else {
        let message = "subject is not pubkey:<key>: only people talk with each other";
        return Err(ApiError::bad_request(message));
    };
    let found = async {
        let mut connection = app.pool.acquire().await?;
        let now = scores::now(&mut connection).await?;
        let scores = app.scores.densities(&mut connection, &[*key], now).await?;
        let fading = app.scores.density;
        let of = (Algorithm::Density, &subject);
        let basis = basis(&app, &mut connection, of, fading, now).await?;
        Ok::<_, sqlx::Error>((scores.into_iter().next(), basis))
    };
    let (score, basis) = found.await.map_err(|error| ApiError::database(&error))?;
    Ok(Json(Density {
        subject: subject.to_string(),
        value: score.map_or(0, |it| it.value()),
        contacts: score.map_or(0, |it| it.counted),
        spoken_to: score.map_or(0, |it| it.spoken_to),
        basis,
    }))
}

fn subject(asked: &Asked) -> Result<Target, ApiError> {
    let subject = asked.subject.parse::<Target>();
    subject.map_err(|problem| ApiError::bad_request(format!("subject is {problem}")))
}

async fn basis(
    app: &App,
    connection: &mut PgConnection,
    (algorithm, subject): (Algorithm, &Target),
    fading: Fading,
    now: i64,
) -> sqlx::Result<Basis> {
    let mut said = None;
    if let Some(keys) = &app.keys {
        let place = place(keys.of(algorithm.voice()), subject);
        let latest = assertions::latest(connection, &[place]).await?;
        said = latest.into_iter().next().flatten();
    }
    let said = said.filter(|it| it.ends_at.is_some_and(|end| end > now));
    let moment = |at: i64| OffsetDateTime::from_unix_timestamp(at).ok();
    Ok(Basis {
        window_seconds: fading.window,
        half_life_seconds: fading.half_life,
        as_of: moment(now).unwrap_or(OffsetDateTime::UNIX_EPOCH),
        expires_at: said.as_ref().and_then(|it| moment(it.ends_at?)),
        assertion: said.and_then(|it| RawValue::from_string(it.body).ok()),
    })
}
