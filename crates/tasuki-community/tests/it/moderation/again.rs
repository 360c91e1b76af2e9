//! Read again from anywhere, rebuilt, or taken over: the same rows.

use nostr::Keys;
use reqwest::Method;
use serde_json::{Value, json};
use tasuki::seqlog::Consumers;
use tasuki_testkit::eventually;

use super::{Desk, MODERATION, rule, saying, target};
use crate::support::{event, id, now};

impl Desk {
    /// Reads the log again from the beginning.
    pub(crate) async fn replay(&self) {
        let consumers = Consumers::new(&self.world.tables.schema);
        let mut tx = self.world.env.db.pool.begin().await.unwrap();
        let replayed = consumers.replay(&mut tx, MODERATION, 0, "ann", "a test");
        replayed.await.unwrap();
        tx.commit().await.unwrap();
        self.caught_up().await;
    }

    pub(crate) async fn rebuild(&self) {
        let consumers = Consumers::new(&self.world.tables.schema);
        let mut tx = self.world.env.db.pool.begin().await.unwrap();
        let rebuilt = consumers.rebuild(&mut tx, MODERATION, "ann", "a test");
        rebuilt.await.unwrap();
        tx.commit().await.unwrap();
        self.caught_up().await;
    }

    /// A bit of everything: rules that change, people who label, withdraw and report, targets that go.
    async fn a_history(&mut self) -> Vec<Value> {
        let spam = self.rule("buy", "spam").await;
        for label in ["a", "b", "c", "d"] {
            self.rule("now", label).await;
        }
        let mut notes = Vec::new();
        for n in 0..6 {
            notes.push(self.note(&format!("buy now {n}")).await);
            notes.push(self.note(&format!("hello {n}")).await);
        }
        let body = json!({"rule": rule("buy", "advert"), "reason": "a better word"});
        let path = format!("/v1/moderation/rules/{spam}");
        self.ask(Method::PUT, &path, Some(&body)).await;
        for n in 0..6 {
            notes.push(self.note(&format!("buy this {n}")).await);
        }
        let old = event(&self.author, 0, now() - 9, &[&["t", "a"]], "buy");
        let new = event(&self.author, 0, now(), &[&["t", "a"]], "buy now");
        self.client.store(&old).await;
        self.caught_up().await;
        self.client.store(&new).await;
        let by = Keys::generate();
        let mut reports = Vec::new();
        for (n, note) in notes.iter().take(4).enumerate() {
            let d = n.to_string();
            let tags: [&[&str]; 3] = [&["d", &d], &["target", &target(note)], &["t", "a"]];
            let report = event(&by, 39_005, now(), &tags, "");
            self.client.store(&report).await;
            reports.push(report);
        }
        self.post("/v1/labels", &saying(&target(&notes[1]), "rude"))
            .await;
        let (_, label, _) = self
            .post("/v1/labels", &saying(&target(&notes[3]), "rude"))
            .await;
        self.take_back(&label).await;
        self.caught_up().await;
        let spam = self
            .get(&format!(
                "/v1/labels?target={}&label=spam",
                target(&notes[2])
            ))
            .await;
        self.take_back(&spam["labels"][0]).await;
        for gone in [&notes[4], &notes[1]] {
            let gone = event(
                &self.author,
                5,
                now(),
                &[&["e", &id(gone)], &["t", "a"]],
                "",
            );
            self.client.store(&gone).await;
        }
        let gone = event(&by, 5, now(), &[&["e", &id(&reports[1])], &["t", "a"]], "");
        self.client.store(&gone).await;
        self.caught_up().await;
        notes
    }

    async fn take_back(&self, label: &Value) {
        let id = label["label_id"].as_str().unwrap();
        let path = format!("/v1/labels/{id}?reason=mistaken");
        let (status, refused, _) = self.ask(Method::DELETE, &path, None).await;
        assert_eq!(status, 200, "{refused}");
    }

    /// Events of the node that were ever published.
    async fn published(&self) -> i64 {
        self.world
            .count(
                "SELECT count(*) FROM cn_relay.event_dedupe
                 JOIN cn_relay.kept_events USING (event_id) WHERE kind IN (39006, 5)",
            )
            .await
    }
}

#[tokio::test]
async fn a_replay_and_a_rebuild_end_in_the_same_rows_however_often() {
    let mut desk = Desk::open().await;
    desk.a_history().await;
    let (rows, published) = (desk.rows().await, desk.published().await);
    assert!(rows.len() > 40, "{}", rows.len());
    for _ in 0..2 {
        desk.replay().await;
        assert_eq!(desk.rows().await, rows, "after a replay");
        desk.rebuild().await;
        assert_eq!(desk.rows().await, rows, "after a rebuild");
    }
    assert_eq!(desk.published().await, published, "nothing was said twice");
}

