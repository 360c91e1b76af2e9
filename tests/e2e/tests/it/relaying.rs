//! The relay as an operator sees it: where it is, which topics it takes, who is banned.

use std::time::Duration;

use serde_json::{Value, json};
use tasuki_testkit::eventually_within;

use crate::support::{Answer, World};

/// `tasuki relay …`, by Ann.
pub(crate) async fn relay(world: &World, words: &[&str]) -> Answer {
    let words: Vec<&str> = ["relay"].iter().chain(words).copied().collect();
    let mut command = world.joined(&words);
    command.env("USER", "ann");
    world.run(command).await
}

async fn asked(world: &World, words: &[&str]) -> Value {
    relay(world, &[words, &["--json"]].concat()).await.json()
}

#[tokio::test]
async fn the_relay_is_where_it_says_and_takes_what_operators_say() {
    let world = World::new();
    let up = world.up().await;
    let (api, address) = (up.env.get("COMMUNITY_URL"), up.env.get("RELAY_URL"));
    assert_eq!(address.strip_prefix("ws"), api.strip_prefix("http"));
    let asked_for = reqwest::Client::new()
        .get(api)
        .header("accept", "application/nostr+json");
    let info: Value = asked_for.send().await.unwrap().json().await.unwrap();
    assert_eq!(info["name"], "tasuki", "{info}");

    assert_eq!(asked(&world, &["topics"]).await, json!({"topics": []}));
    let disable = ["disable", "Spam", "--reason", "nothing but spam"];
    assert_eq!(relay(&world, &disable).await.ok(), "1 disabled\n");
    let topics = asked(&world, &["topics"]).await;
    let topic = &topics["topics"][0];
    assert_eq!(
        (&topic["topic"], &topic["enabled"]),
        (&json!("spam"), &json!(false))
    );
    assert_eq!(topic["said"]["actor"], "cli:ann");
    assert_eq!(
        relay(&world, &["enable", "spam", "--reason", "x"])
            .await
            .ok(),
        "1 enabled\n"
    );
    assert!(relay(&world, &["topics"]).await.ok().contains("enabled"));
    let policy = ["policy", "Spam", "--priority", "low", "--backfill", "off"];
    let more = [
        "--rate",
        "60",
        "--capacity",
        "500",
        "--reason",
        "much of it",
    ];
    let changed = relay(&world, &[&policy[..], &more].concat()).await.ok();
    assert_eq!(changed, "1 changed\n");
    let rate = ["policy", "spam", "--rate", "0", "--reason", "x"];
    assert_eq!(relay(&world, &rate).await.ok(), "1 changed\n");
    let topic = &asked(&world, &["topics"]).await["topics"][0];
    let said = ["priority", "backfill", "events_per_minute", "capacity"].map(|it| &topic[it]);
    let wanted = [json!("low"), json!(false), json!(0), json!(500)];
    assert_eq!(said, wanted.each_ref(), "{topic}");
    let nothing = relay(&world, &["policy", "spam", "--reason", "x"]).await;
    assert_eq!(nothing.code, Some(2), "{nothing:?}");

    let ban = ["ban", "203.0.113.7", "--for", "7d", "--reason", "a flood"];
    assert_eq!(relay(&world, &ban).await.ok(), "1 banned\n");
    let bans = asked(&world, &["bans"]).await;
    assert_eq!(bans["bans"][0]["subject"], "203.0.113.7");
    assert!(bans["bans"][0]["until"].is_string(), "{bans}");
    let unban = ["unban", "203.0.113.7", "--reason", "x"];
    assert_eq!(relay(&world, &unban).await.ok(), "1 let in again\n");
    let again = relay(&world, &unban).await.ok();
    assert!(again.starts_with("0 let in again\n"), "{again}");
    let wrong = relay(&world, &["ban", "nobody", "--reason", "x"]).await;
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.err.contains("neither a key"), "{wrong:?}");
    assert_eq!(asked(&world, &["limits"]).await["filters"], "10");
}

