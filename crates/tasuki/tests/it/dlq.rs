//! Dead letters: one list, redriven or discarded once, audited, and told.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use sqlx::{Connection, PgConnection};
use tasuki::dlq::{Action, Deaths, Error, Filter, Letter, LetterId, Letters, Page, State, Watch};
use tasuki::lease::Table;
use tasuki::worker::{Tick, Worker};
use tasuki_testkit::TestDb;
use uuid::Uuid;

use crate::graveyard::{
    EVENTS, JOBS, database, dead_job, dead_jobs, event, job, kill, number, run, schema,
};

const OPEN: &str = "SELECT count(*) FROM app.dead_letters
    WHERE redriven_at IS NULL AND discarded_at IS NULL";
const AUDITED: &str = "SELECT count(*) FROM app.dead_letter_audit";

fn letters() -> Letters {
    Letters::new(&schema(), &[])
}

async fn connect(db: &TestDb) -> PgConnection {
    db.pool.acquire().await.unwrap().detach()
}

async fn all(connection: &mut PgConnection, filter: &Filter) -> Vec<Letter> {
    let listed = letters().list(connection, filter, &Page::first(1000)).await;
    listed.unwrap().letters
}

async fn only(connection: &mut PgConnection) -> Letter {
    let mut open = all(connection, &Filter::open()).await;
    assert_eq!(open.len(), 1);
    open.pop().unwrap()
}

#[tokio::test]
async fn a_row_that_dies_is_listed_with_everything_a_person_needs() {
    let db = database().await;
    let mut db = connect(&db).await;
    let id = dead_job(&mut db, "Welcome", "no route to host").await;
    event(&mut db, None).await;
    kill(&mut db, &EVENTS, "too large").await;

    let jobs = filter("source=jobs");
    let listed = all(&mut db, &jobs).await;
    let [letter] = listed.as_slice() else {
        panic!("{listed:?}")
    };
    assert_eq!((letter.source.as_str(), letter.source_id), ("jobs", id));
    assert_eq!(
        (letter.queue.as_str(), letter.kind.as_str()),
        ("mail", "Welcome")
    );
    assert_eq!(
        (letter.error.as_str(), letter.attempts),
        ("no route to host", 1)
    );
    assert_eq!(
        (letter.payload.as_slice(), letter.payload_size),
        (b"{}".as_slice(), 2)
    );
    assert_eq!(letter.state(), State::Open);
    assert_eq!(all(&mut db, &Filter::open()).await.len(), 2);

    let story = letters().show(&mut db, letter.id).await.unwrap().unwrap();
    assert_eq!((&story.letter, story.trail.len()), (letter, 0));
    let nobody = LetterId::from(Uuid::nil());
    assert_eq!(letters().show(&mut db, nobody).await.unwrap(), None);
}

#[tokio::test]
async fn a_list_shows_the_beginning_of_a_payload_and_a_story_all_of_it() {
    let db = database().await;
    let mut db = connect(&db).await;
    event(&mut db, None).await;
    run(
        &mut db,
        "UPDATE app.outbox_events SET payload = convert_to(repeat('x', 5000), 'UTF8')",
    )
    .await;
    kill(&mut db, &EVENTS, "too large").await;

    let letter = only(&mut db).await;
    assert_eq!((letter.payload.len(), letter.payload_size), (256, 5000));
    let story = letters().show(&mut db, letter.id).await.unwrap().unwrap();
    assert_eq!(story.letter.payload.len(), 5000);
}

#[tokio::test]
async fn pages_hold_every_letter_once_the_latest_first_though_they_died_together() {
    let db = database().await;
    let mut db = connect(&db).await;
    dead_jobs(&mut db, 20).await;
    dead_jobs(&mut db, 5).await;

    let mut seen = Vec::new();
    let mut page = Page::first(10);
    loop {
        let listed = letters()
            .list(&mut db, &Filter::open(), &page)
            .await
            .unwrap();
        seen.extend(listed.letters);
        // A cursor goes through a link and comes back as text.
        let Some(next) = listed.next else { break };
        page = Page::first(10).after(next.to_string().parse().unwrap());
    }

    assert_eq!(seen.len(), 25);
    assert!(seen.is_sorted_by_key(|letter| std::cmp::Reverse((letter.failed_at, letter.id))));
    let ids: HashSet<_> = seen.iter().map(|letter| letter.id).collect();
    assert_eq!(ids.len(), 25);
}

