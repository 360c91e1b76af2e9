//! Trust: who is reported and who talks with whom, the same after deletions, replays and rebuilds.

use nostr::Keys;
use serde_json::{Value, json};
use tasuki::seqlog::Consumers;
use tasuki_testkit::eventually;

use crate::support::{Client, World, event, id, note, now};

const DAY: i64 = 86_400;

/// A key of the node itself.
pub(crate) fn own(world: &World, name: &str) -> Keys {
    let path = world.keys.path().join("community/nostr").join(name);
    Keys::parse(std::fs::read_to_string(path).unwrap().trim()).unwrap()
}

/// A report of `event`, as ordinary clients make it.
pub(crate) fn report(by: &Keys, at: i64, event: &Value) -> Value {
    let (id, author) = (id(event), event["pubkey"].as_str().unwrap().to_owned());
    self::event(by, 1984, at, &[&["e", &id, "spam"], &["p", &author]], "")
}

/// `from` says something to `to`.
pub(crate) fn word(from: &Keys, to: &Keys, at: i64) -> Value {
    let to = to.public_key().to_hex();
    event(from, 1, at, &[&["p", &to]], "hello")
}

/// They speak to each other.
pub(crate) async fn talk(client: &mut Client, one: &Keys, other: &Keys) {
    client.store(&word(one, other, now())).await;
    client.store(&word(other, one, now())).await;
}

/// Waits until everything is counted.
pub(crate) async fn counted(world: &World) {
    eventually("trust has caught up", async || {
        let behind = "SELECT (SELECT count(*) FROM cn_relay.events_outbox_pending)
            + (SELECT last_seq FROM cn_relay.seqlogs WHERE log = 'events_outbox')
            - (SELECT last_seq FROM cn_relay.consumer_offsets WHERE consumer = 'trust-v1' AND state = 'FOLLOWING')";
        let behind: Option<i64> = sqlx::query_scalar(behind).fetch_one(&world.env.db.pool).await.unwrap();
        (behind == Some(0)).then_some(())
    })
    .await;
}

pub(crate) async fn ask(world: &World, url: &str) -> Value {
    let key = world.key().await;
    let answer = world.host.get_as(&key, url).await;
    assert_eq!(answer.status.as_u16(), 200, "{url}: {}", answer.text);
    answer.json()
}

/// Value and reporters.
pub(crate) async fn risk(world: &World, subject: &str) -> (u64, u64) {
    counted(world).await;
    let answer = ask(world, &format!("/v1/trust/risk?subject={subject}")).await;
    assert_eq!(answer["subject"], json!(subject));
    let number = |field: &str| answer[field].as_u64().unwrap();
    (number("value"), number("reporters"))
}

/// Value, contacts and those who were spoken to.
async fn density(world: &World, of: &Keys) -> (u64, u64, u64) {
    counted(world).await;
    let subject = format!("pubkey:{}", of.public_key().to_hex());
    let answer = ask(world, &format!("/v1/trust/density?subject={subject}")).await;
    let number = |field: &str| answer[field].as_u64().unwrap();
    (number("value"), number("contacts"), number("spoken_to"))
}

/// Everything that is known, in a fixed order.
async fn known(world: &World) -> (Vec<String>, Vec<String>) {
    let reports = "SELECT concat_ws(' ', report_key, encode(event_id, 'hex'), reporter, target, author, reason,
        reported_at) FROM cn_relay.trust_reports ORDER BY 1";
    let contacts = "SELECT concat_ws(' ', encode(event_id, 'hex'), encode(reference, 'hex'),
        encode(from_key, 'hex'), encode(to_key, 'hex'), said_at) FROM cn_relay.trust_contacts ORDER BY 1";
    let pool = &world.env.db.pool;
    let reports = sqlx::query_scalar(reports).fetch_all(pool).await.unwrap();
    let contacts = sqlx::query_scalar(contacts).fetch_all(pool).await.unwrap();
    (reports, contacts)
}