#[tokio::test]
async fn a_consumer_is_listed_set_back_and_rebuilt() {
    let world = World::new();
    let _up = world.up().await;
    let consumer = async |line: &str| {
        let words: Vec<&str> = ["consumer"].into_iter().chain(line.split(' ')).collect();
        world.run(world.joined(&words)).await
    };
    eventually_within(Duration::from_secs(30), "the index follows", async || {
        let listed = consumer("list --json").await.json();
        (listed["consumers"][0]["name"] == "index-v1").then_some(())
    })
    .await;
    let preview = consumer("replay index-v1 --to 0 --preview --reason x")
        .await
        .ok();
    assert_eq!(preview, "index-v1 would handle 0 rows again\n");
    consumer("replay index-v1 --to 7 --preview --reason x")
        .await
        .is_refused(1, &["the log ends at 0"]);
    assert_eq!(
        consumer("replay index-v1 --to 0 --reason x").await.ok(),
        "index-v1 goes on after 0\n"
    );
    let rebuilt = consumer("rebuild index-v1 --reason x").await.ok();
    assert!(
        rebuilt.starts_with("index-v1 makes its store anew"),
        "{rebuilt}"
    );
    let shown = consumer("show index-v1 --json").await.json();
    let trail: Vec<_> = shown["trail"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["action"])
        .collect();
    assert_eq!(trail, ["REPLAY", "REBUILD"]);
    consumer("replay nobody --to 0 --reason x")
        .await
        .is_refused(1, &["nobody"]);
}

#[tokio::test]
async fn what_an_operator_labels_is_told_to_its_author() {
    let world = World::new();
    let up = world.up().await;
    let keys = asked(&world, &["keys"]).await;
    let key = keys["moderation"].as_str().unwrap();
    assert_eq!((key.len(), keys.as_object().unwrap().len()), (64, 3));

    let author = "ab".repeat(32);
    let target = format!("pubkey:{author}");
    let add = ["label", "add", &target, "--label", "spam", "--for", "1d"];
    let why = ["--topic", "run", "--reason", "nothing but spam"];
    let given = asked(&world, &[&add[..], &why].concat()).await;
    let label = &given["labels"][0];
    assert_eq!(
        (&label["actor"], &label["active"]),
        (&json!("cli:ann"), &json!(true))
    );
    let inbox = up.env.get("NOTIFICATION_URL");
    let inbox = format!("{inbox}/debug/notification/inbox/{author}");
    let told = async |what: &str| {
        eventually_within(Duration::from_secs(60), "the author is told", async || {
            let request = reqwest::Client::new()
                .get(&inbox)
                .bearer_auth(up.env.get("OPERATOR_TOKEN"));
            let inbox: Value = request.send().await.unwrap().json().await.unwrap();
            let all = inbox["notifications"].as_array()?;
            all.iter().any(|it| it["type"] == what).then_some(())
        })
        .await;
    };
    told("ContentLabelled").await;
    let again = relay(&world, &[&add[..], &why].concat()).await;
    again.is_refused(1, &["the target has this label already"]);
    let id = label["label_id"].as_str().unwrap();
    let withdraw = ["label", "withdraw", id, "--reason", "mistaken"];
    assert!(relay(&world, &withdraw).await.ok().contains("withdrawn"));
    told("LabelWithdrawn").await;
    assert_eq!(relay(&world, &["label", "list"]).await.ok(), "no labels\n");

    let add = [
        "rule",
        "add",
        "--keyword",
        "buy",
        "--label",
        "spam",
        "--for",
        "30d",
    ];
    let opened = asked(
        &world,
        &[&add[..], &["--tag", "client=bot", "--reason", "x"]].concat(),
    )
    .await;
    let rule = &opened["rules"][0];
    assert_eq!(rule["rule"]["tags"], json!([["client", "bot"]]));
    let id = rule["rule_id"].as_str().unwrap();
    let close = ["rule", "close", id, "--reason", "x"];
    assert!(relay(&world, &close).await.ok().contains("spam"));
    let none = "no rules: nothing is labelled by itself\n";
    assert_eq!(relay(&world, &["rule", "list"]).await.ok(), none);
}
