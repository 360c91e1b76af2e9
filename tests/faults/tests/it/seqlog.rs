//! SIGKILL and SIGSTOP while a log is numbered and followed: no row is missed, none comes twice, no
//! number is missing, and nobody waits for a person.

use tasuki::Schema;
use tasuki::seqlog::{Consumers, Entry, Log};
use tasuki_testkit::{eventually, eventually_within};

use crate::site::{REST, Site, stretched};

const CONSUMER: &str = "followed-v1";

fn schema() -> Schema {
    Schema::new("app").unwrap()
}

async fn open() -> Site {
    let site = Site::open().await;
    sqlx::query("CREATE TABLE app.followed (at bigserial, seq bigint NOT NULL)")
        .execute(&site.pool)
        .await
        .unwrap();
    site
}

/// Commits `rows` rows, ten in each transaction; every third one is rolled back besides.
async fn append(site: &Site, rows: usize, kind: &str) {
    let log = Log::new(&schema());
    for round in 0..rows.div_ceil(10) {
        let entries = vec![Entry::new(kind, "x"); 10.min(rows - round * 10)];
        if round % 3 == 0 {
            let mut undone = site.pool.begin().await.unwrap();
            log.append(&mut undone, &entries).await.unwrap();
            undone.rollback().await.unwrap();
        }
        let mut tx = site.pool.begin().await.unwrap();
        log.append(&mut tx, &entries).await.unwrap();
        tx.commit().await.unwrap();
    }
}

/// All `rows` rows are numbered without a gap, and followed in order, each once, but for the
/// `set_aside` ones.
async fn comes_to_rest(site: &Site, rows: i64, set_aside: i64) {
    let left = "SELECT count(*) FROM app.seqlog_pending";
    let at =
        "SELECT coalesce(max(last_seq), 0) FROM app.consumer_offsets WHERE state = 'FOLLOWING'";
    eventually_within(REST, "all is numbered and followed", async || {
        let is_done = site.count(left).await == 0 && site.count(at).await == rows;
        is_done.then_some(())
    })
    .await;
    let numbered = "SELECT count(*) FROM app.seqlog_entries";
    let gaps = "SELECT count(*) FROM (
        SELECT seq, row_number() OVER (ORDER BY seq) AS place FROM app.seqlog_entries
    ) AS numbered WHERE seq <> place";
    assert_eq!(
        (site.count(numbered).await, site.count(gaps).await),
        (rows, 0)
    );
    let followed = "SELECT count(*) FROM app.followed";
    let twice = "SELECT count(*) - count(DISTINCT seq) FROM app.followed";
    assert_eq!(site.count(followed).await, rows - set_aside);
    assert_eq!(site.count(twice).await, 0);
    let disorder = "SELECT count(*) FROM (
        SELECT seq, lag(seq) OVER (ORDER BY at) AS before FROM app.followed
    ) AS followed WHERE before > seq";
    assert_eq!(site.count(disorder).await, 0);
    let aside = "SELECT count(*) FROM app.seqlog_set_aside";
    assert_eq!(site.count(aside).await, set_aside);
}

/// Kills a process at `point`, and has another go on; with rows that can't be handled among them.
async fn killed_at(point: &str, poison: i64) {
    let site = open().await;
    for (round, nth) in (1..).zip(["1", "3"]) {
        append(&site, 100, "row").await;
        for _ in 0..poison {
            append(&site, 1, "poison").await;
        }
        append(&site, 100, "row").await;
        let dies = ["--seqlog", "--crash-at", point, "--nth", nth];
        let mut dies = site.node(&dies).await;
        dies.is_killed().await;
        let lives = site.node(&["--seqlog"]).await;
        comes_to_rest(&site, (200 + poison) * round, poison * round).await;
        lives.stop().await;
    }
}

macro_rules! killed_at {
    ($($name:ident $point:literal $poison:literal;)*) => {$(
        #[tokio::test]
        async fn $name() {
            killed_at($point, $poison).await;
        }
    )*};
}

killed_at! {
    killed_before_rows_are_numbered_none_is_missed_or_doubled "seqlog.looked" 0;
    killed_between_two_batches_of_numbers_none_is_missed_or_doubled "seqlog.numbering" 0;
    killed_before_anybody_is_told_of_numbers_none_is_missed_or_doubled "seqlog.numbered" 0;
    killed_after_consumers_were_told_none_is_missed_or_doubled "seqlog.told" 0;
    killed_before_rows_are_handled_none_is_missed_or_doubled "seqlog.read" 0;
    killed_when_rows_were_handled_and_nothing_is_committed_none_is_missed_or_doubled "seqlog.handled" 0;
    killed_before_the_offset_is_committed_none_is_missed_or_doubled "seqlog.advancing" 0;
    killed_after_the_offset_moved_none_is_missed_or_doubled "seqlog.advanced" 0;
    killed_after_an_attempt_was_counted_none_is_missed_or_doubled "seqlog.attempted" 3;
    killed_while_a_row_is_set_aside_none_is_missed_or_doubled "seqlog.setting_aside" 3;
    killed_after_a_row_was_set_aside_none_is_missed_or_doubled "seqlog.set_aside" 3;
}