async fn change(world: &World, sql: &'static str) {
    sqlx::raw_sql(sql)
        .execute(&world.env.db.pool)
        .await
        .unwrap();
}

#[tokio::test]
async fn several_reporters_raise_risk_and_one_of_them_twice_does_not() {
    let world = World::start().await;
    let (mut client, author) = (world.client().await, Keys::generate());
    let spam = note(&author, now());
    client.store(&spam).await;
    let (subject, person) = (
        format!("event:{}", id(&spam)),
        format!("pubkey:{}", author.public_key().to_hex()),
    );
    assert_eq!(
        risk(&world, &subject).await,
        (0, 0),
        "nobody has said anything"
    );
    let reporters: Vec<_> = (0..3).map(|_| Keys::generate()).collect();
    client.store(&report(&reporters[0], now(), &spam)).await;
    assert_eq!(risk(&world, &subject).await, (2, 1));
    for reporter in &reporters {
        client.store(&report(reporter, now() - 1, &spam)).await;
    }
    assert_eq!(risk(&world, &subject).await, (6, 3), "one of them twice");
    assert_eq!(risk(&world, &person).await, (6, 3), "what he made is his");
    // The author himself, and somebody a long time ago.
    client.store(&report(&author, now(), &spam)).await;
    client
        .store(&report(&Keys::generate(), now() - 91 * DAY, &spam))
        .await;
    assert_eq!(risk(&world, &subject).await, (6, 3));

    // A reporter whom others know weighs more.
    for _ in 0..8 {
        talk(&mut client, &reporters[0], &Keys::generate()).await;
    }
    assert_eq!(density(&world, &reporters[0]).await, (33, 8, 8));
    let (value, count) = risk(&world, &subject).await;
    assert!(value > 15 && count == 3, "{value}");
}

#[tokio::test]
async fn versions_of_a_report_count_once_and_those_of_the_node_for_whom_they_name() {
    let world = World::start().await;
    let (mut client, reporter) = (world.client().await, Keys::generate());
    let (first, second) = ("identifier:isbn:1", "identifier:isbn:2");
    let version = |by: &Keys, at, tags: &[&[&str]]| {
        let all: Vec<_> = [&[&["d", "x"][..]], tags].concat();
        event(by, 39_005, at, &all, "")
    };
    client
        .store(&version(&reporter, now() - 9, &[&["target", first]]))
        .await;
    client
        .store(&version(&reporter, now() - 8, &[&["target", first]]))
        .await;
    assert_eq!(risk(&world, first).await, (2, 1));
    client
        .store(&version(&reporter, now() - 7, &[&["target", second]]))
        .await;
    assert_eq!(
        risk(&world, first).await,
        (0, 0),
        "he means something else now"
    );
    assert_eq!(risk(&world, second).await, (2, 1));
    assert_eq!(
        world
            .count("SELECT count(*) FROM cn_relay.trust_reports")
            .await,
        1
    );

    let node = own(&world, "moderation.key");
    client
        .store(&version(&node, now() - 6, &[&["target", second]]))
        .await;
    assert_eq!(risk(&world, second).await, (2, 1), "it names nobody");
    let named: &[&[&str]] = &[&["target", second], &["reporter", "ann"]];
    client.store(&version(&node, now() - 5, named)).await;
    assert_eq!(risk(&world, second).await, (4, 2));
    // Others can write what they want.
    for other in [&reporter, &Keys::generate()] {
        let named: &[&[&str]] = &[&["d", "y"], &["target", second], &["reporter", "ben"]];
        client.store(&event(other, 39_005, now(), named, "")).await;
    }
    assert_eq!(risk(&world, second).await, (6, 3));
}