/// `key=value` pairs as a filter.
fn filter(text: &str) -> Filter {
    let mut filter = Filter::open();
    for (key, value) in text.split(',').filter_map(|pair| pair.split_once('=')) {
        let some = Some(value.to_owned());
        match (key, value) {
            ("source", _) => filter.source = some,
            ("queue", _) => filter.queue = some,
            ("kind", _) => filter.kind = some,
            ("error", _) => filter.error = some,
            ("state", "any") => filter.state = State::Any,
            ("state", "redriven") => filter.state = State::Redriven,
            _ => filter.state = State::Discarded,
        }
    }
    filter
}

/// Four letters: three jobs, of which one died yesterday and one was redriven, and an event.
async fn four_letters(db: &mut PgConnection) {
    dead_job(db, "Welcome", "No Route to host").await;
    dead_job(db, "Goodbye", "100% full_disk").await;
    job(db, "slow", "Welcome").await;
    kill(db, &JOBS, "timed out").await;
    event(db, None).await;
    kill(db, &EVENTS, "too large").await;
    for change in [
        "failed_at = now() - INTERVAL '1 day' WHERE kind = 'Goodbye'",
        "redriven_at = now() WHERE error = 'timed out'",
    ] {
        run(db, &format!("UPDATE app.dead_letters SET {change}")).await;
    }
}

#[tokio::test]
async fn a_filter_means_what_it_says() {
    let db = database().await;
    let mut db = connect(&db).await;
    four_letters(&mut db).await;
    let newest = all(&mut db, &filter("state=any")).await.remove(0);
    let yesterday = newest.failed_at - time::Duration::hours(1);
    let (mut before, mut after) = (filter("state=any"), filter("state=any"));
    before.failed_before = Some(yesterday);
    after.failed_after = Some(yesterday);

    let cases = [
        (filter(""), 3),
        (filter("state=any"), 4),
        (filter("state=redriven"), 1),
        (filter("state=discarded"), 0),
        (filter("state=any,source=jobs"), 3),
        (filter("state=any,source=nothing"), 0),
        (filter("state=any,queue=mail"), 2),
        (filter("state=any,kind=Welcome"), 2),
        (filter("kind=Welcome"), 1),
        (filter("state=any,error=no route"), 1),
        // No pattern language: these are two plain characters.
        (filter("error=%"), 1),
        (filter("error=_"), 1),
        (before, 1),
        (after, 3),
        (Filter::id(newest.id), 1),
        (Filter::ids([]), 0),
    ];
    for (filter, expected) in cases {
        let preview = letters().preview(&mut db, &filter).await.unwrap();
        assert_eq!(preview.count, expected, "{filter:?}");
        let listed = all(&mut db, &filter).await.len();
        assert_eq!(u64::try_from(listed).unwrap(), expected, "{filter:?}");
    }
    let nul = filter("error=\0");
    let refused = letters().list(&mut db, &nul, &Page::first(1)).await;
    assert!(matches!(refused, Err(Error::Invalid { what: "error", .. })));
}

#[tokio::test]
async fn a_preview_says_what_a_redrive_then_changes() {
    let db = database().await;
    let mut db = connect(&db).await;
    dead_jobs(&mut db, 7).await;
    dead_job(&mut db, "Goodbye", "no").await;
    let lost = dead_job(&mut db, "Goodbye", "no").await;
    run(
        &mut db,
        &format!("DELETE FROM app.jobs WHERE job_id = '{lost}'"),
    )
    .await;

    let preview = letters().preview(&mut db, &Filter::open()).await.unwrap();
    assert_eq!(
        (preview.count, preview.stuck, preview.sample.len()),
        (9, 1, 5)
    );
    let groups: Vec<_> = preview
        .groups
        .iter()
        .map(|g| (g.kind.as_str(), g.letters))
        .collect();
    assert_eq!(groups, [("Welcome", 7), ("Goodbye", 2)]);

    // What dies after the preview is not meant by it.
    dead_job(&mut db, "Late", "no").await;
    let filter = Filter {
        failed_before: Some(preview.as_of),
        ..Filter::open()
    };
    let acted = letters()
        .redrive(&mut db, &filter, "ann", None)
        .await
        .unwrap();
    assert_eq!((acted.letters, acted.stuck), (8, 1));
}