/// Asks for a rebuild, of which the first process dies at `point`.
async fn killed_in_a_rebuild_at(point: &str) {
    let site = open().await;
    append(&site, 100, "row").await;
    let first = site.node(&["--seqlog"]).await;
    comes_to_rest(&site, 100, 0).await;
    first.stop().await;
    sqlx::query("DELETE FROM app.followed WHERE seq % 2 = 0")
        .execute(&site.pool)
        .await
        .unwrap();
    let mut db = site.pool.acquire().await.unwrap();
    let consumers = Consumers::new(&schema());
    let asked = consumers.rebuild(&mut db, CONSUMER, "ann", "half is gone");
    asked.await.unwrap();
    let mut dies = site.node(&["--seqlog", "--crash-at", point]).await;
    dies.is_killed().await;
    let lives = site.node(&["--seqlog"]).await;
    append(&site, 50, "row").await;
    comes_to_rest(&site, 150, 0).await;
    lives.stop().await;
}

#[tokio::test]
async fn killed_in_a_rebuild_the_next_process_rebuilds() {
    tokio::join!(
        killed_in_a_rebuild_at("seqlog.rebuilt"),
        killed_in_a_rebuild_at("seqlog.switching"),
        killed_in_a_rebuild_at("seqlog.switched"),
    );
}

#[tokio::test]
async fn a_sequencer_that_slept_through_its_replacement_numbers_nothing_wrongly() {
    let site = open().await;
    append(&site, 100, "row").await;
    let sleeps = ["--seqlog", "--only-numbers", "--pause-at", "seqlog.looked"];
    let sleeps = site.node(&[&sleeps[..], &["--nth", "2"]].concat()).await;
    sleeps.sleeps().await;
    let lives = site.node(&["--seqlog"]).await;
    comes_to_rest(&site, 100, 0).await;
    append(&site, 100, "row").await;
    sleeps.resume();
    append(&site, 100, "row").await;
    eventually("it has been told", async || {
        sleeps
            .log()
            .contains("another sequencer has taken over")
            .then_some(())
    })
    .await;
    comes_to_rest(&site, 300, 0).await;
    lives.stop().await;
    sleeps.stop().await;
}

#[tokio::test]
async fn a_consumer_that_slept_in_its_transaction_is_replaced_and_commits_nothing() {
    for point in ["seqlog.handled", "seqlog.advancing"] {
        let site = open().await;
        append(&site, 100, "row").await;
        let sleeps = site
            .node(&["--seqlog", "--pause-at", point, "--nth", "2"])
            .await;
        sleeps.sleeps().await;
        let lives = site.node(&["--seqlog"]).await;
        comes_to_rest(&site, 100, 0).await;
        sleeps.resume();
        append(&site, 100, "row").await;
        comes_to_rest(&site, 200, 0).await;
        lives.stop().await;
        sleeps.stop().await;
    }
}

#[tokio::test]
async fn a_consumer_that_slept_in_its_switch_is_replaced_and_switches_nothing() {
    let site = open().await;
    append(&site, 100, "row").await;
    let first = site.node(&["--seqlog"]).await;
    comes_to_rest(&site, 100, 0).await;
    first.stop().await;
    sqlx::query("DELETE FROM app.followed WHERE seq % 2 = 0")
        .execute(&site.pool)
        .await
        .unwrap();
    let mut db = site.pool.acquire().await.unwrap();
    let consumers = Consumers::new(&schema());
    let asked = consumers.rebuild(&mut db, CONSUMER, "ann", "half is gone");
    asked.await.unwrap();
    let sleeps = site
        .node(&["--seqlog", "--pause-at", "seqlog.switching"])
        .await;
    sleeps.sleeps().await;
    let lives = site.node(&["--seqlog"]).await;
    append(&site, 50, "row").await;
    comes_to_rest(&site, 150, 0).await;
    sleeps.resume();
    append(&site, 50, "row").await;
    comes_to_rest(&site, 200, 0).await;
    lives.stop().await;
    sleeps.stop().await;
}

#[tokio::test]
async fn a_sequencer_that_slept_in_its_transaction_is_replaced_and_numbers_nothing_wrongly() {
    let site = open().await;
    append(&site, 100, "row").await;
    let numbers = ["--seqlog", "--pooled", "--only-numbers"];
    let pause = ["--pause-at", "seqlog.numbering", "--nth", "2"];
    let sleeps = site.node(&[&numbers[..], &pause].concat()).await;
    sleeps.sleeps().await;
    let lives = site.node(&["--seqlog", "--pooled"]).await;
    comes_to_rest(&site, 100, 0).await;
    sleeps.resume();
    append(&site, 100, "row").await;
    comes_to_rest(&site, 200, 0).await;
    lives.stop().await;
    sleeps.stop().await;
}

#[tokio::test]
async fn killed_over_and_over_under_load_a_log_has_no_gap_and_no_row_is_missed_or_doubled() {
    let site = open().await;
    let rounds = stretched(4, 30);
    let mut open = site.pool.begin().await.unwrap();
    let log = Log::new(&schema());
    log.append(&mut open, &[Entry::new("row", "x")])
        .await
        .unwrap();
    for _ in 0..rounds {
        let mut dies = site.node(&["--seqlog"]).await;
        let before = site.count("SELECT count(*) FROM app.followed").await;
        append(&site, 300, "row").await;
        eventually("it follows", async || {
            let now = site.count("SELECT count(*) FROM app.followed").await;
            (now > before).then_some(())
        })
        .await;
        dies.kill().await;
    }
    // What was open all the time comes last, and held up nobody.
    open.commit().await.unwrap();
    let lives = site.node(&["--seqlog"]).await;
    comes_to_rest(&site, 300 * i64::from(rounds) + 1, 0).await;
    lives.stop().await;
}
