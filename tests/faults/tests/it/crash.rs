//! SIGKILL at every await that separates two durable effects.

use crate::site::Site;

/// Kills a process when it comes to `point`, for these times of coming there, and lets another go
/// on.
async fn killed_at(point: &str, times: [&str; 2], jobs: i64) -> Site {
    let site = Site::open().await;
    for (round, nth) in (1..).zip(times) {
        site.enqueue(150, usize::try_from(jobs).unwrap()).await;
        let mut dies = site.node(&["--crash-at", point, "--nth", nth]).await;
        dies.is_killed().await;
        let lives = site.node(&[]).await;
        site.comes_to_rest(150 * round, jobs * round).await;
        lives.stop().await;
    }
    site
}

macro_rules! killed_at {
    ($($name:ident $point:literal;)*) => {$(
        #[tokio::test]
        async fn $name() {
            killed_at($point, ["1", "3"], 40).await;
        }
    )*};
}

killed_at! {
    killed_after_a_claim_every_row_has_one_effect "lease.claimed";
    killed_after_a_settlement_every_row_has_one_effect "lease.settled";
    killed_between_the_commit_of_a_consumer_and_its_ack_every_event_has_one_effect "consumer.handled";
}

/// What was published and not settled is published again, and nobody counts it twice.
async fn killed_with_published_events_in_hand(point: &str) {
    // Without jobs nobody else comes to this point, and the relay maybe once.
    let site = killed_at(point, ["1", "1"], 0).await;
    let messages = site.messages().await.len();
    assert!(messages > 300, "{messages} messages for 300 events");
}

#[tokio::test]
async fn killed_after_a_publish_the_events_are_published_again_and_have_one_effect() {
    killed_with_published_events_in_hand("outbox.published").await;
}

#[tokio::test]
async fn killed_before_a_settlement_the_events_are_published_again_and_have_one_effect() {
    killed_with_published_events_in_hand("lease.worked").await;
}

#[tokio::test]
async fn killed_while_a_job_dies_it_has_one_letter_and_its_hook_one_effect() {
    let site = Site::open().await;
    site.enqueue_poison().await;
    let mut dies = site.node(&["--crash-at", "lease.buried"]).await;
    dies.is_killed().await;
    assert_eq!(site.effects("death").await, 0);
    let lives = site.node(&[]).await;
    let letters = "SELECT count(*) FROM app.dead_letters";
    tasuki_testkit::eventually("it is dead", async || {
        (site.count(letters).await > 0).then_some(())
    })
    .await;
    lives.stop().await;
    assert_eq!(site.count(letters).await, 1);
    assert_eq!(site.effects("death").await, 1);
}

#[tokio::test]
async fn killed_before_the_commit_of_a_request_nothing_has_happened_and_the_retry_does_it() {
    let site = Site::open().await;
    let mut dies = site
        .node(&["--ask", "k", "--crash-at", "idempotency.before_commit"])
        .await;
    dies.is_killed().await;
    assert_eq!(site.effects("request").await, 0);
    let answer = site.ask("k").await;
    assert_eq!(site.ask("k").await, answer);
    assert_eq!(site.effects("request").await, 1);
}

#[tokio::test]
async fn killed_between_the_commit_of_a_request_and_its_answer_the_retry_gets_the_stored_answer() {
    let site = Site::open().await;
    let mut dies = site
        .node(&["--ask", "k", "--crash-at", "idempotency.committed"])
        .await;
    dies.is_killed().await;
    assert_eq!(site.effects("request").await, 1);
    let done: String = sqlx::query_scalar("SELECT id::text FROM app.effects")
        .fetch_one(&site.pool)
        .await
        .unwrap();
    assert_eq!(site.ask("k").await, done);
    assert_eq!(site.effects("request").await, 1);
}

const EVENT: &str = "01937d5e-0000-7000-8000-000000000001";

#[tokio::test]
async fn killed_before_the_commit_of_an_effect_the_event_is_new_to_the_next_who_takes_it() {
    let site = Site::open().await;
    let take = ["--take", EVENT];
    let mut dies = site
        .node(&[&take[..], &["--crash-at", "inbox.before_commit"]].concat())
        .await;
    dies.is_killed().await;
    assert_eq!(site.effects("taken").await, 0);
    assert_eq!(site.answer(&take).await, "new");
    assert_eq!(site.answer(&take).await, "duplicate");
    assert_eq!(site.effects("taken").await, 1);
}

#[tokio::test]
async fn killed_after_the_commit_of_an_effect_the_event_is_a_duplicate_to_the_next_who_takes_it() {
    let site = Site::open().await;
    let take = ["--take", EVENT];
    let mut dies = site
        .node(&[&take[..], &["--crash-at", "inbox.committed"]].concat())
        .await;
    dies.is_killed().await;
    assert_eq!(site.effects("taken").await, 1);
    assert_eq!(site.answer(&take).await, "duplicate");
    assert_eq!(site.effects("taken").await, 1);
}

/// How many effects, events and entries of the story the reaction has left.
async fn left_by_a_reaction(site: &Site) -> (i64, i64, i64) {
    (
        site.effects("reaction").await,
        site.count("SELECT count(*) FROM app.outbox_events").await,
        site.count("SELECT count(*) FROM app.stories").await,
    )
}

#[tokio::test]
async fn killed_before_the_commit_of_a_reaction_nothing_was_told_and_the_next_reacts() {
    let site = Site::open().await;
    let react = ["--react", EVENT];
    let mut dies = site
        .node(&[&react[..], &["--crash-at", "choreography.before_commit"]].concat())
        .await;
    dies.is_killed().await;
    assert_eq!(left_by_a_reaction(&site).await, (0, 0, 0));
    assert_eq!(site.answer(&react).await, "new");
    assert_eq!(site.answer(&react).await, "duplicate");
    assert_eq!(left_by_a_reaction(&site).await, (1, 1, 2));
}

#[tokio::test]
async fn killed_after_the_commit_of_a_reaction_it_was_told_once() {
    let site = Site::open().await;
    let react = ["--react", EVENT];
    let mut dies = site
        .node(&[&react[..], &["--crash-at", "choreography.committed"]].concat())
        .await;
    dies.is_killed().await;
    assert_eq!(left_by_a_reaction(&site).await, (1, 1, 2));
    assert_eq!(site.answer(&react).await, "duplicate");
    assert_eq!(left_by_a_reaction(&site).await, (1, 1, 2));
}

#[tokio::test]
async fn killed_while_a_schedule_is_due_its_job_is_enqueued_once_by_the_next() {
    let site = Site::open().await;
    sqlx::query(
        "INSERT INTO app.job_schedules (name, expression, next_at)
         VALUES ('hourly', 'every 3600 s', now() - interval '1 s')",
    )
    .execute(&site.pool)
    .await
    .unwrap();
    let due = "SELECT count(*) FROM app.job_schedules WHERE next_at <= now()";
    let mut dies = site
        .node(&["--hourly", "--crash-at", "jobs.repeated"])
        .await;
    dies.is_killed().await;
    assert_eq!(site.count(due).await, 1, "nobody has moved it on");
    assert_eq!(site.count("SELECT count(*) FROM app.jobs").await, 0);

    let lives = [
        site.node(&["--hourly"]).await,
        site.node(&["--hourly"]).await,
    ];
    site.comes_to_rest(0, 1).await;
    for node in lives {
        node.stop().await;
    }
    assert_eq!(site.count(due).await, 0);
    assert_eq!(site.effects("job").await, 1);
}