#[tokio::test]
async fn a_deleted_report_stays_counted_and_a_deleted_reply_does_not() {
    let world = World::start().await;
    let (mut client, ann, ben) = (world.client().await, Keys::generate(), Keys::generate());
    let said = note(&ann, now() - 9);
    // The reply comes before what it answers, and names nobody.
    let reply = event(
        &ben,
        1111,
        now() - 8,
        &[&["e", &id(&said)], &["t", "a"], &["t", "b"]],
        "no",
    );
    client.store(&reply).await;
    assert_eq!(density(&world, &ben).await, (0, 0, 0));
    client.store(&said).await;
    assert_eq!(
        density(&world, &ben).await,
        (0, 0, 1),
        "by now it is known to whom"
    );
    client
        .store(&event(&ann, 7, now() - 7, &[&["e", &id(&reply)]], "+"))
        .await;
    assert_eq!(density(&world, &ben).await, (5, 1, 1));
    assert_eq!(density(&world, &ann).await, (5, 1, 1));
    let complaint = report(&ben, now(), &said);
    client.store(&complaint).await;
    let subject = format!("event:{}", id(&said));
    let (value, _) = risk(&world, &subject).await;
    for gone in [&complaint, &reply] {
        client
            .store(&event(&ben, 5, now(), &[&["e", &id(gone)]], ""))
            .await;
    }
    // He is known to nobody any more.
    let (after, reporters) = risk(&world, &subject).await;
    assert!(
        reporters == 1 && 0 < after && after < value,
        "{value}, then {after}"
    );
    assert_eq!(density(&world, &ann).await, (0, 0, 1));
    assert_eq!(density(&world, &ben).await, (0, 0, 0));
}

/// Something of everything.
async fn history(client: &mut Client) {
    let people: Vec<_> = (0..6).map(|_| Keys::generate()).collect();
    let at = now() - 100;
    let notes: Vec<_> = people.iter().map(|by| note(by, at)).collect();
    for (n, note) in notes.iter().enumerate() {
        let (by, next) = (&people[(n + 1) % 6], &people[(n + 2) % 6]);
        let named = next.public_key().to_hex();
        let tags: &[&[&str]] = &[&["e", &id(note)], &["p", &named], &["t", "a"], &["t", "b"]];
        let reply = event(by, 1, at + 1, tags, "reply");
        // Some come before what they answer.
        let both = if n % 2 == 0 {
            [&reply, note]
        } else {
            [note, &reply]
        };
        for event in both {
            client.store(event).await;
        }
        let reaction = event(&people[n], 7, at + 2, &[&["e", &id(&reply)]], "+");
        client.store(&reaction).await;
        client.store(&report(next, at + 3, note)).await;
        if n % 3 == 0 {
            client
                .store(&event(by, 5, at + 4, &[&["e", &id(&reply)]], ""))
                .await;
        }
        for version in 5..7 {
            let tags: &[&[&str]] = &[&["d", "x"], &["e", &id(note)], &["reason", "spam"]];
            client
                .store(&event(by, 39_005, at + version, tags, ""))
                .await;
        }
    }
    let complaint = report(&people[0], at + 8, &notes[3]);
    client.store(&complaint).await;
    client
        .store(&event(
            &people[0],
            5,
            at + 9,
            &[&["e", &id(&complaint)]],
            "",
        ))
        .await;
}

#[tokio::test]
async fn an_event_counts_once_and_a_replay_and_a_rebuild_end_in_the_same_rows() {
    let world = World::start().await;
    let mut client = world.client().await;
    history(&mut client).await;
    counted(&world).await;
    let before = known(&world).await;
    // Six by NIP-56 and one that was deleted, six versions; a reply names two and a reaction one.
    assert_eq!((before.0.len(), before.1.len()), (13, 4 * 2 + 6));
    let unknown = "SELECT count(*) FROM cn_relay.trust_contacts WHERE to_key IS NULL";
    assert_eq!(world.count(unknown).await, 0);

    let consumers = Consumers::new(&world.tables.schema);
    for lost in [
        "SELECT 1",
        "DELETE FROM cn_relay.trust_contacts WHERE event_id < '\\x80'; DELETE FROM cn_relay.trust_reports",
    ] {
        change(&world, lost).await;
        let mut tx = world.env.db.pool.begin().await.unwrap();
        let replay = consumers.replay(&mut tx, "trust-v1", 0, "ann", "some are missing");
        replay.await.unwrap();
        tx.commit().await.unwrap();
        counted(&world).await;
        assert_eq!(known(&world).await, before, "after a replay: {lost}");
    }

    // Reports, and events that were answered, have been purged; everything that is derived is wrong.
    change(
        &world,
        "DELETE FROM cn_relay.events WHERE kind = 1984;
         DELETE FROM cn_relay.events WHERE kind = 1 AND body LIKE '%a note%';
         UPDATE cn_relay.trust_contacts SET said_at = 0, from_key = 'x'",
    )
    .await;
    let mut tx = world.env.db.pool.begin().await.unwrap();
    let rebuild = consumers.rebuild(&mut tx, "trust-v1", "ann", "all are wrong");
    rebuild.await.unwrap();
    tx.commit().await.unwrap();
    counted(&world).await;
    assert_eq!(known(&world).await, before, "after a rebuild");
    // It goes on from there.
    talk(&mut client, &Keys::generate(), &Keys::generate()).await;
    counted(&world).await;
    assert_eq!(known(&world).await.1.len(), before.1.len() + 2);
}