#[tokio::test]
async fn a_redriven_row_starts_anew_and_a_second_redrive_changes_nothing_and_says_so() {
    let db = database().await;
    let mut db = connect(&db).await;
    dead_job(&mut db, "Welcome", "no route to host").await;
    let letter = only(&mut db).await;
    let (letters, filter) = (letters(), Filter::id(letter.id));

    let first = letters
        .redrive(&mut db, &filter, "ann", Some("route is back"))
        .await
        .unwrap();
    assert_eq!((first.letters, first.already, first.missing), (1, 0, 0));
    assert_eq!(
        (first.sources.as_slice(), first.more),
        (["jobs"].as_slice(), false)
    );
    let anew = "SELECT count(*) FROM app.jobs WHERE status = 'PENDING' AND attempt_count = 0
        AND next_retry_at <= clock_timestamp() AND last_error = 'no route to host'";
    assert_eq!(number(&mut db, anew).await, 1);

    let second = letters
        .redrive(&mut db, &filter, "bob", None)
        .await
        .unwrap();
    assert_eq!((second.letters, second.already, second.stuck), (0, 1, 0));
    assert!(second.sources.is_empty());

    let story = letters.show(&mut db, letter.id).await.unwrap().unwrap();
    assert_eq!(story.letter.state(), State::Redriven);
    let [act] = story.trail.as_slice() else {
        panic!("{story:?}")
    };
    assert_eq!((act.action, act.actor.as_str()), (Action::Redrive, "ann"));
    assert_eq!(act.reason.as_deref(), Some("route is back"));
}

#[tokio::test]
async fn a_row_that_dies_again_has_a_letter_of_its_own_and_one_story() {
    let db = database().await;
    let mut db = connect(&db).await;
    dead_job(&mut db, "Welcome", "first").await;
    let first = only(&mut db).await;
    let acted = letters()
        .redrive(&mut db, &Filter::open(), "ann", None)
        .await
        .unwrap();
    assert_eq!(acted.letters, 1);
    kill(&mut db, &JOBS, "second").await;

    let second = only(&mut db).await;
    assert_eq!(
        (second.source_id, second.error.as_str()),
        (first.source_id, "second")
    );
    let again = letters()
        .redrive(&mut db, &Filter::id(first.id), "ann", None)
        .await
        .unwrap();
    assert_eq!((again.letters, again.already), (0, 1));
    let story = letters().show(&mut db, second.id).await.unwrap().unwrap();
    assert_eq!(story.trail.len(), 1);
    assert_eq!(story.trail[0].letter, first.id);
}

#[tokio::test]
async fn a_redrive_that_is_rolled_back_has_not_happened() {
    let db = database().await;
    let mut db = connect(&db).await;
    dead_jobs(&mut db, 3).await;

    let mut tx = db.begin().await.unwrap();
    let acted = letters()
        .redrive(&mut tx, &Filter::open(), "ann", None)
        .await
        .unwrap();
    assert_eq!(acted.letters, 3);
    tx.rollback().await.unwrap();

    assert_eq!(number(&mut db, OPEN).await, 3);
    assert_eq!(number(&mut db, AUDITED).await, 0);
    assert_eq!(
        number(
            &mut db,
            "SELECT count(*) FROM app.jobs WHERE status = 'FAILED'"
        )
        .await,
        3
    );
}

