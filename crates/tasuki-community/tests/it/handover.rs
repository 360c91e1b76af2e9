//! From what is stored to what is new: nothing missing, nothing twice, on one process and across two.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nostr::Keys;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Client, World, event, id, note, now};

/// A client that publishes without a pause until it is told to stop; the ids that were taken.
fn flood(mut client: Client, stop: Arc<AtomicBool>) -> JoinHandle<Vec<String>> {
    let keys = Keys::generate();
    #[expect(clippy::disallowed_methods, reason = "the test awaits it")]
    tokio::spawn(async move {
        let mut taken = Vec::new();
        let mut n = 0;
        while !stop.load(Ordering::SeqCst) {
            for _ in 0..20 {
                n += 1;
                client
                    .say(&json!([
                        "EVENT",
                        event(&keys, 1, now(), &[], &n.to_string())
                    ]))
                    .await;
            }
            for _ in 0..20 {
                let answer = client.hear().await;
                assert_eq!(answer[2], json!(true), "{answer}");
                taken.push(answer[1].as_str().unwrap().to_owned());
            }
        }
        taken
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_subscribes_in_a_flood_gets_each_event_once_and_misses_none() {
    let world =
        World::with(|config| config.with_value("community.limits.limit", 10_000).unwrap()).await;
    let elsewhere = world.another().await;
    let stop = Arc::new(AtomicBool::new(false));
    let floods = [
        flood(world.client().await, Arc::clone(&stop)),
        flood(Client::of(&elsewhere).await, Arc::clone(&stop)),
    ];
    // They come one after the other, on both processes, in the middle of it.
    let mut listeners = Vec::new();
    for number in 0..10 {
        let host = if number % 2 == 0 {
            &world.host
        } else {
            &elsewhere
        };
        let mut client = Client::of(host).await;
        client.say(&json!(["REQ", "all", {"limit": LIMIT}])).await;
        let mut heard = Vec::new();
        loop {
            let answer = client.hear().await;
            if answer[0] == json!("EOSE") {
                break;
            }
            heard.push(answer[2].clone());
        }
        listeners.push((client, heard));
    }
    stop.store(true, Ordering::SeqCst);
    let mut taken = Vec::new();
    for flood in floods {
        taken.append(&mut flood.await.unwrap());
    }
    let last = note(&Keys::generate(), now());
    world.client().await.store(&last).await;
    taken.push(id(&last));
    for (client, heard) in listeners {
        // Whoever found as much as may be asked for has not seen what was before.
        let wanted = (heard.len() < LIMIT).then_some(taken.len());
        complete(client, heard, wanted).await;
    }
}

/// Stored events that one filter gets.
const LIMIT: usize = 10_000;

async fn complete(mut client: Client, stored: Vec<Value>, wanted: Option<usize>) {
    let mut times: HashMap<String, usize> = HashMap::new();
    for event in &stored {
        *times.entry(id(event)).or_default() += 1;
    }
    while wanted.is_some_and(|wanted| times.len() < wanted) {
        *times.entry(id(&client.news("all").await)).or_default() += 1;
    }
    while let Ok(heard) = tokio::time::timeout(Duration::from_millis(300), client.heard()).await {
        *times.entry(id(&heard.unwrap()[2])).or_default() += 1;
    }
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "heard more than once: {twice:?}");
    assert_eq!(Some(times.len()), wanted.or(Some(times.len())));
}

#[tokio::test]
async fn what_another_process_takes_in_is_told_once_however_many_topics_it_has() {
    let world = World::start().await;
    let elsewhere = world.another().await;
    let mut listener = world.client().await;
    listener.subscribe("all", &[json!({})]).await;
    let mut sender = Client::of(&elsewhere).await;
    let tags: [&[&str]; 3] = [&["t", "a"], &["t", "b"], &["t", "c"]];
    let one = event(&Keys::generate(), 1, now(), &tags, "");
    sender.store(&one).await;
    assert_eq!(listener.news("all").await, one);
    // And what this one takes in, likewise.
    let two = event(&Keys::generate(), 1, now(), &tags, "two");
    let mut own = world.client().await;
    own.store(&two).await;
    assert_eq!(listener.news("all").await, two);
    listener.hears_nothing().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_told_and_cut_and_holds_up_nobody() {
    let world = World::with(|config| {
        let config = config.with_value("community.relay.queue", 16).unwrap();
        // Nobody who only waits his turn here is to be taken for dead.
        config.with_value("community.relay.ping", "10m").unwrap()
    })
    .await;
    let (mut sluggish, mut listener) = (world.client().await, world.client().await);
    sluggish.subscribe("all", &[json!({})]).await;
    listener.subscribe("few", &[json!({"kinds": [7]})]).await;
    let (mut sender, keys) = (world.client().await, Keys::generate());
    // More than sockets hold, to somebody who does not read.
    let body = "x".repeat(30_000);
    let at = now();
    for batch in 0..30 {
        for n in 0..20 {
            let event = event(&keys, 1, at - batch * 20 - n, &[], &body);
            sender.say(&json!(["EVENT", event])).await;
        }
        for _ in 0..20 {
            assert_eq!(sender.hear().await[2], json!(true));
        }
    }
    let reaction = event(&keys, 7, now(), &[], "+");
    sender.store(&reaction).await;
    assert_eq!(listener.news("few").await, reaction);
    let end = loop {
        match sluggish.heard().await {
            Ok(_) => {}
            Err(end) => break end,
        }
    };
    // The reason may not have reached it: that is why it is cut.
    assert!(
        end.is_none_or(|frame| frame.reason.starts_with("too slow")),
        "it was cut for another reason"
    );
}

#[tokio::test]
async fn a_silent_client_is_asked_and_one_that_is_gone_is_forgotten() {
    let world =
        World::with(|config| config.with_value("community.relay.ping", "2s").unwrap()).await;
    let mut client = world.client().await;
    client.subscribe("a", &[json!({"kinds": [7]})]).await;
    // Answering pings is all that it does, for longer than two of them.
    let quiet = tokio::time::timeout(Duration::from_secs(6), client.heard()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    let reaction = event(&Keys::generate(), 7, now(), &[], "+");
    world.client().await.store(&reaction).await;
    assert_eq!(client.news("a").await, reaction);
}
