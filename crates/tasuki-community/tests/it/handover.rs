//! From what is stored to what is new: nothing missing, nothing twice, on one process and across two.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nostr::Keys;
use serde_json::{Value, json};
use tasuki_testkit::eventually;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::support::{Client, World, event, id, note, now};

/// Stored events that one filter gets at most.
const LIMIT: usize = 10_000;

/// What was sent: by its id, its time and when that was.
type Sent = HashMap<String, (i64, Instant)>;

/// An event that is being sent.
fn sent(event: &Value) -> (String, (i64, Instant)) {
    let at = event["created_at"].as_i64().unwrap();
    (id(event), (at, Instant::now()))
}

fn beside<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    #[expect(clippy::disallowed_methods, reason = "the test awaits it")]
    tokio::spawn(work)
}

/// A client that publishes without a pause until it is told to stop.
async fn flood(mut client: Client, stop: Arc<AtomicBool>) -> Sent {
    let keys = Keys::generate();
    let (mut all, mut n) = (Sent::new(), 0);
    while !stop.load(Ordering::SeqCst) {
        for _ in 0..20 {
            n += 1;
            let event = event(&keys, 1, now(), &[], &n.to_string());
            all.extend([sent(&event)]);
            client.say(&json!(["EVENT", event])).await;
        }
        for _ in 0..20 {
            let answer = client.hear().await;
            assert_eq!(answer[2], json!(true), "{answer}");
        }
    }
    all
}

/// A client that sends each event when it is due, or at once when that is over, whatever it is answered.
async fn publish_when_due(mut client: Client, events: Vec<(Instant, Value)>) -> Sent {
    let (mut all, mut open) = (Sent::new(), events.len());
    let mut events = events.into_iter().peekable();
    while open > 0 {
        let due = events.peek().map(|(due, _)| *due);
        tokio::select! {
            // sleep: it is the schedule that is tested.
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let (_, event) = events.next().unwrap();
                all.extend([sent(&event)]);
                client.say(&json!(["EVENT", event])).await;
            }
            answer = client.hear() => {
                assert_eq!(answer[2], json!(true), "{answer}");
                open -= 1;
            }
        }
    }
    all
}

/// A client with a subscription, and what it was given until that was all.
struct Listener {
    client: Client,
    limit: usize,
    stored: Vec<String>,
    ended: Instant,
}

impl Listener {
    async fn begin(mut client: Client, limit: usize) -> Self {
        let stored = client.subscribe("all", &[json!({"limit": limit})]).await;
        Self {
            client,
            limit,
            stored: stored.iter().map(id).collect(),
            ended: Instant::now(),
        }
    }

