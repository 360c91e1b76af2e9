//! What nobody should send: it is answered or cut, and the relay goes on.

use nostr::Keys;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Client, World, event, note, now};

/// Messages that mean nothing, one a line.
const NONSENSE: &str = r##"x
{
[
]
null
true
7
"EVENT"
{}
[]
[[]]
[{}]
[null]
[1]
[""]
["event"]
["EVENT"]
["EVENT",null]
["EVENT",7]
["EVENT",[]]
["EVENT",{}]
["EVENT","x"]
["EVENT",{"id":7}]
["EVENT",{"id":"🏃"}]
["REQ"]
["REQ",7]
["REQ",null,{}]
["REQ","",{}]
["REQ","a"]
["REQ","a",null]
["REQ","a",[]]
["REQ","a",{"ids":7}]
["REQ","a",{"ids":["x"]}]
["REQ","a",{"kinds":["1"]}]
["REQ","a",{"limit":-1}]
["REQ","a",{"since":1e99}]
["REQ","a",{"#e":{}}]
["REQ","a",{"#":[]}]
["REQ","a",{"\u0000":[]}]
["COUNT"]
["COUNT","a"]
["COUNT","a",7]
["AUTH"]
["AUTH","x"]
["AUTH",{}]
["CLOSE"]
["CLOSE",7]
["OK","a",true,""]
["NOTICE","x"]"##;

/// More than fifty of them.
fn nonsense() -> Vec<String> {
    let (deep, long, id) = ("[".repeat(10_000), "x".repeat(1_000), "ab".repeat(32));
    let many = vec!["\"x\""; 5_000].join(",");
    let mut all: Vec<_> = NONSENSE.lines().map(str::to_owned).collect();
    all.extend([
        String::new(),
        " ".to_owned(),
        "\u{feff}[\"CLOSE\",\"a\"]".to_owned(),
        format!("[\"EVENT\",{deep}]"),
        format!("[\"REQ\",\"{long}\",{{}}]"),
        format!("[\"EVENT\",{{\"id\":\"{id}\",\"created_at\":18446744073709551616}}]"),
        format!("[\"REQ\",\"a\",{{\"#t\":[{many}]}}]"),
        deep,
    ]);
    assert!(all.len() > 50, "{}", all.len());
    all
}

#[tokio::test]
async fn whatever_is_said_is_answered_and_the_connection_goes_on() {
    let world = World::start().await;
    let mut client = world.client().await;
    for text in nonsense() {
        let text = text.as_str();
        client.say_raw(text).await;
        let answer = client.hear().await;
        let verb = answer[0].as_str().unwrap();
        let shown: String = text.chars().take(60).collect();
        let is_refusal = match verb {
            "NOTICE" => true,
            "OK" => answer[2] == json!(false),
            "CLOSED" => answer[2].as_str().unwrap().contains(": "),
            _ => false,
        };
        assert!(is_refusal, "{shown} was answered with {answer}");
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
async fn a_thousand_idle_clients_do_not_keep_others_from_being_served() {
    let world = World::start().await;
    let mut idle = Vec::new();
    for _ in 0..1_000 {
        idle.push(world.client().await);
    }
    let mut client = world.client().await;
    let note = note(&Keys::generate(), now());
    let began = std::time::Instant::now();
    client.store(&note).await;
    assert_eq!(client.find(&[json!({})]).await.len(), 1);
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    drop(idle);
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
