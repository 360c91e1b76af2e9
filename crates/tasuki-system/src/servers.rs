//! The servers that the platform stands on: do they answer, and in which version?
//!
//! Connections to NATS and Redis are made in the background and kept, so that a service
//! starts while a server is away, and says so in `/readyz`.

use std::sync::Arc;
use std::time::Duration;

use redis::ConnectionInfo;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use sqlx::PgPool;
use tasuki_contract::status::Server;
use tasuki_service::Common;
use tasuki_service::config;
use tasuki_service::http::Check;
use tasuki_service::nats::Nats;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout};

use crate::store;

/// How long one server may take to answer.
const LIMIT: Duration = Duration::from_secs(2);

/// Handles of all three.
#[derive(Clone)]
pub(crate) struct Servers {
    postgres: PgPool,
    nats: Arc<Broker>,
    redis: Arc<Redis>,
}

struct Broker {
    nats: Nats,
    client: OnceCell<async_nats::Client>,
}

struct Redis {
    info: ConnectionInfo,
    connection: OnceCell<ConnectionManager>,
}

impl Servers {
    pub(crate) fn new(common: &Common, postgres: PgPool) -> Result<Self, config::Error> {
        Ok(Self {
            postgres,
            nats: Arc::new(Broker {
                nats: Nats::new(&common.nats)?,
                client: OnceCell::new(),
            }),
            redis: Arc::new(Redis {
                info: common.redis.url.parse("redis.url", "TASUKI_REDIS__URL")?,
                connection: OnceCell::new(),
            }),
        })
    }

    /// All three, asked at once.
    pub(crate) async fn report(&self) -> Vec<Server> {
        let postgres = async {
            // Waiting for a free connection is not the server's time.
            let connection = self.postgres.acquire().await;
            probe("postgresql", async {
                let mut connection = connection.map_err(|error| error.to_string())?;
                let version = store::server_version(&mut connection).await;
                version.map_err(|error| error.to_string())
            })
            .await
        };
        let nats = probe("nats", self.nats.version());
        let redis = probe("redis", self.redis.version());
        let (postgres, nats, redis) = tokio::join!(postgres, nats, redis);
        vec![postgres, nats, redis]
    }

    pub(crate) fn check_nats(&self) -> Check {
        let nats = Arc::clone(&self.nats);
        Check::new("nats", move || {
            let nats = Arc::clone(&nats);
            async move { within(nats.version()).await.map(drop) }
        })
    }

    pub(crate) fn check_redis(&self) -> Check {
        let redis = Arc::clone(&self.redis);
        Check::new("redis", move || {
            let redis = Arc::clone(&redis);
            async move { within(redis.version()).await.map(drop) }
        })
    }
}

impl Broker {
    /// Asks for a round trip: a client that is reconnecting still knows the old version.
    async fn version(&self) -> Result<String, String> {
        let client = self
            .client
            .get_or_try_init(|| self.nats.connect("tasuki-system"))
            .await
            .map_err(|error| error.to_string())?;
        client.flush().await.map_err(|error| error.to_string())?;
        match client.connection_state() {
            async_nats::connection::State::Connected => Ok(client.server_info().version),
            state => Err(format!("the connection is {state}")),
        }
    }
}

impl Redis {
    async fn version(&self) -> Result<String, String> {
        let settings = ConnectionManagerConfig::new()
            .set_number_of_retries(0)
            .set_connection_timeout(Some(LIMIT))
            .set_response_timeout(Some(LIMIT));
        let connection = self
            .connection
            .get_or_try_init(async || {
                let client = redis::Client::open(self.info.clone())?;
                ConnectionManager::new_with_config(client, settings).await
            })
            .await
            .map_err(|error| error.to_string())?;
        let info: String = redis::cmd("INFO")
            .arg("server")
            .query_async(&mut connection.clone())
            .await
            .map_err(|error| error.to_string())?;
        let version = info
            .lines()
            .find_map(|line| line.strip_prefix("redis_version:"));
        Ok(version.unwrap_or("unknown").trim().to_owned())
    }
}

async fn probe(name: &str, version: impl Future<Output = Result<String, String>>) -> Server {
    let began = Instant::now();
    let answer = within(version).await;
    let latency = answer.is_ok().then(|| began.elapsed().as_secs_f64() * 1e3);
    let (version, error) = match answer {
        Ok(version) => (Some(version), None),
        Err(error) => (None, Some(error)),
    };
    Server {
        name: name.to_owned(),
        reachable: error.is_none(),
        version,
        latency_ms: latency,
        error,
    }
}

async fn within(answer: impl Future<Output = Result<String, String>>) -> Result<String, String> {
    let limited = timeout(LIMIT, answer).await;
    limited.unwrap_or_else(|_elapsed| Err(format!("no answer within {}s", LIMIT.as_secs())))
}
