//! Starting, stopping and starting again.

use std::{fs, net::TcpListener, path::Path};

use tasuki_stack::{Error, Nats, Options, Ports, Postgres, Redis, Stack, free_port};

use crate::support::{
    appears, ask, binary, eventually, folder, is_alive, jetstream, redis, run, sql, throwaway,
};

#[tokio::test]
async fn a_stack_answers_directly_and_through_proxies_until_it_is_stopped() {
    let folder = folder();
    let stack = Stack::start(throwaway(&folder)).await.unwrap();
    let (postgres, nats, keys) = (
        stack.postgres.proxy().await.unwrap(),
        stack.nats.proxy().await.unwrap(),
        stack.redis.proxy().await.unwrap(),
    );

    let mut connection = sql(&stack.postgres.url_via(&postgres, "postgres")).await;
    assert_eq!(ask(&mut connection, "SELECT 'one'").await, "one");
    let client = async_nats::connect(stack.nats.url_via(&nats))
        .await
        .unwrap();
    client.flush().await.unwrap();
    let mut direct = redis(&stack.redis.url()).await;
    let mut proxied = redis(&stack.redis.url_via(&keys)).await;
    let _: () = redis::cmd("SET")
        .arg("a")
        .arg("1")
        .query_async(&mut direct)
        .await
        .unwrap();
    let value: String = redis::cmd("GET")
        .arg("a")
        .query_async(&mut proxied)
        .await
        .unwrap();
    assert_eq!(value, "1");

    let pids = [stack.postgres.pid(), stack.nats.pid(), stack.redis.pid()];
    assert!(pids.into_iter().all(is_alive));
    stack.stop().await.unwrap();
    assert!(!pids.into_iter().any(is_alive));
    assert!(!folder.path().join("stack").exists());
}

#[tokio::test]
async fn the_handle_knows_the_servers_own_process_id_and_version() {
    let folder = folder();
    let stack = Stack::start(throwaway(&folder)).await.unwrap();

    let file = folder.path().join("stack/postgres/postmaster.pid");
    let text = fs::read_to_string(file).unwrap();
    assert_eq!(
        text.lines().next().unwrap(),
        stack.postgres.pid().to_string()
    );
    let mut connection = sql(&stack.postgres.url("postgres")).await;
    let version = ask(&mut connection, "SHOW server_version").await;
    assert!(version.starts_with(stack.postgres.version()));

    let info: String = redis::cmd("INFO")
        .query_async(&mut redis(&stack.redis.url()).await)
        .await
        .unwrap();
    assert!(info.contains(&format!("process_id:{}\r\n", stack.redis.pid())));
    assert!(info.contains(&format!("redis_version:{}\r\n", stack.redis.version())));

    let client = async_nats::connect(stack.nats.url()).await.unwrap();
    assert_eq!(client.server_info().version, stack.nats.version());
    let title = fs::read_to_string(format!("/proc/{}/comm", stack.nats.pid())).unwrap();
    assert_eq!(title.trim_end(), "nats-server");
}

#[tokio::test]
async fn two_stacks_run_side_by_side() {
    let (first, second) = (folder(), folder());
    let (first, second) = tokio::join!(
        Box::pin(Stack::start(throwaway(&first))),
        Box::pin(Stack::start(throwaway(&second)))
    );
    let (first, second) = (first.unwrap(), second.unwrap());

    let mut here = sql(&first.postgres.url("postgres")).await;
    run(&mut here, "CREATE TABLE only_here ()").await;
    let mut there = sql(&second.postgres.url("postgres")).await;
    let found = "SELECT count(*)::text FROM pg_tables WHERE tablename = 'only_here'";
    assert_eq!(ask(&mut here, found).await, "1");
    assert_eq!(ask(&mut there, found).await, "0");
}

#[tokio::test]
async fn a_second_start_finds_the_data_and_the_ports() {
    let folder = folder();
    let options = Options::new(folder.path()).durable();
    let stack = Stack::start(options.clone()).await.unwrap();
    let urls = [
        stack.postgres.url("postgres"),
        stack.nats.url(),
        stack.redis.url(),
    ];
    run(
        &mut sql(&urls[0]).await,
        "CREATE TABLE kept (word text); INSERT INTO kept VALUES ('here')",
    )
    .await;
    let context = jetstream(&stack.nats).await;
    let config = async_nats::jetstream::stream::Config {
        name: "kept".to_owned(),
        ..Default::default()
    };
    context.create_stream(config).await.unwrap();
    context
        .publish("kept", "here".into())
        .await
        .unwrap()
        .await
        .unwrap();
    let mut keys = redis(&urls[2]).await;
    let _: () = redis::cmd("SET")
        .arg("kept")
        .arg("here")
        .query_async(&mut keys)
        .await
        .unwrap();
    stack.stop().await.unwrap();

    let stack = Stack::start(options).await.unwrap();

    assert_eq!(
        urls,
        [
            stack.postgres.url("postgres"),
            stack.nats.url(),
            stack.redis.url()
        ]
    );
    assert_eq!(
        ask(&mut sql(&urls[0]).await, "SELECT word FROM kept").await,
        "here"
    );
    let stream = jetstream(&stack.nats)
        .await
        .get_stream("kept")
        .await
        .unwrap();
    assert_eq!(stream.cached_info().state.messages, 1);
    let value: String = redis::cmd("GET")
        .arg("kept")
        .query_async(&mut redis(&urls[2]).await)
        .await
        .unwrap();
    assert_eq!(value, "here");
}