    /// Waits until it has heard of everything that was sent, each once. If it was given as many stored
    /// events as it may be, those are the newest: what it does not hear of was there before, and is older.
    async fn hears_everything_once(mut self, sent: &Sent) {
        assert!(self.stored.len() <= self.limit);
        let place = |id: &String| (Reverse(sent[id].0), id.clone());
        assert!(self.stored.is_sorted_by_key(place), "newest first");
        let oldest = self.stored.last().map(place);
        let oldest = oldest.filter(|_| self.stored.len() == self.limit);
        let mut open: HashMap<_, _> = sent
            .iter()
            .filter(|(id, (_, at))| {
                let is_older = oldest.as_ref().is_some_and(|oldest| place(id) > *oldest);
                !is_older || *at > self.ended
            })
            .collect();
        let mut times: HashMap<String, usize> = HashMap::new();
        for id in self.stored {
            open.remove(&id);
            *times.entry(id).or_default() += 1;
        }
        while !open.is_empty() {
            let id = id(&self.client.news("all").await);
            open.remove(&id);
            *times.entry(id).or_default() += 1;
        }
        while let Ok(heard) = timeout(Duration::from_millis(300), self.client.heard()).await {
            *times.entry(id(&heard.unwrap()[2])).or_default() += 1;
        }
        let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "heard more than once: {twice:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_subscribes_in_a_flood_gets_each_event_once_and_misses_none() {
    let world =
        World::with(|config| config.with_value("community.limits.limit", 10_000).unwrap()).await;
    let elsewhere = world.another().await;
    let stop = Arc::new(AtomicBool::new(false));
    let floods = [
        beside(flood(world.client().await, Arc::clone(&stop))),
        beside(flood(Client::of(&elsewhere).await, Arc::clone(&stop))),
    ];
    // They come one after the other, on both processes, in the middle of it.
    let mut listeners = Vec::new();
    for number in 0..10 {
        let host = [&world.host, &elsewhere][number % 2];
        listeners.push(Listener::begin(Client::of(host).await, LIMIT).await);
    }
    stop.store(true, Ordering::SeqCst);
    let mut all = Sent::new();
    for flood in floods {
        all.extend(flood.await.unwrap());
    }
    let last = note(&Keys::generate(), now());
    all.extend([sent(&last)]);
    world.client().await.store(&last).await;
    for listener in listeners {
        listener.hears_everything_once(&all).await;
    }
}

/// Events that are sent on a schedule, by so many clients, and the time between two of them: 1,000 a second.
const EVENTS: u32 = 4_000;
const PUBLISHERS: usize = 4;
const BETWEEN: Duration = Duration::from_millis(1);

#[tokio::test(flavor = "multi_thread")]
async fn at_a_thousand_events_a_second_whoever_subscribes_hears_each_once() {
    let world = World::with(|config| {
        let config = config.with_value("community.limits.limit", 10_000).unwrap();
        // Who waits until all is published does not read meanwhile.
        config.with_value("community.relay.ping", "10m").unwrap()
    })
    .await;
    let elsewhere = world.another().await;
    let hosts = [&world.host, &elsewhere];
    let (keys, first) = (Keys::generate(), now() - i64::from(EVENTS));
    let events = (0..EVENTS).map(|n| event(&keys, 1, first + i64::from(n), &[], ""));
    let events: Vec<_> = events.collect();
    let mut shares = vec![Vec::new(); PUBLISHERS];
    let begin = Instant::now() + Duration::from_millis(500);
    let mut due = begin;
    for (n, event) in events.into_iter().enumerate() {
        shares[n % PUBLISHERS].push((due, event));
        due += BETWEEN;
    }
    let asked = f64::from(EVENTS) / (due - begin).as_secs_f64();
    assert!(asked >= 999.9, "the schedule asks for {asked} a second");
    let mut publishers = Vec::new();
    for (n, share) in shares.into_iter().enumerate() {
        let client = Client::of(hosts[n % 2]).await;
        publishers.push(beside(publish_when_due(client, share)));
    }
    // Some are given all that is stored, some as much of it as they want.
    let mut listeners = Vec::new();
    let limits = [LIMIT, LIMIT, 200, 200, LIMIT, LIMIT, 500, 500];
    for (n, limit) in limits.into_iter().enumerate() {
        // sleep: they come one after the other while events are sent.
        sleep_until(begin + BETWEEN * 450 * u32::try_from(n).unwrap()).await;
        listeners.push(Listener::begin(Client::of(hosts[n % 2]).await, limit).await);
    }
    let mut all = Sent::new();
    for publisher in publishers {
        all.extend(publisher.await.unwrap());
    }
    assert_eq!(all.len(), usize::try_from(EVENTS).unwrap());
    let reached = f64::from(EVENTS) / begin.elapsed().as_secs_f64();
    println!("asked for {asked:.0} events a second, and reached {reached:.0}");
    for listener in listeners {
        listener.hears_everything_once(&all).await;
    }
}

#[tokio::test]
async fn what_has_gone_while_it_waited_is_not_told_behind_what_is_stored() {
    let world = World::patient().await;
    // Whoever searches has to wait.
    let held = world.hold("search_documents").await;
    let (mut listener, mut sender) = (world.client().await, world.client().await);
    let (keys, at, end) = (Keys::generate(), now(), now() + 10);
    let all = json!({"authors": [keys.public_key().to_hex()], "limit": 1});
    let wanted = json!(["REQ", "all", {"search": "word"}, all]);
    listener.say(&wanted).await;
    // What was said before is heard when this is answered.
    listener.say_raw("[]").await;
    assert_eq!(listener.hear().await[0], json!("NOTICE"));

    let ends = end.to_string();
    let ended = event(&keys, 1, at - 9, &[&["expiration", &ends]], "");
    let passing_ended = event(&keys, 20_001, at - 9, &[&["expiration", &ends]], "");
    let old = event(&keys, 0, at - 8, &[], "old");
    let deleted = note(&keys, at - 7);
    let lasting = note(&keys, at - 6);
    let passing = event(&keys, 20_001, at - 5, &[], "");
    let deletion = event(&keys, 5, at - 4, &[&["e", &id(&deleted)]], "");
    let new = event(&keys, 0, at, &[], "new");
    for event in [
        &ended,
        &passing_ended,
        &old,
        &deleted,
        &lasting,
        &passing,
        &deletion,
        &new,
    ] {
        sender.store(event).await;
    }
    eventually("it is over", async || (now() > end).then_some(())).await;
    held.rollback().await.unwrap();

    assert_eq!(listener.news("all").await, new);
    assert_eq!(listener.hear().await, json!(["EOSE", "all"]));
    for event in [&lasting, &passing, &deletion] {
        assert_eq!(listener.news("all").await, *event);
    }
    listener.hears_nothing().await;
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
    let quiet = timeout(Duration::from_secs(6), client.heard()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    let reaction = event(&Keys::generate(), 7, now(), &[], "+");
    world.client().await.store(&reaction).await;
    assert_eq!(client.news("a").await, reaction);
}
