//! Clumsy starts: one clear sentence each, the right exit code, no backtrace.

#![expect(clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;

use tasuki_testkit::eventually;

use crate::support::{Answer, World};

impl Answer {
    /// Asserts that it failed with this code and one sentence that names the culprits.
    #[track_caller]
    pub(crate) fn is_refused(&self, code: i32, culprits: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        // Progress, and the log lines of `serve`, stand beside the sentence.
        let is_aside = |line: &&str| *line == "starting …" || line.starts_with('{');
        let lines = self.err.lines().filter(|line| !is_aside(line));
        let lines: Vec<&str> = lines.collect();
        let [line] = *lines else {
            panic!("not one sentence: {self:?}");
        };
        assert!(line.starts_with("error: "), "{line}");
        for culprit in culprits {
            assert!(line.contains(culprit), "{culprit} is not named: {line}");
        }
        for clutter in ["panicked", "backtrace", "Error {"] {
            assert!(!line.contains(clutter), "{clutter}: {line}");
        }
    }
}

#[tokio::test]
async fn a_wrong_configuration_is_refused_in_one_sentence_that_names_the_key() {
    let world = World::new();
    let unknown = world.file("unknown.toml", "[database]\nmax-conections = 1\n");
    let section = world.file("section.toml", "[databse]\nurl = ''\n");
    let number = world.file("number.toml", "[database]\nmax-connections = 'many'\n");
    let time = world.file("time.toml", "[shutdown]\ngrace = 'soon'\n");
    let broken = world.file("broken.toml", "[database]\nurl = \n");
    let missing = world.path("missing.toml").display().to_string();
    let files = [
        (&unknown, "database.max-conections"),
        (&unknown, "database.max-connections"),
        (&section, "databse.url"),
        (&number, "database.max-connections"),
        (&time, "shutdown.grace"),
        (&broken, "line 2"),
        (&missing, "can't be read"),
    ];
    for (file, culprit) in files {
        for command in [&["config", "check"][..], &["up"], &["serve", "system"]] {
            let mut command = world.command(command);
            command.args(["--config", file]);
            let answer = world.run(command).await;
            answer.is_refused(2, &[culprit, file]);
        }
    }
    let variables = [
        ("TASUKI_DATABASE__MAX_CONECTIONS", "1"),
        ("TASUKI_DATABSE__URL", "x"),
        ("TASUKI_DATABASE", "x"),
        ("TASUKI_DATABASE__MAX_CONNECTIONS", "many"),
        ("TASUKI_DATABASE__MAX_CONNECTIONS", "0"),
        ("TASUKI_STACK__PRIVATE", "perhaps"),
        ("TASUKI_STACK__POSTGRES_PORT", "65536"),
        ("TASUKI_SHUTDOWN__GRACE", "soon"),
        ("TASUKI_SYSTEM__SERVER__LISTEN", "everywhere"),
        ("TASUKI_TELEMETRY__TRACE_SAMPLE_RATIO", "2"),
        ("TASUKI_TELEMETRY__LOG_FORMAT", "xml"),
    ];
    for (name, value) in variables {
        for command in [&["config", "check"][..], &["up"], &["serve", "system"]] {
            let mut command = world.command(command);
            command.env(name, value);
            world.run(command).await.is_refused(2, &[name]);
        }
    }
    assert!(!world.path("data").exists(), "nothing was started");
}

