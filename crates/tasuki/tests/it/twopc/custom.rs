//! Participants that are no databases.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tasuki::twopc::{
    BranchState, Committed, Coordinator, Decision, Error, Listed, Participant, TransactionId,
};
use tasuki::worker;
use tokio::sync::Semaphore;

use super::{SECOND, World, add};

/// What a participant of our own remembers, and how it behaves.
#[derive(Clone, Default)]
pub(super) struct Desk(Arc<Inner>);

#[derive(Default)]
struct Inner {
    states: Mutex<BTreeMap<TransactionId, BranchState>>,
    refuses: Mutex<bool>,
    /// Commits and aborts that fail before one succeeds.
    fails: Mutex<u32>,
    gate: Option<Semaphore>,
    asked: Semaphore0,
}

/// Permits are added when somebody comes to the gate.
struct Semaphore0(Semaphore);

impl Default for Semaphore0 {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Desk {
    /// One whose `prepare` waits for [`open`](Self::open).
    pub(super) fn with_gate() -> Self {
        Self(Arc::new(Inner {
            gate: Some(Semaphore::new(0)),
            ..Inner::default()
        }))
    }

    pub(super) fn open(&self) {
        self.0.gate.as_ref().unwrap().add_permits(1);
    }

    /// Waits until it was asked to prepare.
    pub(super) async fn is_asked(&self) {
        self.0.asked.0.acquire().await.unwrap().forget();
    }

    fn refuse(&self) {
        *self.0.refuses.lock().unwrap() = true;
    }

    pub(super) fn fail(&self, times: u32) {
        *self.0.fails.lock().unwrap() = times;
    }

    pub(super) fn states(&self) -> Vec<BranchState> {
        self.0.states.lock().unwrap().values().copied().collect()
    }

    fn end(&self, id: TransactionId, state: BranchState) -> Result<(), worker::Error> {
        let mut fails = self.0.fails.lock().unwrap();
        if *fails > 0 {
            *fails -= 1;
            return Err("the line is busy".into());
        }
        self.0.states.lock().unwrap().insert(id, state);
        Ok(())
    }
}

impl Participant for Desk {
    fn name(&self) -> &str {
        "desk"
    }

    async fn prepare(&self, id: TransactionId) -> Result<(), worker::Error> {
        self.0.asked.0.add_permits(1);
        if let Some(gate) = &self.0.gate {
            gate.acquire().await?.forget();
        }
        if *self.0.refuses.lock().unwrap() {
            return Err("closed on Mondays".into());
        }
        let mut states = self.0.states.lock().unwrap();
        // An abort that has overtaken us.
        if states.contains_key(&id) {
            return Err("too late".into());
        }
        states.insert(id, BranchState::Prepared);
        Ok(())
    }

    async fn commit(&self, id: TransactionId) -> Result<(), worker::Error> {
        self.end(id, BranchState::Committed)
    }

    async fn abort(&self, id: TransactionId) -> Result<(), worker::Error> {
        self.end(id, BranchState::Aborted)
    }
}

pub(super) fn coordinator(world: &World, desk: &Desk) -> Coordinator {
    world.coordinator().participant(desk.clone()).unwrap()
}

/// Takes 30 from east, with the desk.
async fn withdraw(world: &World, desk: &Desk) -> Result<Committed, Error> {
    withdraw_by(&coordinator(world, desk), world).await
}

async fn withdraw_by(coordinator: &Coordinator, world: &World) -> Result<Committed, Error> {
    let mut tx = coordinator.begin("withdraw").await.unwrap();
    add(tx.on(&world.east()).await.unwrap(), -30).await.unwrap();
    tx.enlist("desk").unwrap();
    tx.commit().await
}

#[tokio::test]
async fn a_participant_of_ones_own_commits_with_the_database_or_aborts_with_it() {
    let (world, desk) = (World::new().await, Desk::default());
    withdraw(&world, &desk).await.unwrap();
    assert_eq!(world.units().await, (70, 100));
    assert_eq!(desk.states(), [BranchState::Committed]);

    desk.refuse();
    let error = withdraw(&world, &desk).await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused { participant, .. } if participant == "desk"),
        "{error:?}"
    );
    assert_eq!(world.units().await, (70, 100));
    assert_eq!(
        desk.states(),
        [BranchState::Committed, BranchState::Aborted]
    );
    assert_eq!(world.prepared().await, [""; 0]);
}