#[tokio::test]
async fn a_folder_in_use_is_refused_with_its_name_and_the_holders_process() {
    let folder = folder();
    let options = throwaway(&folder);
    let _redis = Redis::start(&options).await.unwrap();

    let error = Redis::start(&options).await.unwrap_err();

    let dir = folder.path().join("stack").canonicalize().unwrap();
    let expected = format!(
        "the data folder {} is in use by process {}: stop that process or choose another folder",
        dir.display(),
        std::process::id()
    );
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn a_taken_port_is_named_in_one_sentence() {
    let folder = folder();
    let port = free_port().unwrap();
    let _other = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let ports = Ports {
        postgres: Some(port),
        nats: Some(port),
        redis: Some(port),
    };
    let options = throwaway(&folder).ports(ports);

    let errors = [
        ("PostgreSQL", Postgres::start(&options).await.unwrap_err()),
        ("NATS", Nats::start(&options).await.unwrap_err()),
        ("Redis", Redis::start(&options).await.unwrap_err()),
    ];

    for (server, error) in errors {
        assert!(matches!(error, Error::PortTaken { .. }));
        assert_eq!(
            error.to_string(),
            format!(
                "port {port} of {server} is taken by another program: \
                 stop that program, or choose another port for {server}"
            )
        );
    }
}

#[tokio::test]
async fn a_kept_port_that_is_taken_is_not_silently_changed() {
    let folder = folder();
    let options = Options::new(folder.path());
    let redis = Redis::start(&options).await.unwrap();
    let port = redis.port();
    redis.stop().await.unwrap();
    drop(redis);

    let other = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let error = Redis::start(&options).await.unwrap_err();
    assert!(matches!(error, Error::PortTaken { port: taken, .. } if taken == port));

    drop(other);
    assert_eq!(Redis::start(&options).await.unwrap().port(), port);
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_named() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "in the way").unwrap();

    let error = Redis::start(&Options::new(file.join("stack")))
        .await
        .unwrap_err();

    let expected = format!(
        "the data folder can't be used, because of {} (not a directory): \
         make it writable or choose another folder",
        file.join("stack").display()
    );
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn a_server_that_ends_while_starting_shows_the_end_of_its_log() {
    let folder = folder();
    let options = Options::new(folder.path()).durable();
    let server = Redis::start(&options).await.unwrap();
    let mut keys = redis(&server.url()).await;
    let _: () = redis::cmd("SET")
        .arg("a")
        .arg("b")
        .query_async(&mut keys)
        .await
        .unwrap();
    server.stop().await.unwrap();
    drop(server);
    for entry in fs::read_dir(folder.path().join("redis/appendonlydir")).unwrap() {
        fs::write(entry.unwrap().path(), "nonsense").unwrap();
    }

    let error = Redis::start(&options).await.unwrap_err().to_string();

    assert!(
        error.starts_with("Redis ended while it was starting (exit status: 1)"),
        "{error}"
    );
    assert!(error.contains("redis.log:\n  "), "{error}");
    assert!(error.lines().count() > 1, "{error}");
}

#[tokio::test]
async fn a_dropped_stack_takes_its_servers_along() {
    let folder = folder();
    let redis = Redis::start(&throwaway(&folder)).await.unwrap();
    let nats = Nats::start(&Options::new(folder.path().join("nats")).throwaway())
        .await
        .unwrap();
    let pids = [redis.pid(), nats.pid()];
    let ports = [redis.port(), nats.port()];

    drop((redis, nats));

    assert!(!pids.into_iter().any(is_alive));
    assert!(
        ports
            .into_iter()
            .all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
    );
    assert!(!folder.path().join("stack").exists());
}

/// A PATH with nothing but what the stack itself needs.
fn bare_path(folder: &Path) {
    for tool in ["setpriv", "sh", "id", "test"] {
        let place = Path::new("/usr/bin").join(tool);
        std::os::unix::fs::symlink(place, folder.join(tool)).unwrap_or_default();
    }
}

#[tokio::test]
async fn a_missing_or_old_server_is_named_with_what_is_needed_and_how_to_get_it() {
    let folder = folder();
    bare_path(folder.path());
    let data = folder.path().join("stack");
    let complaint = || {
        let output = binary()
            .env("PATH", folder.path())
            .args(["exec", "--dir"])
            .arg(&data)
            .args(["--", "true"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };

    let advice = "run `scripts/setup` to install it\n";
    assert_eq!(
        complaint(),
        format!("tasuki-stack: redis-server is missing: version 7 or newer is needed, {advice}")
    );
    let fake = folder.path().join("redis-server");
    fs::write(&fake, "#!/usr/bin/sh\necho Redis server v=6.0.16 sha=0\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&fake, mode).unwrap();
    assert_eq!(
        complaint(),
        format!(
            "tasuki-stack: redis-server is too old: {} is version 6.0.16, \
             but 7 or newer is needed, {advice}",
            fake.display()
        )
    );
    eventually("nothing is left running", || {
        crate::support::with_text(data.to_str().unwrap()).is_empty()
    })
    .await;
    appears(&fake).await;
}