#[tokio::test]
async fn operators_who_act_at_once_change_each_letter_once() {
    let db = database().await;
    let mut one = connect(&db).await;
    dead_jobs(&mut one, 300).await;
    for _ in 0..20 {
        event(&mut one, Some("order:7")).await;
    }
    kill(&mut one, &EVENTS, "too large").await;
    let ids: Vec<_> = all(&mut one, &Filter::open())
        .await
        .iter()
        .map(|l| l.id)
        .collect();

    // Overlapping in every way: all, one source, by id in both orders, and giving up.
    let forwards = Filter::ids(ids.iter().copied());
    let backwards = Filter::ids(ids.iter().rev().copied());
    let events = filter("source=outbox_events");
    let (pool, letters) = (&db.pool, letters().batch(20));
    let redrives = [Filter::open(), forwards, backwards, events].map(|filter| {
        let letters = letters.clone();
        async move {
            let acted = letters
                .redrive_all(pool, &filter, "ann", None)
                .await
                .unwrap();
            acted.letters
        }
    });
    let discard = async {
        let acted = letters
            .discard_all(pool, &Filter::open(), "bob", "stale")
            .await
            .unwrap();
        acted.letters
    };
    let (redriven, discarded) = tokio::join!(join_all(redrives), discard);

    assert_eq!(redriven.iter().sum::<u64>() + discarded, 320);
    assert_eq!(number(&mut one, OPEN).await, 0);
    assert_eq!(number(&mut one, AUDITED).await, 320);
    let twice = "SELECT count(*) FROM (
        SELECT FROM app.dead_letter_audit GROUP BY letter_id HAVING count(*) > 1) AS t";
    assert_eq!(number(&mut one, twice).await, 0);
    let back = "SELECT (SELECT count(*) FROM app.jobs WHERE status = 'PENDING')
        + (SELECT count(*) FROM app.outbox_events WHERE status = 'PENDING')";
    let expected = i64::try_from(redriven.iter().sum::<u64>()).unwrap();
    assert_eq!(number(&mut one, back).await, expected);
}

#[tokio::test]
async fn whoever_waited_for_another_operator_finds_nothing_left_to_do() {
    let db = database().await;
    let (mut ann, mut bob) = (connect(&db).await, connect(&db).await);
    dead_jobs(&mut ann, 3).await;
    let letters = letters();

    let mut tx = ann.begin().await.unwrap();
    let acted = letters
        .redrive(&mut tx, &Filter::open(), "ann", None)
        .await
        .unwrap();
    assert_eq!(acted.letters, 3);
    let open = Filter::open();
    let waiting = letters.redrive(&mut bob, &open, "bob", None);
    let committing = async {
        let blocked = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let mut watcher = connect(&db).await;
        tasuki_testkit::eventually("the second operator waits", async || {
            (number(&mut watcher, blocked).await == 1).then_some(())
        })
        .await;
        tx.commit().await.unwrap();
    };
    let (second, ()) = tokio::join!(waiting, committing);

    assert_eq!(second.unwrap().letters, 0);
    assert_eq!(number(&mut ann, AUDITED).await, 3);
}

#[tokio::test]
async fn only_a_row_that_is_still_dead_is_put_back_or_deleted() {
    let db = database().await;
    let mut db = connect(&db).await;
    let gone = dead_job(&mut db, "Gone", "no").await;
    let back = dead_job(&mut db, "Back", "no").await;
    dead_job(&mut db, "Dead", "no").await;
    run(
        &mut db,
        &format!("DELETE FROM app.jobs WHERE job_id = '{gone}'"),
    )
    .await;
    run(
        &mut db,
        &format!(
            "UPDATE app.jobs SET status = 'PENDING', attempt_count = 2 WHERE job_id = '{back}'"
        ),
    )
    .await;

    // A batch of one: the two that can't be put back don't stand in the way of the third.
    let one = letters().batch(1);
    let acted = one
        .redrive(&mut db, &Filter::open(), "ann", None)
        .await
        .unwrap();
    assert_eq!((acted.letters, acted.more), (1, true));
    let rest = one
        .redrive(&mut db, &Filter::open(), "ann", None)
        .await
        .unwrap();
    assert_eq!((rest.letters, rest.stuck, rest.more), (0, 2, false));

    let given_up = letters()
        .discard(&mut db, &Filter::open(), "ann", "by hand")
        .await
        .unwrap();
    assert_eq!((given_up.letters, given_up.stuck), (2, 0));
    let kept =
        format!("SELECT count(*) FROM app.jobs WHERE job_id = '{back}' AND attempt_count = 2");
    assert_eq!(number(&mut db, &kept).await, 1);
    assert_eq!(number(&mut db, OPEN).await, 0);
}