#[tokio::test]
async fn serve_without_the_address_of_a_server_is_refused() {
    let world = World::new();
    let addresses = [
        (
            "TASUKI_DATABASE__URL",
            "postgres://u:swordfish@127.0.0.1:1/d",
        ),
        ("TASUKI_NATS__URL", "nats://u:swordfish@127.0.0.1:1"),
        ("TASUKI_REDIS__URL", "redis://u:swordfish@127.0.0.1:1"),
    ];
    for (missing, _) in addresses {
        for wrong in [None, Some("http://u:swordfish@h")] {
            let mut command = world.command(&["serve", "system"]);
            command
                .envs(addresses)
                .env("TASUKI_DATABASE__ACQUIRE_TIMEOUT", "300ms")
                .env("TASUKI_DATABASE__START_TIMEOUT", "300ms");
            match wrong {
                None => command.env_remove(missing),
                Some(wrong) => command.env(missing, wrong),
            };
            let answer = world.run(command).await;
            let key = missing.trim_start_matches("TASUKI_");
            let key = key.replace("__", ".").to_lowercase();
            answer.is_refused(2, &[&key]);
            assert!(!answer.err.contains("swordfish"), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn status_of_a_platform_that_does_not_run_is_refused() {
    let world = World::new();
    for words in [&["status"][..], &["status", "--wait", "300ms"]] {
        let answer = world.run(world.command(words)).await;
        answer.is_refused(1, &["tasuki up"]);
    }
}

#[tokio::test]
async fn serve_gives_up_on_a_database_that_does_not_answer() {
    let world = World::new();
    let mut command = world.command(&["serve", "system"]);
    command
        .env(
            "TASUKI_DATABASE__URL",
            "postgres://u:swordfish@127.0.0.1:1/d",
        )
        .env("TASUKI_NATS__URL", "nats://127.0.0.1:1")
        .env("TASUKI_REDIS__URL", "redis://127.0.0.1:1")
        .env("TASUKI_DATABASE__ACQUIRE_TIMEOUT", "300ms")
        .env("TASUKI_DATABASE__START_TIMEOUT", "300ms");

    let answer = world.run(command).await;

    answer.is_refused(1, &["database"]);
    assert!(!answer.err.contains("swordfish"), "{answer:?}");
}

#[tokio::test]
async fn serve_is_refused_on_a_taken_port_and_on_a_database_that_was_not_migrated() {
    let world = World::new();
    let up = world.up().await;

    let address = up.env.get("SYSTEM_URL").trim_start_matches("http://");
    let mut command = world.joined(&["serve", "system"]);
    command.env("TASUKI_SYSTEM__SERVER__LISTEN", address);
    let taken = world.run(command).await;
    taken.is_refused(1, &[address, "system.server.listen"]);

    let (server, _) = up.env.get("DATABASE_URL").rsplit_once('/').unwrap();
    let mut command = world.command(&["serve", "system"]);
    command
        .envs(up.env.iter())
        .env("TASUKI_DATABASE__URL", format!("{server}/postgres"));
    let old = world.run(command).await;
    old.is_refused(1, &["tasuki migrate", "system"]);
}

#[tokio::test]
async fn up_is_refused_when_the_port_of_a_service_is_taken() {
    let world = World::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = world.command(&["up"]);
    command.env("TASUKI_SYSTEM__SERVER__LISTEN", &address);

    let answer = world.run(command).await;

    answer.is_refused(1, &[&address, "system.server.listen"]);
    assert!(!world.env_path().exists());
    eventually("all servers are gone", async || {
        world.holders().is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn up_is_refused_when_the_port_of_a_server_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (server, name) in [
        ("POSTGRES", "PostgreSQL"),
        ("NATS", "NATS"),
        ("REDIS", "Redis"),
    ] {
        let world = World::new();
        let mut command = world.command(&["up"]);
        command.env(format!("TASUKI_STACK__{server}_PORT"), &port);

        let answer = world.run(command).await;

        answer.is_refused(1, &[name, &port]);
        assert!(!world.env_path().exists());
    }
}

#[tokio::test]
async fn up_is_refused_when_its_folders_can_t_be_written() {
    let world = World::new();
    world.file("file", "a file, not a folder");
    for name in ["DATA", "RUN"] {
        let mut command = world.command(&["up"]);
        let dir = world.path(&format!("file/{name}"));
        command.env(format!("TASUKI_STACK__{name}_DIR"), &dir);

        let answer = world.run(command).await;

        let file = world.path("file").display().to_string();
        answer.is_refused(1, &[&file]);
        let sentence = answer.err.to_lowercase();
        assert_eq!(sentence.matches("not a directory").count(), 1, "{sentence}");
    }
}

#[tokio::test]
async fn up_is_refused_when_a_server_s_program_is_missing() {
    let world = World::new();
    let programs = world.path("bin");
    fs::create_dir(&programs).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let mut seen = BTreeSet::new();
    for folder in std::env::split_paths(&path) {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            if name != OsStr::new("nats-server") && seen.insert(name.clone()) {
                symlink(entry.path(), programs.join(name)).unwrap();
            }
        }
    }
    let mut command = world.command(&["up"]);
    command
        .env("PATH", &programs)
        .env("TASUKI_STACK__TOOLS_DIR", world.path("no-tools"));

    let answer = world.run(command).await;

    answer.is_refused(1, &["nats-server", "scripts/setup"]);
    assert!(!world.env_path().exists());
}