#[tokio::test]
async fn the_same_digits_as_a_key_and_as_an_id_are_no_poison() {
    let world = World::start().await;
    let (mut client, ann, ben) = (world.client().await, Keys::generate(), Keys::generate());
    let key = ben.public_key().to_hex();
    client
        .store(&event(&ann, 1, now(), &[&["e", &key], &["p", &key]], "odd"))
        .await;
    talk(&mut client, &ann, &ben).await;
    assert_eq!(density(&world, &ann).await, (5, 1, 1));
    assert_eq!(
        world
            .count("SELECT count(*) FROM cn_relay.dead_letters")
            .await,
        0
    );
}

#[tokio::test]
async fn who_asks_wrongly_is_told_what_is_wrong() {
    let world = World::start().await;
    let key = world.key().await;
    let hex = "ab".repeat(32);
    for (url, words) in [
        ("risk".to_owned(), "subject"),
        ("risk?subject=".to_owned(), "subject is not event:<id>"),
        (format!("risk?subject={hex}"), "subject is not event:<id>"),
        (
            format!("risk?subject=pubkey:{}", hex.to_uppercase()),
            "subject is not",
        ),
        ("risk?subject=event:ab".to_owned(), "subject is not"),
        (format!("risk?subject=address:1:{hex}:x"), "subject is not"),
        ("risk?subject=identifier:a%0Ab".to_owned(), "subject is not"),
        (format!("risk?subject=pubkey:{hex}&colour=red"), "colour"),
        (
            format!("density?subject=event:{hex}"),
            "subject is not pubkey:<key>",
        ),
    ] {
        let refused = world.host.get_as(&key, &format!("/v1/trust/{url}")).await;
        assert_eq!(
            (refused.status.as_u16(), refused.code().as_str()),
            (400, "BAD_REQUEST"),
            "{url}"
        );
        assert!(refused.text.contains(words), "{url}: {}", refused.text);
    }
    let url = format!("/v1/trust/risk?subject=pubkey:{hex}");
    assert_eq!(world.host.get(&url).await.status.as_u16(), 401);
    let nobody = ask(&world, &url).await;
    assert_eq!(
        (&nobody["value"], &nobody["reporters"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(nobody["window_seconds"], json!(90 * DAY));
    assert_eq!(
        (&nobody["assertion"], &nobody["expires_at"]),
        (&Value::Null, &Value::Null)
    );

    for (setting, value, words) in [
        ("risk-window", "0s", "is not from"),
        ("density-half-life", "20y", "is not from"),
        ("expiry", "1s", "is not from 10s"),
        ("interval", "2h", "is not from 1s"),
        ("interval", "soon", "interval"),
    ] {
        let key = format!("community.trust.{setting}");
        let config = world.env.config.clone().with_value(&key, value).unwrap();
        let refused = tasuki_community::config(&config).unwrap_err().to_string();
        assert!(
            refused.contains(words) && refused.contains(&key),
            "{refused}"
        );
    }
}