#[tokio::test]
async fn rows_that_are_missing_or_wrong_are_made_again_as_they_were() {
    let mut desk = Desk::open().await;
    desk.a_history().await;
    let (rows, published) = (desk.rows().await, desk.published().await);
    for is_rebuild in [false, true] {
        let gone = desk
            .run(
                "DELETE FROM cn_relay.labels AS label WHERE origin = 'rule' AND withdrawn_at IS NULL
                     AND label_id < '80000000-0000-0000-0000-000000000000' AND EXISTS (
                         SELECT FROM cn_relay.events AS event
                         WHERE label.target = 'event:' || encode(event.event_id, 'hex')
                             AND event.hidden_at IS NULL
                     )",
            )
            .await;
        assert!(gone > 3, "{gone}");
        let wrong = desk
            .run(
                "UPDATE cn_relay.labels AS label SET confidence = 0, policy_ref = NULL
                 WHERE origin = 'rule' AND EXISTS (
                     SELECT FROM cn_relay.events AS event
                     WHERE label.target = 'event:' || encode(event.event_id, 'hex')
                         AND event.hidden_at IS NULL
                 )",
            )
            .await;
        assert!(wrong > 3, "{wrong}");
        desk.run(
            "DELETE FROM cn_relay.reports WHERE event_id IN (
                 SELECT event_id FROM cn_relay.kept_events WHERE hidden_at IS NULL
             )",
        )
        .await;
        if is_rebuild {
            desk.rebuild().await;
        } else {
            desk.replay().await;
        }
        assert_eq!(desk.rows().await, rows, "rebuild: {is_rebuild}");
    }
    assert_eq!(desk.published().await, published, "nothing was said twice");
}

/// What `by` says of a note, in both kinds of reports.
fn reports(by: &Keys, note: &Value) -> [Value; 2] {
    let about = target(note);
    let (p, e) = (by.public_key().to_hex(), id(note));
    let ours: [&[&str]; 3] = [&["d", "1"], &["target", &about], &["t", "a"]];
    let common: [&[&str]; 3] = [&["p", &p], &["e", &e, "spam"], &["t", "a"]];
    [
        event(by, 39_005, now(), &ours, ""),
        event(by, 1984, now(), &common, ""),
    ]
}

#[tokio::test]
async fn what_was_hidden_before_it_was_looked_at_is_labelled_and_counted_all_the_same() {
    let mut desk = Desk::open().await;
    desk.rule("buy", "spam").await;
    let (note, by) = (desk.note("buy now").await, Keys::generate());
    let reports = reports(&by, &note);
    for report in &reports {
        desk.client.store(report).await;
    }
    let end = (now() + 5).to_string();
    let short = event(
        &desk.author,
        1,
        now(),
        &[&["expiration", &end], &["t", "a"]],
        "buy soon",
    );
    desk.client.store(&short).await;
    // Whoever follows sees all of it before it goes.
    desk.caught_up().await;
    let rows = desk.rows().await;
    assert_eq!(rows.len(), 4, "{rows:?}");
    for (whose, gone) in [
        (&desk.author, &note),
        (&by, &reports[0]),
        (&by, &reports[1]),
    ] {
        let deletion = event(whose, 5, now(), &[&["e", &id(gone)], &["t", "a"]], "");
        desk.client.store(&deletion).await;
    }
    eventually("all of it is hidden", async || {
        let hidden = "SELECT (SELECT count(*) FROM cn_relay.events WHERE hidden_at IS NOT NULL)
            + (SELECT count(*) FROM cn_relay.kept_events WHERE hidden_at IS NOT NULL)";
        (desk.world.count(hidden).await == 4).then_some(())
    })
    .await;
    // Whoever was away meanwhile finds it hidden.
    let published = desk.published().await;
    for is_rebuild in [false, true] {
        desk.run("DELETE FROM cn_relay.labels").await;
        desk.run("DELETE FROM cn_relay.reports").await;
        if is_rebuild {
            desk.rebuild().await;
        } else {
            desk.replay().await;
        }
        assert_eq!(desk.rows().await, rows, "rebuild: {is_rebuild}");
    }
    assert_eq!(desk.published().await, published, "nothing was said twice");
}

#[tokio::test]
async fn another_process_goes_on_where_one_has_stopped() {
    let desk = Desk::open().await;
    desk.rule("buy", "spam").await;
    let second = desk.world.another().await;
    let mut elsewhere = crate::support::Client::of(&second).await;
    let mut notes = Vec::new();
    for n in 0..200 {
        let note = event(
            &desk.author,
            1,
            now(),
            &[&["t", "a"], &["t", "b"]],
            &format!("buy {n}"),
        );
        elsewhere.store(&note).await;
        notes.push(note);
        if n == 100 {
            desk.world.host.phases.stop();
        }
    }
    desk.caught_up().await;
    let rows = desk.rows().await;
    assert_eq!(rows.len(), 200, "each is labelled once");
    let twice =
        "SELECT count(*) FROM cn_relay.kept_events WHERE kind = 39006 AND hidden_at IS NULL";
    assert_eq!(desk.world.count(twice).await, 200);
    desk.replay().await;
    assert_eq!(desk.rows().await, rows);
}
