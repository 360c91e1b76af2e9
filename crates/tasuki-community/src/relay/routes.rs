//! One address: a WebSocket for clients, a document for whoever asks what this is.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::response::{IntoResponse, Response};
use http::header::{
    ACCEPT, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_TYPE, HeaderName,
};
use http::{HeaderMap, StatusCode};
use sqlx::PgPool;
use tasuki::Clock;
use tasuki_contract::error::{FORBIDDEN, TOO_MANY_REQUESTS};
use tasuki_service::http::{ApiError, Peer};
use tasuki_service::shutdown::Phases;
use tokio::sync::Semaphore;
use utoipa_axum::router::OpenApiRouter;

use super::auth::address_of;
use super::connection::{Client, Surroundings};
use super::info::Info;
use super::limits::{Buckets, household};
use super::live::Live;
use super::policy::Policy;
use super::publish::Publisher;
use crate::config::{Auth, Community};
use crate::nostr::Filter;
use crate::store::find;

/// The media type of the document (NIP-11).
const NOSTR_JSON: &str = "application/nostr+json";
/// Pages of whomever may read it, and answers are to say so each time (NIP-11).
const ANYBODY: [(HeaderName, &str); 3] = [
    (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
    (ACCESS_CONTROL_ALLOW_HEADERS, "*"),
    (ACCESS_CONTROL_ALLOW_METHODS, "GET, OPTIONS"),
];

/// Counts of all clients at a time.
const COUNTS: usize = 2;

/// What clients need.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) pool: PgPool,
    searches: PgPool,
    pub(super) counting: PgPool,
    pub(crate) clock: Clock,
    pub(crate) live: Live,
    pub(crate) policy: Arc<Policy>,
    pub(crate) publisher: Publisher,
    pub(crate) auth: Auth,
    /// What clients call it.
    address: Option<String>,
    pub(crate) settings: Arc<Community>,
    /// Counts of all clients: they are many events each, and must not keep the connections of searches.
    pub(super) counts: Arc<Semaphore>,
    room: Arc<Semaphore>,
    addresses: Buckets<std::net::IpAddr>,
    pub(crate) events_of_addresses: Buckets<std::net::IpAddr>,
    pub(crate) reqs_of_addresses: Buckets<std::net::IpAddr>,
    info: Arc<Info>,
}

impl App {
    pub(crate) fn new(
        own: &Community,
        [pool, searches]: [PgPool; 2],
        clock: &Clock,
        live: &Live,
        publisher: Publisher,
    ) -> Self {
        Self {
            counting: find::counting(&pool, COUNTS),
            pool,
            searches,
            clock: clock.clone(),
            live: live.clone(),
            policy: Arc::clone(&publisher.policy),
            publisher,
            auth: own.auth,
            address: address_of(&own.relay.url),
            settings: Arc::new(own.clone()),
            counts: Arc::new(Semaphore::new(COUNTS)),
            room: Arc::new(Semaphore::new(own.relay.connections)),
            addresses: Buckets::new(own.limits.connections_per_minute),
            events_of_addresses: Buckets::new(own.limits.events_per_minute),
            reqs_of_addresses: Buckets::new(own.limits.reqs_per_minute),
            info: Arc::new(Info::of(own)),
        }
    }
}

impl App {
    /// The connections that look for what `filters` want.
    pub(super) fn pool_for(&self, filters: &[Filter]) -> PgPool {
        let is_search = filters.iter().any(|filter| filter.search.is_some());
        let pool = if is_search {
            &self.searches
        } else {
            &self.pool
        };
        pool.clone()
    }
}

pub(crate) fn routes(app: App) -> OpenApiRouter {
    let methods = axum::routing::get(door).options(may_ask);
    OpenApiRouter::new().route("/", methods).with_state(app)
}

async fn door(
    State(app): State<App>,
    Extension(phases): Extension<Phases>,
    Peer(peer): Peer,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let Ok(upgrade) = upgrade else {
        return document(&app, &headers);
    };
    let household = household(peer);
    if app.policy.rules.bans_address(&peer) {
        let words = "this address is banned";
        return ApiError::new(StatusCode::FORBIDDEN, FORBIDDEN, words).into_response();
    }
    if !app.addresses.take(household) {
        let words = "too many new connections from this address";
        return ApiError::new(StatusCode::TOO_MANY_REQUESTS, TOO_MANY_REQUESTS, words)
            .into_response();
    }
    let Ok(place) = Arc::clone(&app.room).try_acquire_owned() else {
        return ApiError::unavailable("too many clients are here").into_response();
    };
    let most = app.settings.limits.message.bytes();
    upgrade
        .max_message_size(most)
        .max_frame_size(most)
        // Clients are many, and most of them silent: what each keeps ready to read into is small.
        .read_buffer_size(8 * 1024)
        // Answers that are made together leave together; each flush writes all there is.
        .write_buffer_size(16 * 1024)
        .on_upgrade(move |socket| async move {
            let address = app.address.clone();
            let around = Surroundings {
                peer,
                address,
                phases,
            };
            Client::new(app, socket, around).run().await;
            drop(place);
        })
}

/// The document, or a word for whoever came by.
fn document(app: &App, headers: &HeaderMap) -> Response {
    let asked = headers.get_all(ACCEPT).iter();
    let mut asked = asked.filter_map(|value| value.to_str().ok());
    if asked.any(|value| value.contains(NOSTR_JSON)) {
        let body = app.info.at(app.clock.now()).to_owned();
        return (ANYBODY, [(CONTENT_TYPE, NOSTR_JSON)], body).into_response();
    }
    let words = "This is a Nostr relay: connect with a Nostr client, by WebSocket.\n";
    (ANYBODY, words).into_response()
}

/// Pages of others may ask for the document (NIP-11).
async fn may_ask() -> Response {
    (StatusCode::NO_CONTENT, ANYBODY).into_response()
}
