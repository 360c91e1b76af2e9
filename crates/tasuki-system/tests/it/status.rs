//! `GET /v1/status`: true, complete, and for operators alone.

use serde_json::Value;
use tasuki_service::auth::credentials::{Credentials, NewCredential};
use tasuki_service::service::Tables;
use tasuki_stack::Nats;
use tasuki_testkit::{TestEnv, TestHost, breakable, eventually};

async fn environment() -> TestEnv {
    TestEnv::start(&[tasuki_system::DEFAULTS], |config, common| {
        let own = tasuki_system::config(config)?;
        Ok::<_, Box<dyn std::error::Error>>(vec![tasuki_system::tables(common, &own)?])
    })
    .await
    .unwrap()
}

async fn start(env: &TestEnv) -> (TestHost, Tables) {
    let common = env.common().unwrap();
    let own = tasuki_system::config(&env.config).unwrap();
    let tables = tasuki_system::tables(&common, &own).unwrap();
    let watched = vec![tables.clone()];
    let service =
        tasuki_system::service(&common, &own, tables.clone(), watched, &env.clock).unwrap();
    (env.host(vec![service]).await.unwrap(), tables)
}

async fn credential(env: &TestEnv, tables: &Tables, wanted: NewCredential) -> String {
    let mut connection = env.db.pool.acquire().await.unwrap();
    let made = Credentials::new(&tables.schema)
        .create(&mut connection, &env.clock, &wanted)
        .await
        .unwrap();
    made.expose().to_owned()
}

async fn operator(env: &TestEnv, tables: &Tables) -> String {
    credential(env, tables, NewCredential::operator("test").unwrap()).await
}

fn server<'s>(status: &'s Value, name: &str) -> &'s Value {
    let mut servers = status["servers"].as_array().unwrap().iter();
    servers.find(|server| server["name"] == name).unwrap()
}

#[tokio::test]
async fn the_status_names_servers_versions_migrations_and_workers() {
    let env = environment().await;
    let (host, tables) = start(&env).await;
    let operator = operator(&env, &tables).await;

    let status = eventually("all is well and the heartbeat is told", async || {
        let reply = host.get_as(&operator, "/v1/status").await;
        assert_eq!(reply.status, 200);
        let status = reply.json();
        let told = status["instances"][0]["workers"][0]["name"].is_string();
        (status["overall"] == "ok" && told).then_some(status)
    })
    .await;

    for (name, oldest) in [("postgresql", 15), ("nats", 2), ("redis", 7)] {
        let version = server(&status, name)["version"].as_str().unwrap();
        let major: u32 = version.split('.').next().unwrap().parse().unwrap();
        assert!(major >= oldest, "{name} {version}");
    }
    assert_eq!(status["migrations"][0]["name"], "system/service");
    assert_eq!(status["migrations"][0]["pending"], 0);
    let instance = &status["instances"][0];
    assert_eq!(instance["service"], "system");
    let workers = instance["workers"].as_array().unwrap();
    let names: Vec<_> = workers.iter().map(|worker| &worker["name"]).collect();
    assert_eq!(names, ["system.heartbeat", "process.metrics-upkeep"]);
}

#[tokio::test]
async fn the_status_is_for_operators_alone() {
    let env = environment().await;
    let (host, tables) = start(&env).await;
    let scope = "system:read".parse().unwrap();
    let key = NewCredential::api_key("machine", [scope]).unwrap();
    let key = credential(&env, &tables, key).await;

    for (credential, status, code) in [
        (None, 401, "UNAUTHORIZED"),
        (Some("tso_nonsense"), 401, "UNAUTHORIZED"),
        (Some(key.as_str()), 403, "FORBIDDEN"),
    ] {
        let reply = match credential {
            None => host.get("/v1/status").await,
            Some(credential) => host.get_as(credential, "/v1/status").await,
        };
        assert_eq!(
            (reply.status.as_u16(), reply.code().as_str()),
            (status, code)
        );
    }
}

#[tokio::test]
async fn a_broker_that_is_away_is_told_by_status_and_readiness_until_it_is_back() {
    let nats = Nats::start(&breakable("broker")).await.unwrap();
    nats.kill().await.unwrap();
    let mut env = environment().await;
    env.config = env.config.with_value("nats.url", nats.url()).unwrap();
    // It starts and serves while the broker is down.
    let (host, tables) = start(&env).await;
    let operator = operator(&env, &tables).await;

    let status = host.get_as(&operator, "/v1/status").await.json();
    assert_eq!(status["overall"], "degraded");
    assert_eq!(server(&status, "nats")["reachable"], false);
    assert_eq!(server(&status, "postgresql")["reachable"], true);
    let ready = host.get("/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.text.contains("nats"), "{}", ready.text);

    nats.start().await.unwrap();
    eventually("the broker is seen again", async || {
        let status = host.get_as(&operator, "/v1/status").await.json();
        (status["overall"] == "ok").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_missing_migration_makes_the_status_degraded() {
    let env = environment().await;
    let (host, tables) = start(&env).await;
    let operator = operator(&env, &tables).await;
    sqlx::query("DELETE FROM system._service_migrations WHERE version = 2")
        .execute(&env.db.pool)
        .await
        .unwrap();

    let status = host.get_as(&operator, "/v1/status").await.json();

    assert_eq!(status["overall"], "degraded");
    assert_eq!(status["migrations"][0]["pending"], 1);
}
