//! Durable means durable, and secrets stay secret.

use std::{fs, os::unix::fs::PermissionsExt as _};

use sqlx::Connection as _;
use tasuki_stack::{Nats, Postgres, Stack};

use crate::support::{ask, folder, redis, sql, throwaway};

/// What the server says about its settings.
async fn variables(nats: &Nats) -> String {
    let address: async_nats::ServerAddr = nats.system_url().parse().expect("an address");
    let user = address.username().unwrap_or_default().to_owned();
    let password = address.password().unwrap_or_default().to_owned();
    let client = async_nats::ConnectOptions::with_user_and_password(user, password)
        .connect(address)
        .await
        .expect("the system account");
    let answer = client.request("$SYS.REQ.SERVER.PING.VARZ", "".into()).await;
    String::from_utf8_lossy(&answer.expect("an answer").payload).into_owned()
}

#[tokio::test]
async fn durable_settings_are_really_on() {
    let folder = folder();
    let stack = Stack::start(throwaway(&folder).durable()).await.unwrap();

    let mut connection = sql(&stack.postgres.url("postgres")).await;
    for (setting, value) in [
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("full_page_writes", "on"),
        ("max_prepared_transactions", "64"),
        ("max_connections", "200"),
        ("listen_addresses", "127.0.0.1"),
        ("unix_socket_directories", ""),
        ("server_encoding", "UTF8"),
        ("lc_collate", "C.UTF-8"),
        ("TimeZone", "UTC"),
        ("wal_level", "logical"),
        ("min_wal_size", "1GB"),
        ("bgwriter_delay", "50ms"),
    ] {
        assert_eq!(
            ask(&mut connection, &format!("SHOW {setting}")).await,
            value,
            "{setting}"
        );
    }

    let variables = variables(&stack.nats).await;
    assert!(variables.contains(r#""sync_always":true"#), "{variables}");

    let mut keys = redis(&stack.redis.url()).await;
    for (setting, value) in [("appendonly", "yes"), ("appendfsync", "always")] {
        let answer: Vec<String> = redis::cmd("CONFIG")
            .arg("GET")
            .arg(setting)
            .query_async(&mut keys)
            .await
            .unwrap();
        assert_eq!(answer, [setting, value]);
    }
}

#[tokio::test]
async fn a_durable_stack_asks_for_passwords_and_keeps_them_to_its_owner() {
    let folder = folder();
    let stack = Stack::start(throwaway(&folder).durable()).await.unwrap();

    let url = stack.postgres.url("postgres");
    let wrong = url.replace(stack.postgres.password(), "wrong");
    assert!(sqlx::PgConnection::connect(&wrong).await.is_err());
    let port = stack.nats.port();
    assert!(
        async_nats::connect(format!("nats://127.0.0.1:{port}"))
            .await
            .is_err()
    );
    let port = stack.redis.port();
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    let ping = match client.get_multiplexed_async_connection().await {
        Ok(mut keys) => redis::cmd("PING").query_async::<String>(&mut keys).await,
        Err(error) => Err(error),
    };
    assert!(ping.is_err());

    for file in ["secrets.toml", "nats.conf", "redis.conf"] {
        let metadata = fs::metadata(folder.path().join("stack").join(file)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{file}");
    }
}

#[tokio::test]
async fn fast_settings_do_not_wait_for_the_disk() {
    let folder = folder();
    let postgres = Postgres::start(&throwaway(&folder)).await.unwrap();

    let mut connection = sql(&postgres.url("postgres")).await;
    for (setting, value) in [
        ("fsync", "off"),
        ("synchronous_commit", "off"),
        ("full_page_writes", "off"),
        ("max_prepared_transactions", "64"),
        ("max_connections", "400"),
    ] {
        assert_eq!(
            ask(&mut connection, &format!("SHOW {setting}")).await,
            value,
            "{setting}"
        );
    }
}
