//! A database that is away, full or too old.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tasuki_service::Config;
use tasuki_service::database::{Held, in_time};
use tasuki_service::host::Error;
use tasuki_stack::{Postgres, Proxy};
use tasuki_testkit::{TestEnv, TestHost, breakable, eventually};

use crate::frame::{self, Frame, LONG};

async fn environment() -> TestEnv {
    TestEnv::start(&[frame::DEFAULTS], |config, common| {
        Ok::<_, Box<dyn std::error::Error>>(vec![frame::tables(config, common)?])
    })
    .await
    .unwrap()
}

/// The service on a database that was empty before.
async fn migrated(env: &TestEnv) -> TestHost {
    let tables = frame::tables(&env.config, &env.common().unwrap()).unwrap();
    tables.migrate(LONG).await.unwrap();
    let service = Frame::default().service(env);
    let host = env.host(vec![service]).await.unwrap();
    assert_eq!(host.get("/v1/ask").await.text, "1");
    host
}

#[tokio::test]
async fn a_database_that_is_away_is_503_with_retry_after_and_comes_back_by_itself() {
    let postgres = Postgres::start(&breakable("away")).await.unwrap();
    let mut env = environment().await;
    env.config = env
        .config
        .with_value("database.url", postgres.url("postgres"))
        .unwrap()
        .with_value("database.acquire-timeout", "500ms")
        .unwrap();
    let host = migrated(&env).await;

    postgres.kill().await.unwrap();

    let reply = host.get("/v1/ask").await;
    assert_eq!(
        (reply.status.as_u16(), reply.code().as_str()),
        (503, "UNAVAILABLE")
    );
    assert!(reply.headers.contains_key("retry-after"));
    let ready = host.get("/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.text.contains("database"), "{}", ready.text);
    assert_eq!(host.get("/livez").await.status, 200);

    postgres.start().await.unwrap();
    eventually("it answers again", async || {
        (host.get("/v1/ask").await.text == "1").then_some(())
    })
    .await;
    eventually("it is ready again", async || {
        (host.get("/readyz").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_full_pool_is_503_after_a_bounded_wait_and_workers_have_connections_of_their_own() {
    let tight = |config: Config| {
        config
            .with_value("database.max-connections", 1)
            .unwrap()
            .with_value("database.acquire-timeout", "200ms")
            .unwrap()
    };
    let mut env = environment().await;
    env.config = tight(env.config);
    let tables = frame::tables(&env.config, &env.common().unwrap()).unwrap();
    let held = tables.database.requests.acquire().await.unwrap();
    let began = Instant::now();
    let refused = tables.database.requests.acquire().await.unwrap_err();
    assert!(tasuki_service::database::is_away(&refused), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(5));
    let reply = tasuki_service::http::ApiError::database(&refused);
    assert_eq!(reply.status(), 503);
    assert!(tables.database.workers.acquire().await.is_ok());
    drop(held);
    assert!(tables.database.requests.acquire().await.is_ok());
}

#[tokio::test]
async fn what_gets_no_answer_counts_as_away_and_leaves_its_connection() {
    let mut env = environment().await;
    let mut url: reqwest::Url = env.config.text("database.url").parse().unwrap();
    let server = SocketAddr::from(([127, 0, 0, 1], url.port().unwrap()));
    let proxy = Proxy::start(server).await.unwrap();
    url.set_port(Some(proxy.addr().port())).unwrap();
    env.config = env
        .config
        .with_value("database.url", url.to_string())
        .unwrap();
    let tables = frame::tables(&env.config, &env.common().unwrap()).unwrap();
    let workers = &tables.database.workers;
    let ask = async |sql: &'static str| {
        let mut held = Held::of(workers).await?;
        let mut tx = held.begin().await?;
        sqlx::query(sql).execute(&mut *tx).await?;
        tx.commit().await?;
        held.give_back();
        Ok::<_, sqlx::Error>(())
    };
    in_time(ask("SELECT 1")).await.unwrap();
    eventually("its connection is kept", async || {
        (workers.num_idle() == 1).then_some(())
    })
    .await;

    let silent = async {
        eventually("it is asked", async || {
            let asked: bool = sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM pg_stat_activity
                 WHERE datname = current_database() AND query = 'SELECT pg_sleep(20)')",
            )
            .fetch_one(&env.db.pool)
            .await
            .unwrap();
            asked.then_some(())
        })
        .await;
        proxy.blackhole().await.unwrap();
    };
    let (asked, ()) = tokio::join!(in_time(ask("SELECT pg_sleep(20)")), silent);
    let error = asked.unwrap_err();
    assert!(tasuki_service::database::is_away(&error), "{error}");
    eventually("its place is free", async || {
        let idle = u32::try_from(workers.num_idle()).unwrap();
        (workers.size() == idle).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_schema_that_is_too_old_refuses_the_start_and_names_the_command() {
    let mut env = environment().await;
    sqlx::query("DROP SCHEMA frame CASCADE")
        .execute(&env.db.pool)
        .await
        .unwrap();
    env.config = env
        .config
        .with_value("database.start-timeout", "1s")
        .unwrap();
    let error = env
        .host(vec![Frame::default().service(&env)])
        .await
        .unwrap_err();
    let error = error.downcast::<Error>().unwrap();
    assert!(matches!(*error, Error::SchemaTooOld { applied: 0, .. }));
    let text = error.to_string();
    assert!(
        text.contains("frame/service") && text.contains("tasuki migrate"),
        "{text}"
    );
}

#[tokio::test]
async fn a_port_that_is_taken_is_named_with_its_setting() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut env = environment().await;
    env.config = env
        .config
        .with_value("frame.server.listen", address.clone())
        .unwrap();
    let error = env
        .host(vec![Frame::default().service(&env)])
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("frame can't listen on {address}: the port is taken (set frame.server.listen)")
    );
}

#[tokio::test]
async fn a_database_that_can_t_be_used_is_named_with_the_reason() {
    let tables = async |url: String| {
        let mut env = environment().await;
        env.config = env.config.with_value("database.url", url).unwrap();
        frame::tables(&env.config, &env.common().unwrap()).unwrap()
    };
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let away = tables(format!("postgres://u:p@{address}/d")).await;
    let error = away
        .database
        .wait(Duration::from_millis(300))
        .await
        .unwrap_err();
    let text = error.to_string();
    assert_eq!(
        text,
        format!("the database at {address} did not answer within 300ms")
    );
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("refused"), "{source}");

    let env = environment().await;
    let missing = env.db.url().replace(env.db.name(), "no_such_database");
    let error = tables(missing).await.database.wait(LONG).await.unwrap_err();
    assert!(error.to_string().ends_with("refuses us"), "{error}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("no_such_database"), "{source}");
}

#[tokio::test]
async fn a_stop_ends_though_the_database_does_not_answer() {
    let postgres = Postgres::start(&breakable("mute")).await.unwrap();
    let proxy = postgres.proxy().await.unwrap();
    let mut env = environment().await;
    for (key, value) in [
        ("database.url", postgres.url_via(&proxy, "postgres")),
        ("http.request-timeout", "500ms".to_owned()),
        ("shutdown.grace", "500ms".to_owned()),
    ] {
        env.config = env.config.with_value(key, value).unwrap();
    }
    let host = migrated(&env).await;

    proxy.blackhole().await.unwrap();
    // Cut in the middle of its question, the connection waits for an answer for ever.
    assert_eq!(host.get("/v1/ask").await.status, 504);
    host.phases.stop();

    let stopped = tokio::time::timeout(LONG, host.stopped).await;
    stopped.expect("it does not stop").unwrap();
}
