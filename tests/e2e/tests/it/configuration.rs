//! `tasuki config`: what is in force, where it came from, and that secrets stay hidden.

use crate::support::World;

#[tokio::test]
async fn config_show_says_where_a_value_came_from_and_hides_passwords() {
    let world = World::new();
    let file = world.file(
        "tasuki.toml",
        "[database]\nurl = 'postgres://u:in-a-file@h/d'\nmax-connections = 7\n\
         [redis]\nurl = 'redis://:without-a-user@h:1'\n",
    );
    let asked = [&["config", "show"][..], &["config", "show", "--json"]];
    for words in asked {
        let mut command = world.command(words);
        command
            .args(["--config", &file])
            .env("TASUKI_NATS__URL", "nats://u:in-the-environment@h:1")
            .env("TASUKI_HTTP__MAX_BODY", "2MiB");
        let shown = world.run(command).await.ok();

        for secret in ["in-a-file", "without-a-user", "in-the-environment"] {
            assert!(!shown.contains(secret), "{secret}: {shown}");
        }
        for kept in ["postgres://u:", "@h/d", "2MiB"] {
            assert!(shown.contains(kept), "{kept}: {shown}");
        }
        if !words.contains(&"--json") {
            let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap();
            assert!(line("max-connections = 7").contains(&file), "{shown}");
            assert!(line("max-body").contains("TASUKI_HTTP__MAX_BODY"));
            assert!(!line("grace").contains("from"), "a default: {shown}");
        }
    }
}

#[tokio::test]
async fn config_show_hides_a_secret_wherever_an_address_may_have_one() {
    let world = World::new();
    let addresses = [
        (
            "TASUKI_DATABASE__URL",
            "postgres://h/d?user=u&password=swordfish",
        ),
        ("TASUKI_DATABASE__URL", "postgres://u:sword/swordfish@h/d"),
        ("TASUKI_SYSTEM__DATABASE__URL", "postgres://u:swordfish@h/d"),
        ("TASUKI_NATS__URL", "nats://swordfish@h:4222"),
        (
            "TASUKI_NATS__URL",
            "nats://u:p@h:4222,nats://u:swordfish@i:4222",
        ),
        ("TASUKI_REDIS__URL", "redis://:swordfish@h"),
    ];
    for (name, address) in addresses {
        for format in [&[][..], &["--json"]] {
            let mut command = world.command(&["config", "show"]);
            command.args(format).env(name, address);
            let shown = world.run(command).await.ok();
            assert!(!shown.contains("swordfish"), "{address}: {shown}");
        }
    }
}

#[tokio::test]
async fn the_environment_wins_over_the_file_and_the_env_file_over_both() {
    let world = World::new();
    let file = world.file(
        "tasuki.toml",
        "[shutdown]\ngrace = '1s'\ndrain-delay = '1s'\n",
    );
    let env = world.file("env", "export TASUKI_SHUTDOWN__GRACE='3s'\n");
    let mut command = world.command(&["config", "show", "--json"]);
    command
        .args(["--env-file", &env])
        .env("TASUKI_CONFIG", &file)
        .env("TASUKI_SHUTDOWN__GRACE", "2s")
        .env("TASUKI_SHUTDOWN__DRAIN_DELAY", "2s");

    let shown = world.run(command).await.json();

    assert_eq!(shown["shutdown"]["grace"], "3s");
    assert_eq!(shown["shutdown"]["drain-delay"], "2s");
}

#[tokio::test]
async fn the_defaults_are_a_file_that_is_accepted_unchanged() {
    let world = World::new();
    let show = ["config", "show", "--defaults"];
    let defaults = world.run(world.command(&show)).await.ok();
    let parsed: toml::Table = defaults.parse().unwrap();
    assert!(parsed.contains_key("database"), "{defaults}");
    let file = world.file("tasuki.toml", &defaults);

    let check = ["config", "check", "--config", &file];
    let checked = world.run(world.command(&check)).await.ok();

    let missing = "not set, and `tasuki serve` needs them: database.url, nats.url, redis.url";
    assert_eq!(checked, format!("no setting is wrong\n{missing}\n"));
    let json = world.run(world.command(&["config", "check", "--json"]));
    assert_eq!(json.await.json()["not_set"][0], "database.url");
}
