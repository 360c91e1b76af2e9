//! What an operator sees of two-phase commits that do not end, and can do about them.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::PgPool;
use tasuki::Schema;
use tasuki::twopc::{Coordinator, Participant, TransactionId};
use tasuki::worker;
use tasuki_testkit::eventually_within;
use tokio::sync::Semaphore;

use crate::support::{Answer, Up, World};

/// Generous: everything has just started.
const LIMIT: Duration = Duration::from_secs(60);
const NOBODY: &str = "01930000-0000-7000-8000-00000000000a";

/// A participant that the shop does not know: it prepares when it is let, can be told to abort, and
/// never hears of a commit.
#[derive(Clone, Debug)]
struct Desk(Arc<Semaphore>);

impl Participant for Desk {
    fn name(&self) -> &'static str {
        "desk"
    }

    async fn prepare(&self, _: TransactionId) -> Result<(), worker::Error> {
        let _let = self.0.acquire().await?;
        Ok(())
    }

    async fn commit(&self, _: TransactionId) -> Result<(), worker::Error> {
        Err("the desk is closed".into())
    }

    async fn abort(&self, _: TransactionId) -> Result<(), worker::Error> {
        Ok(())
    }
}

async fn coordinator(up: &Up, desk: &Desk) -> Coordinator {
    let pool = PgPool::connect(up.env.get("DATABASE_URL")).await.unwrap();
    Coordinator::new(&Schema::new("shop").unwrap(), pool)
        .timeout(LIMIT)
        .participant(desk.clone())
        .unwrap()
}

/// `tasuki twopc …`, by Ann.
async fn twopc(world: &World, line: &str) -> Answer {
    let words: Vec<&str> = ["twopc"].into_iter().chain(line.split(' ')).collect();
    let mut command = world.joined(&words);
    command.env("USER", "ann");
    world.run(command).await
}

async fn show(world: &World, id: &str) -> Value {
    twopc(world, &format!("show {id} --json")).await.json()
}

/// What is refused changes nothing, and says why.
async fn is_refused(world: &World, id: &str, how: &str, why: &str) {
    let refused = twopc(world, &format!("resolve {id} {how} --reason x")).await;
    assert_eq!(refused.code, Some(1), "{how}: {refused:?}");
    assert!(refused.out.starts_with("0 resolved\n"), "{refused:?}");
    assert!(refused.out.contains(why), "{how}: {refused:?}");
}

#[tokio::test]
async fn a_two_phase_commit_that_waits_for_a_participant_is_listed_told_again_and_written_off() {
    let world = World::new();
    let up = world.up().await;
    assert_eq!(twopc(&world, "list").await.ok(), "none is open\n");
    let coordinator = coordinator(&up, &Desk(Arc::new(Semaphore::new(1)))).await;
    let mut tx = coordinator.begin("delivery").await.unwrap();
    tx.enlist("desk").unwrap();
    let committed = tx.commit().await.unwrap();
    assert_eq!(committed.waiting_for, ["desk"]);
    let id = committed.id.to_string();

    it_is_listed(&world, &id).await;
    is_refused(&world, &id, "--abort", "it is decided: COMMIT").await;
    is_refused(&world, &id, "--write-off mars", "mars takes no part").await;
    is_refused(&world, NOBODY, "--commit", "there is no such transaction").await;
    let wordless = format!("resolve {id} --commit --reason ");
    let wordless = twopc(&world, &wordless).await;
    wordless.is_refused(1, &["`reason`", "1 to 1000"]);
    let unknown = twopc(&world, &format!("show {NOBODY}")).await;
    unknown.is_refused(1, &[NOBODY]);
    assert_eq!(show(&world, &id).await["trail"], json!([]));

    let told = format!("resolve {id} --commit --reason open? --json");
    let told = twopc(&world, &told).await.json();
    assert_eq!(told, json!({ "resolved": 1, "already": [], "not": [] }));
    let off = format!("resolve {id} --write-off desk --reason gone");
    assert_eq!(twopc(&world, &off).await.ok(), "1 resolved\n");
    it_ends(&world, &id).await;
    let again = twopc(&world, &off).await.ok();
    assert!(again.starts_with("0 resolved\n"), "{again}");
    assert!(again.contains("COMMIT, desk WRITTEN_OFF"), "{again}");
    is_refused(&world, &id, "--abort", "COMMIT, desk WRITTEN_OFF").await;
}

