//! What nobody should send: it is answered or cut, and the relay goes on.

use nostr::Keys;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Client, World, event, memory, note, now};

/// What can't be said to be about anything: `NOTICE`. One a line.
const NOTICES: &str = r##"x
{
[
]
null
true
7
-0
"EVENT"
{}
[]
[[]]
[{}]
[null]
[1]
[""]
["event"]
["EVENT ",{}]
["REQ","a",{}
["REQ","a",{}]]
["REQ","a",{}]["REQ","b",{}]
["REQ","a",{},]
["REQ",'a',{}]
["REQ"]
["REQ",7]
["REQ",null,{}]
["REQ",{},{}]
["REQ",["a"],{}]
["REQ","\ud800",{}]
["COUNT"]
["COUNT",7,{}]
["CLOSE"]
["CLOSE",7]
["CLOSE",null]
["OK","a",true,""]
["EOSE","a"]
["NOTICE","x"]
["NEG-OPEN","a",{},""]"##;

/// Events that are none, and proofs: `OK` with `false`.
const REFUSED: &str = r##"["EVENT"]
["EVENT",null]
["EVENT",7]
["EVENT",[]]
["EVENT",{}]
["EVENT","x"]
["EVENT",true]
["EVENT",{"id":7}]
["EVENT",{"id":null}]
["EVENT",{"id":"🏃"}]
["EVENT",{"id":"","pubkey":"","created_at":0,"kind":0,"tags":[],"content":"","sig":""}]
["EVENT",["","",0,0,[],"",""]]
["EVENT",{"content":"\ud800"}]
["EVENT",{"id":1,"id":2}]
["EVENT",[{}]]
["AUTH"]
["AUTH","x"]
["AUTH",{}]
["AUTH",7]"##;

/// Subscriptions and counts that can't be: `CLOSED`.
const CLOSED: &str = r###"["REQ","",{}]
["REQ","a"]
["REQ","a",null]
["REQ","a",[]]
["REQ","a",7]
["REQ","a","{}"]
["REQ","a",{},null]
["REQ","a",{"ids":7}]
["REQ","a",{"ids":null}]
["REQ","a",{"ids":{}}]
["REQ","a",{"ids":["x"]}]
["REQ","a",{"ids":[null]}]
["REQ","a",{"authors":["npub1xyz"]}]
["REQ","a",{"kinds":["1"]}]
["REQ","a",{"kinds":[1e99]}]
["REQ","a",{"kinds":[99999999999999999999]}]
["REQ","a",{"limit":-1}]
["REQ","a",{"limit":"1"}]
["REQ","a",{"limit":null}]
["REQ","a",{"since":1e99}]
["REQ","a",{"since":null}]
["REQ","a",{"until":-9223372036854775809}]
["REQ","a",{"search":null}]
["REQ","a",{"#e":{}}]
["REQ","a",{"#e":[""]}]
["REQ","a",{"#t":[["a"]]}]
["REQ","a",{"#":[]}]
["REQ","a",{"##":[]}]
["REQ","a",{"\u0000":[]}]
["REQ","a",{"":[]}]
["REQ","a",{"IDS":[]}]
["REQ","a",{"$where":"1"}]
["COUNT","a"]
["COUNT","a",7]
["COUNT","a",{"kinds":[{}]}]
["COUNT","",{}]"###;

/// More than ninety, each with the way in which it is answered.
fn nonsense() -> Vec<(&'static str, String)> {
    let lists = [("NOTICE", NOTICES), ("OK", REFUSED), ("CLOSED", CLOSED)];
    let lines = lists.into_iter().flat_map(|(verb, list)| {
        let lines = list.lines();
        lines.map(move |line| (verb, line.to_owned()))
    });
    let mut all: Vec<_> = lines.collect();
    let (long, id) = ("x".repeat(1_000), "ab".repeat(32));
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let many = |what: &str, count: usize| vec![what; count].join(",");
    all.extend([
        ("NOTICE", String::new()),
        ("NOTICE", " ".to_owned()),
        ("NOTICE", "\u{0}".to_owned()),
        ("NOTICE", "\u{feff}[\"CLOSE\",\"a\"]".to_owned()),
        ("NOTICE", "[".repeat(100_000)),
        ("NOTICE", nested(10_000)),
        (
            "NOTICE",
            format!("[{}]", many("\"EVENT\"", 10).replace("EVENT", &long)),
        ),
        ("OK", format!("[\"EVENT\",{}]", nested(10_000))),
        ("OK", format!("[\"EVENT\",{{\"tags\":{}}}]", nested(10_000))),
        (
            "OK",
            format!("[\"EVENT\",{{\"id\":\"{id}\",\"created_at\":18446744073709551616}}]"),
        ),
        (
            "OK",
            format!(
                "[\"EVENT\",{{\"id\":\"{id}\",\"kind\":{}}}]",
                "9".repeat(10_000)
            ),
        ),
        ("CLOSED", format!("[\"REQ\",\"{long}\",{{}}]")),
        (
            "CLOSED",
            format!("[\"REQ\",\"a\",{{\"#t\":[{}]}}]", many("\"x\"", 5_000)),
        ),
        (
            "CLOSED",
            format!("[\"REQ\",\"a\",{{\"kinds\":[{}]}}]", many("1", 50_000)),
        ),
        (
            "CLOSED",
            format!("[\"REQ\",\"a\",{{\"ids\":{}}}]", nested(1_000)),
        ),
        ("CLOSED", format!("[\"REQ\",\"a\",{}]", many("{}", 10_000))),
        ("CLOSED", format!("[\"REQ\",\"a\",{{\"{long}\":[]}}]")),
        (
            "CLOSED",
            format!(
                "[\"REQ\",\"a\",{{\"search\":\"{}\"}}]",
                "word ".repeat(10_000)
            ),
        ),
    ]);
    assert!(all.len() > 90, "{}", all.len());
    all
}

#[tokio::test]
async fn whatever_is_said_is_answered_and_the_connection_goes_on() {
    let world = World::start().await;
    let mut client = world.client().await;
    for (verb, text) in nonsense() {
        let text = text.as_str();
        client.say_raw(text).await;
        let answer = client.hear().await;
        let shown: String = text.chars().take(60).collect();
        assert_eq!(answer[0], json!(verb), "{shown} was answered with {answer}");
        let words = match verb {
            "OK" => {
                assert_eq!(answer[2], json!(false), "{shown}");
                &answer[3]
            }
            "CLOSED" => &answer[2],
            _ => &answer[1],
        };
        let prefix = words.as_str().unwrap().split(": ").next().unwrap();
        assert!(["invalid", "unsupported"].contains(&prefix), "{answer}");
        assert!(answer.to_string().len() < 1_000, "{shown} was repeated");
    }
    client.send(Message::binary(vec![0; 100])).await;
    assert_eq!(client.hear().await[0], json!("NOTICE"));
    client.store(&note(&Keys::generate(), now())).await;
}

#[tokio::test]
async fn a_message_that_is_too_long_ends_its_connection_and_no_other() {
    let world = World::start().await;
    let (mut client, mut other) = (world.client().await, world.client().await);
    client.say_raw(&"x".repeat(300_000)).await;
    let mut said = Vec::new();
    let end = loop {
        match client.heard().await {
            Ok(message) => said.push(message),
            Err(end) => break end,
        }
    };
    if let Some(frame) = end {
        assert_eq!(u16::from(frame.code), 1009, "{said:?}");
    }
    other.store(&note(&Keys::generate(), now())).await;
}

#[tokio::test]
async fn a_thousand_idle_clients_cost_little_and_do_not_keep_others_from_being_served() {
    let world = World::start().await;
    let (mut client, keys) = (world.client().await, Keys::generate());
    client.store(&note(&keys, now() - 100)).await;
    let before = memory();
    let mut idle = Vec::new();
    for _ in 0..1_000 {
        idle.push(world.client().await);
    }
    for (n, other) in idle.iter_mut().enumerate() {
        other
            .subscribe("mine", &[json!({"kinds": [7], "since": n})])
            .await;
    }
    // Of both ends of a connection; the end of the client keeps 128 KiB ready to read into.
    let each = memory().saturating_sub(before) / 1_000;
    println!("an idle client costs {each} KiB, both ends together");
    assert!(each < 200, "{each} KiB");
    let mut best = std::time::Duration::MAX;
    for n in 0..5 {
        let began = std::time::Instant::now();
        client.store(&note(&keys, now() - n)).await;
        best = best.min(began.elapsed());
    }
    assert!(best.as_millis() < 1_000, "{best:?}");
    assert_eq!(client.find(&[json!({})]).await.len(), 6);
    drop(idle);
    // They are forgotten, and come again as often as they like.
    let again = memory();
    for _ in 0..3 {
        let mut more = Vec::new();
        for _ in 0..300 {
            more.push(world.client().await);
        }
    }
    client.store(&note(&keys, now() - 10)).await;
    let grown = memory().saturating_sub(again) / 1024;
    assert!(
        grown < 100,
        "{grown} MiB more after nine hundred came and went"
    );
}

#[tokio::test]
async fn a_flood_is_refused_word_by_word_and_others_are_served() {
    let world = World::with(|config| {
        let config = config
            .with_value("community.limits.events-per-minute", 20)
            .unwrap();
        let config = config
            .with_value("http.trusted-proxies", "127.0.0.1")
            .unwrap();
        config
            .with_value("community.limits.reqs-per-minute", 20)
            .unwrap()
    })
    .await;
    let mut flood = world.client().await;
    let keys = Keys::generate();
    // Those that are too many cost nobody a signature.
    let said = note(&keys, now());
    let message = json!(["EVENT", said]);
    for _ in 0..2_000 {
        flood.say(&message).await;
    }
    let mut taken = 0;
    for _ in 0..2_000 {
        let answer = flood.hear().await;
        assert_eq!((&answer[0], &answer[1]), (&json!("OK"), &said["id"]));
        let words = answer[3].as_str().unwrap();
        taken += usize::from(answer[2] == json!(true));
        assert!(
            answer[2] == json!(true) || words.starts_with("rate-limited: "),
            "{words}"
        );
    }
    // A token may have come back while the flood went on.
    assert!((20..=40).contains(&taken), "{taken}");
    for verb in ["REQ", "COUNT"] {
        for _ in 0..500 {
            flood.say(&json!([verb, "a", {"kinds": [7]}])).await;
        }
    }
    let (mut done, mut refused) = (0, 0);
    while done + refused < 1_000 {
        let answer = flood.hear().await;
        match answer[0].as_str().unwrap() {
            "CLOSED" => {
                assert!(
                    answer[2].as_str().unwrap().starts_with("rate-limited: "),
                    "{answer}"
                );
                refused += 1;
            }
            // Of one that was replaced before it was done there is no end.
            "EOSE" | "COUNT" => done += 1,
            other => panic!("{other}"),
        }
        if refused >= 900 {
            break;
        }
    }
    assert!(done <= 40, "{done}");
    others_are_served(&world, &said).await;
}

/// Others ask, whatever one has used up; he himself has, on all his connections.
async fn others_are_served(world: &World, said: &Value) {
    let mut again = world.client().await;
    let refused = again.refused(&json!(["REQ", "s", {}])).await;
    assert!(refused.starts_with("rate-limited: "), "{refused}");
    let mut other = Client::from(&world.host, "203.0.113.9").await;
    assert_eq!(
        other.find(&[json!({})]).await,
        [said["id"].as_str().unwrap()]
    );
}

#[tokio::test]
async fn who_says_nothing_but_nonsense_is_cut() {
    let world = World::with(|config| {
        config
            .with_value("community.limits.events-per-minute", 10)
            .unwrap()
    })
    .await;
    for nonsense in [Message::text("[]"), Message::binary(vec![0; 100])] {
        let mut client = world.client().await;
        let mut answered = 0;
        let end = loop {
            client.send(nonsense.clone()).await;
            match client.heard().await {
                Ok(answer) => assert_eq!(answer[0], json!("NOTICE"), "{answer}"),
                Err(end) => break end,
            }
            answered += 1;
            assert!(answered <= 12, "it goes on and on");
        };
        assert!(end.is_none_or(|frame| u16::from(frame.code) == 1008));
    }
    world.client().await.subscribe("a", &[json!({})]).await;
}

#[tokio::test]
async fn monstrous_filters_are_answered_while_others_publish() {
    let world = World::start().await;
    let keys = Keys::generate();
    let mut sender = world.client().await;
    for n in 0..100 {
        sender
            .store(&event(&keys, 1, now() - n, &[&["t", "a"], &["e", "b"]], ""))
            .await;
    }
    let values: Vec<_> = (0..200).map(|n| format!("{n:064x}")).collect();
    let filter = json!({
        "authors": values, "ids": values, "kinds": (0..200).collect::<Vec<_>>(), "#t": values, "#e": values,
        "#p": values, "#a": values, "since": 0, "until": i64::MAX, "limit": u32::MAX,
    });
    let message: Vec<Value> = [json!("REQ"), json!("m")]
        .into_iter()
        .chain(vec![filter; 10])
        .collect();
    let message = Value::Array(message);
    // Too long for one message as it is: told, and cut.
    assert!(message.to_string().len() > 262_144);
    let open: Vec<Value> = [json!("REQ"), json!("m")]
        .into_iter()
        .chain(
            (0..10)
                .map(|n| json!({"#p": &values[..190], "#e": &values[..100 + n], "limit": 1_000})),
        )
        .collect();
    let mut monsters = Vec::new();
    for _ in 0..4 {
        let mut client = Client::of(&world.host).await;
        client.say(&Value::Array(open.clone())).await;
        monsters.push(client);
    }
    sender.store(&note(&keys, now())).await;
    for mut client in monsters {
        assert_eq!(client.hear().await, json!(["EOSE", "m"]));
    }
}

#[tokio::test]
async fn so_many_connections_of_one_address_and_in_all_and_no_more() {
    let world = World::with(|config| {
        config
            .with_value("community.limits.connections-per-minute", 3)
            .unwrap()
    })
    .await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(world.client().await);
    }
    let url = format!("ws://{}/", world.host.api);
    let refused = tokio_tungstenite::connect_async(&url).await.unwrap_err();
    assert!(refused.to_string().contains("429"), "{refused}");

    let world =
        World::with(|config| config.with_value("community.relay.connections", 1).unwrap()).await;
    let first = world.client().await;
    let url = format!("ws://{}/", world.host.api);
    let refused = tokio_tungstenite::connect_async(&url).await.unwrap_err();
    assert!(refused.to_string().contains("503"), "{refused}");
    drop(first);
    tasuki_testkit::eventually("there is room again", async || {
        tokio_tungstenite::connect_async(&url).await.ok()
    })
    .await;
}
