//! Version, completions and help.

use crate::support::World;

#[tokio::test]
async fn every_command_has_help() {
    let world = World::new();
    let commands = [
        "",
        "up",
        "serve",
        "migrate",
        "config",
        "config show",
        "config check",
        "status",
        "apikey",
        "apikey create",
        "apikey list",
        "apikey revoke",
        "token",
        "token sign",
        "token rotate",
        "outbox",
        "outbox list",
        "outbox show",
        "outbox retry",
        "outbox cleanup",
        "outbox reconcile",
        "dlq",
        "dlq list",
        "dlq show",
        "dlq redrive",
        "dlq discard",
        "saga",
        "saga list",
        "saga show",
        "saga resume",
        "saga retry",
        "saga skip",
        "saga close",
        "twopc",
        "twopc list",
        "twopc show",
        "twopc resolve",
        "verify",
        "demo",
        "version",
        "completions",
    ];
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let answer = world.run(world.command(&words)).await;
        assert_eq!(answer.err, "", "{command}");
        assert!(answer.ok().contains("Usage: tasuki"), "{command}");
    }
}

#[tokio::test]
async fn the_version_is_for_people_and_for_scripts() {
    let world = World::new();

    let text = world.run(world.command(&["version"])).await.ok();
    let json = world.run(world.command(&["version", "--json"])).await;

    let json = json.json();
    let version = json["version"].as_str().unwrap();
    assert_eq!(text, format!("tasuki {version}\n"));
}

#[tokio::test]
async fn completions_know_every_command() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = world.run(world.command(&["completions", shell])).await.ok();
        for command in [
            "up", "serve", "migrate", "status", "apikey", "token", "outbox", "dlq", "saga",
            "twopc", "verify",
        ] {
            assert!(script.contains(command), "{shell} {command}");
        }
    }
}

#[tokio::test]
async fn a_wrong_command_line_exits_2() {
    let world = World::new();
    let id = "01930000-0000-7000-8000-00000000000a";
    let wrong: [&[&str]; 15] = [
        &[],
        &["nothing"],
        &["serve"],
        &["serve", "nothing"],
        &["status", "--wait", "soon"],
        &["saga", "show", "nonsense"],
        &["saga", "resume", id],
        &["saga", "resume", id, "--all", "--reason", "x"],
        &["saga", "resume", id, "--saga", "order", "--reason", "x"],
        &["saga", "close", id, "--reason", "x"],
        &[
            "saga",
            "close",
            id,
            "--completed",
            "--compensated",
            "--reason",
            "x",
        ],
        &[
            "saga", "skip", id, "--step", "a", "--output", "{", "--reason", "x",
        ],
        &["saga", "list", "--limit", "0"],
        &["twopc", "resolve", id, "--reason", "x"],
        &[
            "twopc", "resolve", id, "--commit", "--abort", "--reason", "x",
        ],
    ];
    for words in wrong {
        let answer = world.run(world.command(words)).await;
        assert_eq!(answer.code, Some(2), "{words:?}: {answer:?}");
        assert_eq!(answer.out, "", "{words:?}");
    }
}