async fn it_is_listed(world: &World, id: &str) {
    let listed = twopc(world, "list --json").await.json();
    assert_eq!(listed["service"], "shop");
    assert_eq!(listed["open"], 1);
    let one = &listed["transactions"][0];
    assert_eq!((&one["id"], &one["name"]), (&json!(id), &json!("delivery")));
    assert_eq!(one["decision"], "COMMIT");
    assert_eq!(one["waiting_for"], json!(["desk"]));
    let text = twopc(world, "list").await.ok();
    assert!(text.starts_with("1 open, the oldest for "), "{text}");
    assert!(text.contains("desk PREPARED"), "{text}");
}

async fn it_ends(world: &World, id: &str) {
    let ended = eventually_within(LIMIT, "it has ended", async || {
        let shown = show(world, id).await;
        (!shown["finished_at"].is_null()).then_some(shown)
    })
    .await;
    assert_eq!(ended["participants"][0]["state"], "WRITTEN_OFF");
    let trail = ended["trail"].as_array().unwrap();
    let told: Vec<_> = trail.iter().map(|it| &it["action"]).collect();
    assert_eq!(told, ["COMMIT", "WRITE_OFF"]);
    assert!(trail.iter().all(|it| it["actor"] == "cli:ann"), "{trail:?}");
    let finished = twopc(world, "list --finished --json").await.json();
    assert_eq!(finished["open"], 0);
    assert_eq!(finished["transactions"][0]["id"], id);
    let text = twopc(world, &format!("show {id}")).await.ok();
    assert!(text.contains("WRITE_OFF desk"), "{text}");
}

#[tokio::test]
async fn a_two_phase_commit_that_nobody_has_decided_can_be_aborted_and_not_be_committed() {
    let world = World::new();
    let up = world.up().await;
    let gate = Arc::new(Semaphore::new(0));
    let coordinator = coordinator(&up, &Desk(Arc::clone(&gate))).await;
    let mut tx = coordinator.begin("delivery").await.unwrap();
    tx.enlist("desk").unwrap();
    let id = tx.id().to_string();
    let person = async {
        eventually_within(LIMIT, "it is open", async || {
            let listed = twopc(&world, "list --json").await.json();
            (listed["open"] == 1).then_some(())
        })
        .await;
        assert_eq!(show(&world, &id).await["decision"], Value::Null);
        is_refused(&world, &id, "--commit", "it is not decided").await;
        is_refused(&world, &id, "--write-off desk", "it is not decided").await;
        let abort = format!("resolve {id} --abort --reason slow");
        assert_eq!(twopc(&world, &abort).await.ok(), "1 resolved\n");
        is_refused(&world, &id, "--commit", "it is decided: ABORT").await;
        gate.add_permits(1);
    };
    let (ended, ()) = tokio::join!(tx.commit(), person);
    let overruled = ended.unwrap_err().to_string();
    assert!(overruled.contains("is rolled back"), "{overruled}");
    // The shop does not know the desk: who does tells it, as soon as it is due.
    eventually_within(LIMIT, "it has ended", async || {
        let again = format!("resolve {id} --abort --reason again");
        twopc(&world, &again).await.ok();
        coordinator.recovery().drain().await.unwrap();
        let shown = show(&world, &id).await;
        (shown["participants"][0]["state"] == "ABORTED").then_some(())
    })
    .await;
}
