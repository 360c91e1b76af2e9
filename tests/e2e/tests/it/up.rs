//! The life of one `tasuki up`: what it says, and that it takes everything back.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tasuki_testkit::eventually;

use crate::support::{Env, Up, World, is_alive};

#[tokio::test]
async fn up_tells_how_to_go_on_once_it_is_ready_and_takes_it_all_back_at_the_end() {
    let world = World::new();
    let mut up = world.up().await;

    // The file is there only when everything is ready: no second try.
    let ready = world.ask(&up.url("/readyz"), "", &[]).await.unwrap();
    assert_eq!(ready.status, 200, "{ready:?}");
    the_file_is_the_owners_and_a_shell_reads_it(&world, &up).await;
    the_processes_are_as_told(&world, &up.env);
    the_screen_is_complete_and_its_curl_works_when_pasted(&world, &up).await;
    let wait = ["status", "--wait", "60s"];
    let status = world.run(world.command(&wait)).await.ok();
    assert!(status.contains("is ok"), "{status}");
    let migrated = world.run(world.joined(&["migrate", "--check"])).await;
    assert_eq!(migrated.code, Some(0), "{migrated:?}");

    up.process.signal(Signal::TERM);

    let answer = up.process.ended().await;
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(answer.err, "starting …\nstopping …\nstopped\n");
    assert!(!world.env_path().exists());
    assert_eq!(world.holders(), []);
}

async fn the_file_is_the_owners_and_a_shell_reads_it(world: &World, up: &Up) {
    let mode = fs::metadata(world.env_path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let names = [
        "SYSTEM_URL",
        "DATABASE_URL",
        "NATS_URL",
        "REDIS_URL",
        "OPERATOR_TOKEN",
        "POSTGRES_PID",
        "NATS_PID",
        "REDIS_PID",
        "PID",
    ];
    for name in names {
        assert_ne!(up.env.get(name), "", "{name}");
    }
    let script = ". \"$0\" && env";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(world.env_path()).env_clear();
    let sourced = output(&mut shell);
    for (name, value) in up.env.iter() {
        let line = format!("{name}={value}");
        assert!(sourced.lines().any(|found| found == line), "{name}");
    }

    // The names are reserved: a shell that sourced them can still run everything.
    let mut command = world.command(&["config", "check"]);
    command.envs(up.env.iter());
    world.run(command).await.ok();
}

fn the_processes_are_as_told(world: &World, env: &Env) {
    let holders: Vec<u32> = world.holders().into_iter().map(|(pid, _)| pid).collect();
    for name in ["POSTGRES_PID", "NATS_PID", "REDIS_PID", "PID"] {
        let pid = env.pid(name);
        assert!(is_alive(pid), "{name}");
        assert!(holders.contains(&pid), "{name}: {pid} of {holders:?}");
    }
}

async fn the_screen_is_complete_and_its_curl_works_when_pasted(world: &World, up: &Up) {
    let screen = eventually("the screen is shown", async || {
        let screen = up.process.stdout();
        screen.contains("Ctrl-C stops everything").then_some(screen)
    })
    .await;
    assert!(!screen.contains('\x1b'), "colours in a file: {screen}");
    let env_path = world.env_path();
    for part in [
        up.env.get("SYSTEM_URL"),
        up.env.get("ENTITLEMENT_URL"),
        up.env.get("API_KEY"),
        up.token(),
        env_path.to_str().unwrap(),
    ] {
        assert!(screen.contains(part), "{part} is not in {screen}");
    }
    let line = screen.lines().find(|line| line.contains("curl ")).unwrap();
    // A machine that is busy with the start may say so; the same line can be pasted again.
    let pasted = eventually("it is answered", async || {
        let pasted = output(Command::new("sh").args(["-c", line]));
        (!pasted.contains("UNAVAILABLE")).then_some(pasted)
    })
    .await;
    let granted: Value = serde_json::from_str(&pasted).unwrap();
    assert_eq!(granted["status"], "ACTIVE", "{pasted}");
    let again = output(Command::new("sh").args(["-c", line]));
    assert_eq!(again, pasted, "a repeated request gets the first answer");
    // On a loaded machine a server may be late with its first answer, and is told as such.
    let status = eventually("all is well", async || {
        let status = world.get(&up.url("/v1/status"), up.token()).await.body;
        (status["overall"] == "ok").then_some(status)
    })
    .await;
    let servers = status["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 3);
    assert!(servers.iter().all(|server| server["reachable"] == true));
}

#[tokio::test]
async fn a_second_up_on_the_same_folder_is_refused_and_harms_nothing() {
    let world = World::new();
    let mut up = world.up().await;
    let log = || fs::read_to_string(world.path("run/tasuki.log")).unwrap();
    let before = log();

    let second = world.run(world.command(&["up"])).await;
    let mut elsewhere = world.command(&["up"]);
    elsewhere.env("TASUKI_STACK__RUN_DIR", world.path("other"));
    let third = world.run(elsewhere).await;

    let pid = up.process.pid().to_string();
    second.is_refused(1, &[&pid, world.path("run").to_str().unwrap()]);
    third.is_refused(1, &[&pid, world.path("data").to_str().unwrap()]);
    assert_eq!(Env::read(&world.env_path()), Some(up.env.clone()));
    assert!(log().starts_with(&before), "its log was begun anew");
    assert_eq!(world.get(&up.url("/readyz"), "").await.status, 200);
    // Who names another platform gets an answer about that one, whatever runs here.
    let mut other = world.command(&["status"]);
    other
        .env("TASUKI_SYSTEM_URL", "http://127.0.0.1:1")
        .env("TASUKI_OPERATOR_TOKEN", "tso_x");
    world
        .run(other)
        .await
        .is_refused(1, &["http://127.0.0.1:1"]);
    up.process.signal(Signal::TERM);
    assert_eq!(up.process.ended().await.code, Some(0));
}

#[tokio::test]
async fn ctrl_c_reaches_only_us_and_everything_stops_in_order() {
    let world = World::new();
    let mut up = world.up().await;

    up.process.signal_group(Signal::INT);

    assert_eq!(up.process.ended().await.code, Some(0));
    assert_eq!(world.holders(), []);
    let log = postgres_log(&world.path("data"));
    let last = log.lines().last().unwrap_or_default();
    assert!(last.contains("database system is shut down"), "{log}");
    // A server that was told by the terminal itself would have cut our connections.
    let ours = fs::read_to_string(world.path("run/tasuki.log")).unwrap();
    assert!(!ours.contains(r#""level":"ERROR""#), "{ours}");

    let again = world.up().await;
    let log = postgres_log(&world.path("data"));
    assert!(log.contains("database system was shut down at"), "{log}");
    for sign in ["not properly shut down", "recovery", "interrupted"] {
        assert!(!log.contains(sign), "{sign}: {log}");
    }
    drop(again);
}

fn postgres_log(data: &Path) -> String {
    fs::read_to_string(data.join("postgres.log")).unwrap()
}

#[track_caller]
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}
