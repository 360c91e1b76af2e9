//! What others ask by HTTP.

mod moderation;
mod pressure;
mod search;
mod trending;
mod trust;

use sqlx::PgPool;
use tasuki::Clock;
use tasuki::idempotency::Keys;
use tasuki::outbox::Outbox;
use tasuki::seqlog::Log;
use tasuki_service::auth::Scope;
use tasuki_service::http::ApiError;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::config::Topics;
use crate::moderation::Moderator;
use crate::node;
use crate::pressure::Pressure;
use crate::relay::publish::Publisher;
use crate::trust::Scores;

/// May search, and read labels.
struct Read;
/// May report.
struct Report;
/// May label, and make rules.
struct Moderate;

impl Scope for Read {
    const NAME: &'static str = "community:read";
}

impl Scope for Report {
    const NAME: &'static str = "community:report";
}

impl Scope for Moderate {
    const NAME: &'static str = "community:moderate";
}

/// What handlers need.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) pool: PgPool,
    /// Connections whose plans know what is searched for.
    pub(crate) searches: PgPool,
    pub(crate) pressure: Pressure,
    /// How scores are made.
    pub(crate) scores: Scores,
    /// Those of the node, if it has any.
    pub(crate) keys: Option<node::Keys>,
    pub(crate) idempotency: Keys,
    /// None: the node has no keys to sign with.
    pub(crate) moderator: Option<Moderator>,
    pub(crate) topics: Topics,
    pub(crate) publisher: Publisher,
    pub(crate) log: Log,
    pub(crate) outbox: Outbox,
    pub(crate) clock: Clock,
}

impl App {
    fn moderator(&self) -> Result<&Moderator, ApiError> {
        let words = "the node has no keys to sign with: tasuki relay keys --make";
        let moderator = self.moderator.as_ref();
        moderator.ok_or_else(|| ApiError::conflict("NODE_HAS_NO_KEYS", words))
    }

    /// The node has said something: whoever follows the log needs not wait for the next poll.
    fn said(&self) {
        self.log.ring();
        self.outbox.ring();
    }
}

pub(crate) fn routes(app: App) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(search::search))
        .routes(routes!(trending::trending))
        .routes(routes!(pressure::pressure))
        .routes(routes!(trust::risk))
        .routes(routes!(trust::density))
        .merge(moderation::routes())
        .with_state(app)
}