#[tokio::test]
async fn a_participant_that_does_not_answer_in_time_aborts_all() {
    let (world, desk) = (World::new().await, Desk::with_gate());
    let coordinator = coordinator(&world, &desk).timeout(SECOND);
    let error = withdraw_by(&coordinator, &world).await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused { participant, .. } if participant == "desk"),
        "{error:?}"
    );
    assert_eq!(world.units().await, (100, 100));
    assert_eq!(desk.states(), [BranchState::Aborted]);
    assert_eq!(world.prepared().await, [""; 0]);
}

#[tokio::test]
async fn a_participant_that_fails_to_commit_is_told_again_until_it_does_and_shown_meanwhile() {
    let (world, desk) = (World::new().await, Desk::default());
    desk.fail(3);
    let committed = withdraw(&world, &desk).await.unwrap();
    assert_eq!(committed.waiting_for, ["desk"]);
    assert_eq!(world.units().await, (70, 100), "east has not waited for it");
    for tries in 1..=2 {
        let open = world.open().await;
        assert_eq!(
            (open.id, open.decision),
            (committed.id, Some(Decision::Commit))
        );
        assert_eq!(open.tries, tries);
        assert!(
            open.last_error
                .as_ref()
                .unwrap()
                .contains("desk: the line is busy")
        );
        let (name, branch) = open.waiting_for().next().unwrap();
        assert_eq!((name, branch.tries), ("desk", tries));
        assert_eq!(branch.error.as_deref(), Some("the line is busy"));
        world.time_passes().await;
        coordinator(&world, &desk).recovery().drain().await.unwrap();
    }
    assert_eq!(desk.states(), [BranchState::Prepared]);
    world.time_passes().await;
    coordinator(&world, &desk).recovery().drain().await.unwrap();
    assert_eq!(desk.states(), [BranchState::Committed]);
    assert_eq!(world.list(Listed::Open).await, []);
}

#[tokio::test]
async fn an_abort_that_fails_holds_up_no_other_and_is_tried_again() {
    let (world, desk) = (World::new().await, Desk::default());
    desk.refuse();
    desk.fail(1);
    withdraw(&world, &desk).await.unwrap_err();
    assert_eq!(world.units().await, (100, 100));
    assert_eq!(world.prepared().await, [""; 0]);
    let open = world.open().await;
    assert_eq!(open.decision, Some(Decision::Abort));
    assert_eq!(open.branches["east"].state, BranchState::Aborted);
    world.time_passes().await;
    coordinator(&world, &desk).recovery().drain().await.unwrap();
    assert_eq!(desk.states(), [BranchState::Aborted]);
    assert_eq!(world.list(Listed::Open).await, []);
}

#[tokio::test]
async fn an_abort_before_the_commit_tells_participants_of_ones_own() {
    let (world, desk) = (World::new().await, Desk::default());
    let mut tx = coordinator(&world, &desk).begin("withdraw").await.unwrap();
    tx.enlist("desk").unwrap();
    tx.abort().await;
    assert_eq!(desk.states(), [BranchState::Aborted]);
}

#[tokio::test]
async fn a_participant_of_ones_own_alone_is_prepared_and_logged_as_well() {
    let (world, desk) = (World::new().await, Desk::default());
    let mut tx = coordinator(&world, &desk).begin("withdraw").await.unwrap();
    tx.enlist("desk").unwrap();
    tx.commit().await.unwrap();
    assert_eq!(desk.states(), [BranchState::Committed]);
    assert_eq!(world.list(Listed::Finished).await.len(), 1);
}