#[tokio::test]
async fn a_discard_deletes_the_row_keeps_the_letter_and_needs_a_reason() {
    let db = database().await;
    let mut db = connect(&db).await;
    dead_jobs(&mut db, 2).await;
    for (actor, reason) in [
        ("ann", ""),
        ("ann", " \n"),
        ("", "why"),
        ("a\0", "why"),
        ("ann", "\u{7}"),
    ] {
        let refused = letters()
            .discard(&mut db, &Filter::open(), actor, reason)
            .await;
        assert!(
            matches!(refused, Err(Error::Invalid { .. })),
            "{actor:?} {reason:?}"
        );
    }
    let refused = letters().redrive(&mut db, &Filter::open(), " ", None).await;
    assert!(matches!(refused, Err(Error::Invalid { what: "actor", .. })));

    let acted = letters()
        .discard(&mut db, &Filter::open(), "ann", "test data")
        .await
        .unwrap();
    assert_eq!(acted.letters, 2);
    assert_eq!(number(&mut db, "SELECT count(*) FROM app.jobs").await, 0);
    let discarded = filter("state=discarded");
    let letter = all(&mut db, &discarded).await.remove(0);
    let story = letters().show(&mut db, letter.id).await.unwrap().unwrap();
    assert_eq!(story.trail[0].reason.as_deref(), Some("test data"));

    let late = letters()
        .redrive(&mut db, &Filter::id(letter.id), "ann", None)
        .await
        .unwrap();
    assert_eq!((late.letters, late.already), (0, 1));
}

#[tokio::test]
async fn ids_that_are_no_letters_are_told_as_missing() {
    let db = database().await;
    let mut db = connect(&db).await;
    dead_jobs(&mut db, 1).await;
    let known = only(&mut db).await.id;
    let stranger = LetterId::from(Uuid::from_u128(1));
    let filter = Filter::ids([stranger, known, known, stranger]);
    let acted = letters()
        .redrive(&mut db, &filter, "ann", None)
        .await
        .unwrap();
    assert_eq!((acted.letters, acted.already, acted.missing), (1, 0, 1));
}

#[tokio::test]
async fn redriving_all_goes_in_batches_and_leaves_alone_what_dies_meanwhile() {
    let db = database().await;
    let mut one = connect(&db).await;
    dead_jobs(&mut one, 100).await;
    dead_job(&mut one, "Meanwhile", "no").await;
    let later = "UPDATE app.dead_letters SET failed_at = now() + INTERVAL '1 minute' WHERE kind = 'Meanwhile'";
    run(&mut one, later).await;

    let acted = letters()
        .batch(30)
        .redrive_all(&db.pool, &Filter::open(), "ann", None)
        .await
        .unwrap();
    assert_eq!((acted.letters, acted.more), (100, false));
    let transactions = "SELECT count(DISTINCT acted_at) FROM app.dead_letter_audit";
    assert_eq!(number(&mut one, transactions).await, 4);
    assert_eq!(only(&mut one).await.kind, "Meanwhile");
}

#[tokio::test]
async fn a_service_adds_its_tables_and_nobody_touches_a_source_that_he_does_not_know() {
    const NOTIFICATIONS: Table = Table {
        name: "notifications",
        key: "notification_id",
        ..JOBS
    };
    let db = database().await;
    let mut db = connect(&db).await;
    run(
        &mut db,
        "CREATE TABLE app.notifications (LIKE app.jobs INCLUDING ALL)",
    )
    .await;
    run(
        &mut db,
        "ALTER TABLE app.notifications RENAME job_id TO notification_id",
    )
    .await;
    run(
        &mut db,
        "INSERT INTO app.notifications (notification_id, queue, kind, payload)
        VALUES (gen_random_uuid(), 'push', 'Hello', '{}')",
    )
    .await;
    kill(&mut db, &NOTIFICATIONS, "unsubscribed").await;

    let without = letters();
    let acted = without
        .redrive(&mut db, &Filter::open(), "ann", None)
        .await
        .unwrap();
    assert_eq!((acted.letters, acted.stuck), (0, 1));
    let acted = without
        .discard(&mut db, &Filter::open(), "ann", "why")
        .await
        .unwrap();
    assert_eq!((acted.letters, acted.stuck), (0, 1));
    let named = filter("source=notifications");
    let refused = without.redrive(&mut db, &named, "ann", None).await;
    assert!(matches!(refused, Err(Error::UnknownSource(_))));

    let with = Letters::new(&schema(), &[NOTIFICATIONS, JOBS]);
    let sources: Vec<_> = with.sources().collect();
    assert_eq!(
        sources,
        ["jobs", "notifications", "outbox_events", "seqlog_set_aside"]
    );
    let acted = with.redrive(&mut db, &named, "ann", None).await.unwrap();
    assert_eq!(
        (acted.letters, acted.sources.as_slice()),
        (1, ["notifications"].as_slice())
    );
}

