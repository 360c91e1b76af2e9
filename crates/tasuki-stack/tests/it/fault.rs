//! Servers that are killed, paused and restarted really are.

use tasuki_stack::{Error, Nats, Options, Postgres, Redis};
use tokio::time::timeout;

use crate::support::{
    DEADLINE, SILENCE, ask, folder, is_alive, jetstream, redis, run, sql, throwaway,
};

#[tokio::test]
async fn a_paused_postgres_answers_nobody_until_resumed() {
    let folder = folder();
    let postgres = Postgres::start(&throwaway(&folder)).await.unwrap();
    let mut connection = sql(&postgres.url("postgres")).await;

    postgres.pause().await.unwrap();

    {
        let question = ask(&mut connection, "SELECT 'late'");
        tokio::pin!(question);
        assert!(
            timeout(SILENCE, &mut question).await.is_err(),
            "an open connection answered"
        );
        let url = postgres.url("postgres");
        let newcomer = sql(&url);
        assert!(
            timeout(SILENCE, newcomer).await.is_err(),
            "a new connection was answered"
        );

        postgres.resume().await.unwrap();
        assert_eq!(timeout(DEADLINE, question).await.unwrap(), "late");
    }
    assert_eq!(
        ask(&mut sql(&postgres.url("postgres")).await, "SELECT 'new'").await,
        "new"
    );
}

#[tokio::test]
async fn a_paused_nats_answers_nobody_until_resumed() {
    let folder = folder();
    let nats = Nats::start(&throwaway(&folder)).await.unwrap();
    let mut context = jetstream(&nats).await;
    context.set_timeout(DEADLINE);

    nats.pause().await.unwrap();

    // A request, not a flush: a flush is content when the kernel has the bytes.
    let question = context.query_account();
    tokio::pin!(question);
    assert!(
        timeout(SILENCE, &mut question).await.is_err(),
        "an open connection answered"
    );
    assert!(
        timeout(SILENCE, jetstream(&nats)).await.is_err(),
        "a new connection was answered"
    );
    nats.resume().await.unwrap();
    timeout(DEADLINE, question).await.unwrap().unwrap();
    jetstream(&nats).await.query_account().await.unwrap();
}

#[tokio::test]
async fn a_paused_redis_answers_nobody_until_resumed() {
    let folder = folder();
    let server = Redis::start(&throwaway(&folder)).await.unwrap();
    let mut keys = redis(&server.url()).await;

    server.pause().await.unwrap();

    let ping = redis::cmd("PING");
    let question = ping.query_async::<String>(&mut keys);
    tokio::pin!(question);
    assert!(
        timeout(SILENCE, &mut question).await.is_err(),
        "an open connection answered"
    );
    server.resume().await.unwrap();
    assert_eq!(timeout(DEADLINE, question).await.unwrap().unwrap(), "PONG");
    ping.query_async::<String>(&mut redis(&server.url()).await)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_paused_server_can_be_stopped() {
    let folder = folder();
    let server = Redis::start(&throwaway(&folder)).await.unwrap();
    server.pause().await.unwrap();

    timeout(DEADLINE, server.stop()).await.unwrap().unwrap();

    assert!(!is_alive(server.pid()));
    assert!(matches!(
        server.pause().await,
        Err(Error::NotRunning { .. })
    ));
}

#[tokio::test]
async fn a_killed_postgres_comes_back_with_every_commit() {
    let folder = folder();
    let postgres = Postgres::start(&throwaway(&folder).durable())
        .await
        .unwrap();
    let mut connection = sql(&postgres.url("postgres")).await;
    run(&mut connection, "CREATE TABLE kept (number int)").await;
    for number in 0..50 {
        run(
            &mut connection,
            &format!("INSERT INTO kept VALUES ({number})"),
        )
        .await;
    }
    let backend: u32 = ask(&mut connection, "SELECT pg_backend_pid()::text")
        .await
        .parse()
        .unwrap();
    let (pid, port) = (postgres.pid(), postgres.port());

    postgres.kill().await.unwrap();

    assert!(!is_alive(pid), "the main process is gone");
    assert!(!is_alive(backend), "its backends are gone, too");
    assert!(!postgres.is_running());
    postgres.start().await.unwrap();
    assert_eq!(postgres.port(), port);
    assert_ne!(postgres.pid(), pid);
    let mut connection = sql(&postgres.url("postgres")).await;
    assert_eq!(
        ask(&mut connection, "SELECT count(*)::text FROM kept").await,
        "50"
    );
}

#[tokio::test]
async fn a_killed_nats_comes_back_with_every_acknowledged_message() {
    let folder = folder();
    let nats = Nats::start(&throwaway(&folder).durable()).await.unwrap();
    let context = jetstream(&nats).await;
    let config = async_nats::jetstream::stream::Config {
        name: "kept".to_owned(),
        ..Default::default()
    };
    context.create_stream(config).await.unwrap();
    for _ in 0..20 {
        context
            .publish("kept", "x".into())
            .await
            .unwrap()
            .await
            .unwrap();
    }

    nats.kill().await.unwrap();
    nats.start().await.unwrap();

    let stream = jetstream(&nats).await.get_stream("kept").await.unwrap();
    assert_eq!(stream.cached_info().state.messages, 20);
}

#[tokio::test]
async fn a_killed_redis_comes_back_with_every_acknowledged_write() {
    let folder = folder();
    let server = Redis::start(&throwaway(&folder).durable()).await.unwrap();
    let mut keys = redis(&server.url()).await;
    for _ in 0..50 {
        let _: i64 = redis::cmd("INCR")
            .arg("n")
            .query_async(&mut keys)
            .await
            .unwrap();
    }

    server.kill().await.unwrap();
    server.start().await.unwrap();

    let mut keys = redis(&server.url()).await;
    let number: i64 = redis::cmd("GET")
        .arg("n")
        .query_async(&mut keys)
        .await
        .unwrap();
    assert_eq!(number, 50);
}

#[tokio::test]
async fn a_restart_keeps_port_and_data_and_changes_the_process() {
    let folder = folder();
    let postgres = Postgres::start(&Options::new(folder.path())).await.unwrap();
    run(
        &mut sql(&postgres.url("postgres")).await,
        "CREATE TABLE kept ()",
    )
    .await;
    let (pid, port) = (postgres.pid(), postgres.port());
    // An open session must not hold up the stop.
    let _open = sql(&postgres.url("postgres")).await;

    timeout(DEADLINE, postgres.restart())
        .await
        .unwrap()
        .unwrap();

    assert_eq!(postgres.port(), port);
    assert_ne!(postgres.pid(), pid);
    let found = "SELECT to_regclass('kept')::text";
    assert_eq!(
        ask(&mut sql(&postgres.url("postgres")).await, found).await,
        "kept"
    );
}
