//! The inbox, live: server-sent events that a client resumes without a gap.
//!
//! Every event's id is its number in the inbox. A client that comes back with `Last-Event-ID` gets
//! what it missed, then what is new: both are read from the database by number, so there is no
//! moment between the two. Without it, or with a number above the end of the inbox, it gets what is
//! new from now on.
//!
//! A stream does not live for ever: its client comes back, shows its credential again, and may come
//! to another process.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use futures_util::stream::{self, Stream, StreamExt};
use http::{HeaderMap, StatusCode};
use sqlx::PgPool;
use tasuki::retry::Backoff;
use tasuki_contract::error::{ErrorBody, TOO_MANY_REQUESTS};
use tasuki_service::auth::Permitted;
use tasuki_service::http::{ApiError, Path};
use tasuki_service::shutdown::Phases;

use super::access::Read;
use super::inbox::shown;
use super::{App, user_of};
use crate::live::{Follower, Full};
use crate::store::inbox::{self, Entry};

/// How many are read at a time.
const PAGE: i64 = 100;
/// How often a quiet connection says that it lives, and looks by itself.
const QUIET: Duration = Duration::from_secs(15);
/// How soon to try again when the database is away; and how soon a client may, when its stream has
/// ended.
const RETRY: Duration = Duration::from_secs(1);
/// How soon to ask again for a stream when there are too many.
const FULL: Duration = Duration::from_secs(10);
/// A stream lives for this share of the longest life, at the least: those that began together, after
/// a deployment say, do not all come back together.
const SHORTEST: f64 = 0.8;

/// What comes into an inbox, as it comes.
#[utoipa::path(
    get,
    path = "/v1/users/{user_id}/notifications/stream",
    tag = "inbox",
    security(("bearer" = [])),
    params(
        ("user_id" = String, Path),
        ("Last-Event-ID" = Option<i64>, Header, description = "Go on after this one; without it, or when it is above the last, from now on"),
    ),
    responses(
        (status = 200, description = "Server-sent events: `id` is the notification's `sequence`, `event` its type, `data` the notification", content_type = "text/event-stream", body = String),
        (status = 400, description = "`BAD_REQUEST`", body = ErrorBody),
        (status = 401, description = "`UNAUTHORIZED`", body = ErrorBody),
        (status = 403, description = "`FORBIDDEN`", body = ErrorBody),
        (status = 429, description = "`TOO_MANY_REQUESTS`: the user has too many streams open, see `Retry-After`", body = ErrorBody),
        (status = 503, description = "`UNAVAILABLE`: also when this process has too many streams open", body = ErrorBody),
    )
)]
pub(super) async fn follow(
    State(app): State<App>,
    Extension(phases): Extension<Phases>,
    permitted: Permitted<Read>,
    Path(user): Path<String>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    permitted.owns(&user)?;
    let user = user_of(user)?.to_string();
    let follower = app.followed.follow(&user).map_err(refused)?;
    let asked = match headers.get("last-event-id") {
        Some(text) => {
            let number = text.to_str().ok().and_then(|text| text.trim().parse().ok());
            let bad =
                || ApiError::bad_request("Last-Event-ID is the id of an event of this stream");
            number.filter(|it: &i64| *it >= 0).ok_or_else(bad)?
        }
        None => i64::MAX,
    };
    let end = last(&app.pool, &user).await;
    let end = end.map_err(|error| ApiError::database(&error))?;
    // A number that was never given, such as that of another inbox, is not waited for.
    let after = asked.min(end);
    // Also a client that has not had anything yet knows from where to go on.
    let first = Event::default().id(after.to_string()).retry(RETRY);
    let first = stream::once(std::future::ready(Ok(first)));
    let reader = Reader {
        pool: app.pool,
        follower,
        user,
        after,
    };
    let lifetime = Backoff::exponential(app.stream_lifetime, app.stream_lifetime)
        .jitter(SHORTEST, 1.0)
        .pick(1);
    // A stop ends it, too, so that the client goes on elsewhere from where it was.
    let ended = async move {
        tokio::select! {
            () = phases.draining() => {}
            () = tokio::time::sleep(lifetime) => {}
        }
    };
    let events = first
        .chain(stream::unfold(reader, Reader::next).flat_map(stream::iter))
        .take_until(Box::pin(ended));
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(QUIET)))
}

fn refused(full: Full) -> ApiError {
    match full {
        Full::User => {
            let message = "this user has too many streams open, close one or come back later";
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, TOO_MANY_REQUESTS, message)
        }
        Full::Process => ApiError::unavailable("too many streams are open here, come back later"),
    }
    .retry_after(FULL)
}

async fn last(pool: &PgPool, user: &str) -> sqlx::Result<i64> {
    let mut connection = pool.acquire().await?;
    Ok(inbox::summary(&mut connection, user, 0).await?.0)
}

/// Reads one inbox from a number on.
struct Reader {
    pool: PgPool,
    user: String,
    follower: Follower,
    after: i64,
}

impl Reader {
    /// The next events, waited for, and the reader after them.
    async fn next(mut self) -> Option<(Vec<Result<Event, Infallible>>, Self)> {
        loop {
            match self.page().await {
                Ok(page) if page.is_empty() => {
                    self.follower.something_after(self.after, QUIET).await;
                }
                Ok(page) => {
                    self.after = page.last().map_or(self.after, |entry| entry.inbox_seq);
                    let events = page.into_iter().map(|entry| Ok(event(entry))).collect();
                    return Some((events, self));
                }
                Err(error) => {
                    tracing::warn!(error = %error, "inbox can't be read, trying again");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// What comes after the last number; when there is nothing, the end of the inbox is the last
    /// number from now on: what was between has been removed by age, and must not be waited for.
    async fn page(&mut self) -> sqlx::Result<Vec<Entry>> {
        let mut connection = self.pool.acquire().await?;
        let end = inbox::summary(&mut connection, &self.user, 0).await?.0;
        // Whatever is numbered up to the end is visible by now.
        let page = inbox::after(&mut connection, &self.user, self.after, PAGE).await?;
        if page.is_empty() {
            self.after = self.after.max(end);
        }
        Ok(page)
    }
}

fn event(entry: Entry) -> Event {
    let notification = shown(entry);
    let event = Event::default()
        .id(notification.sequence.to_string())
        .event(notification.kind.clone());
    // Plain data: it can always be written.
    let data = serde_json::to_string(&notification).unwrap_or_default();
    event.data(data)
}