#[tokio::test]
async fn a_redriven_event_keeps_its_ordering_key_and_place() {
    let db = database().await;
    let mut db = connect(&db).await;
    event(&mut db, Some("order:7")).await;
    let place = "SELECT seq FROM app.outbox_events WHERE ordering_key = 'order:7'";
    let before = number(&mut db, place).await;
    kill(&mut db, &EVENTS, "too large").await;
    let acted = letters()
        .redrive(&mut db, &Filter::open(), "ann", None)
        .await
        .unwrap();
    assert_eq!((acted.letters, number(&mut db, place).await), (1, before));
}

/// A watch that writes down what it is told, and fails while `refuse` is set.
type Told = Arc<Mutex<Vec<Deaths>>>;

fn watch(db: &TestDb, refuse: &Arc<Mutex<bool>>) -> (impl Worker + use<>, Told) {
    let told = Told::default();
    let (notes, refuse) = (Arc::clone(&told), Arc::clone(refuse));
    let tell = move |deaths: Deaths| {
        let refused = *refuse.lock().unwrap();
        if !refused {
            notes.lock().unwrap().push(deaths);
        }
        async move {
            if refused {
                Err("the webhook is down".into())
            } else {
                Ok(())
            }
        }
    };
    (
        Watch::new("test.dead_letters", db.pool.clone(), &letters(), tell),
        told,
    )
}

#[tokio::test]
async fn a_watch_tells_every_death_once_in_a_summary() {
    let db = database().await;
    let mut one = connect(&db).await;
    dead_jobs(&mut one, 3).await;
    let (watch, told) = watch(&db, &Arc::default());
    assert_eq!(watch.tick().await.unwrap(), Tick::Idle);

    dead_jobs(&mut one, 5).await;
    dead_job(&mut one, "Goodbye", "no").await;
    watch.tick().await.unwrap();
    watch.tick().await.unwrap();
    dead_job(&mut one, "Goodbye", "still no").await;
    watch.tick().await.unwrap();

    let told = told.lock().unwrap();
    let numbers: Vec<_> = told.iter().map(|deaths| deaths.letters).collect();
    assert_eq!(numbers, [6, 1], "what died before the watch is not news");
    let kinds: Vec<_> = told[0]
        .groups
        .iter()
        .map(|g| (g.kind.as_str(), g.letters))
        .collect();
    assert_eq!(kinds, [("Welcome", 5), ("Goodbye", 1)]);
    assert_eq!(told[0].groups[0].error, "no route to host");
    assert_eq!(told[1].groups[0].error, "still no");
}

#[tokio::test]
async fn a_watch_misses_no_death_that_is_committed_after_a_later_one() {
    let db = database().await;
    let (mut early, mut late) = (connect(&db).await, connect(&db).await);
    let (watch, told) = watch(&db, &Arc::default());
    watch.tick().await.unwrap();
    job(&mut early, "mail", "Early").await;

    let mut tx = early.begin().await.unwrap();
    kill(&mut tx, &JOBS, "no").await;
    dead_job(&mut late, "Late", "no").await;
    watch.tick().await.unwrap();
    tx.commit().await.unwrap();
    watch.tick().await.unwrap();
    watch.tick().await.unwrap();

    let told = told.lock().unwrap();
    let kinds: Vec<_> = told
        .iter()
        .map(|deaths| deaths.groups[0].kind.as_str())
        .collect();
    assert_eq!(kinds, ["Late", "Early"]);
}

#[tokio::test]
async fn deaths_that_could_not_be_told_are_told_later() {
    let db = database().await;
    let mut one = connect(&db).await;
    let refuse = Arc::new(Mutex::new(false));
    let (watch, told) = watch(&db, &refuse);
    watch.tick().await.unwrap();

    *refuse.lock().unwrap() = true;
    dead_jobs(&mut one, 2).await;
    assert!(watch.tick().await.is_err());
    dead_jobs(&mut one, 1).await;
    assert!(watch.tick().await.is_err());
    *refuse.lock().unwrap() = false;
    watch.tick().await.unwrap();

    let told = told.lock().unwrap();
    assert_eq!(
        told.iter().map(|deaths| deaths.letters).collect::<Vec<_>>(),
        [3]
    );
}
