//! A small service to test the frame with: it answers, waits, panics and asks the database.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use tasuki_service::config::{Common, ServiceDatabase, ServiceServer};
use tasuki_service::http::{ApiError, Json, Path, Peer, Query};
use tasuki_service::service::{Own, Tables};
use tasuki_service::{Config, Service};
use tasuki_testkit::{TestEnv, TestHost};
use tokio::sync::Semaphore;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) const DEFAULTS: &str = r#"
[frame.server]
listen = "127.0.0.1:0"
internal-listen = "127.0.0.1:0"

[frame.database]
url = ""
"#;

/// What tests see and steer of the service.
#[derive(Clone, Default)]
pub(crate) struct Frame {
    /// Requests whose handler has begun.
    pub(crate) begun: Arc<AtomicUsize>,
    /// `/wait` goes on when it gets a permit.
    pub(crate) gate: Arc<Gate>,
}

pub(crate) struct Gate(pub(crate) Semaphore);

impl Default for Gate {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Frame {
    pub(crate) fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// Runs the service; `change` may turn settings before.
    pub(crate) async fn start(&self, change: impl FnOnce(Config) -> Config) -> (TestEnv, TestHost) {
        let mut env = TestEnv::start(&[DEFAULTS], |config, common| {
            Ok::<_, Box<dyn std::error::Error>>(vec![tables(config, common)?])
        })
        .await
        .unwrap();
        env.config = change(env.config);
        let host = env.host(vec![self.service(&env)]).await.unwrap();
        (env, host)
    }

    pub(crate) fn service(&self, env: &TestEnv) -> Service {
        let tables = tables(&env.config, &env.common().unwrap()).unwrap();
        let pool = tables.database.requests.clone();
        let server: Section = env.config.section("frame").unwrap();
        let routes = OpenApiRouter::new()
            .routes(routes!(echo))
            .routes(routes!(item))
            .routes(routes!(find))
            .routes(routes!(wait))
            .routes(routes!(panics))
            .routes(routes!(ask))
            .routes(routes!(caller))
            .with_state(Context {
                frame: self.clone(),
                pool,
            });
        Service::new(tables, "For tests.", server.server).routes(routes)
    }
}

#[derive(Deserialize)]
struct Section {
    server: ServiceServer,
    database: ServiceDatabase,
}

pub(crate) fn tables(
    config: &Config,
    common: &Common,
) -> Result<Tables, Box<dyn std::error::Error>> {
    let section: Section = config.section("frame")?;
    Ok(Tables::new(
        "frame",
        common,
        &section.database,
        Own::Nothing,
    )?)
}

#[derive(Clone)]
struct Context {
    frame: Frame,
    pool: sqlx::PgPool,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Echo {
    text: String,
    #[serde(default)]
    number: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Find {
    limit: u32,
}

#[utoipa::path(post, path = "/v1/echo", responses((status = 200, body = Echo)))]
async fn echo(Json(body): Json<Echo>) -> Json<Echo> {
    Json(body)
}

#[utoipa::path(get, path = "/v1/items/{id}", params(("id" = u64, Path)), responses((status = 200)))]
async fn item(Path(id): Path<u64>) -> Json<u64> {
    Json(id)
}

#[utoipa::path(get, path = "/v1/find", responses((status = 200)))]
async fn find(Query(find): Query<Find>) -> Json<u32> {
    Json(find.limit)
}

#[utoipa::path(get, path = "/v1/caller", responses((status = 200)))]
async fn caller(Peer(caller): Peer) -> Json<String> {
    Json(caller.to_string())
}

#[utoipa::path(get, path = "/v1/wait", responses((status = 200)))]
async fn wait(State(context): State<Context>) -> Json<&'static str> {
    let frame = context.frame;
    frame.begun.fetch_add(1, Ordering::SeqCst);
    frame.gate.0.acquire().await.unwrap().forget();
    Json("waited")
}

#[utoipa::path(get, path = "/v1/panic", responses((status = 500)))]
async fn panics() -> Json<()> {
    panic!("the secret plan")
}

#[utoipa::path(get, path = "/v1/ask", responses((status = 200), (status = 503)))]
async fn ask(State(context): State<Context>) -> Result<Json<i32>, ApiError> {
    let answer = sqlx::query_scalar("SELECT 1")
        .fetch_one(&context.pool)
        .await;
    answer.map(Json).map_err(|error| ApiError::database(&error))
}

/// A time that no test waits for unless something is broken.
pub(crate) const LONG: Duration = Duration::from_secs(20);
