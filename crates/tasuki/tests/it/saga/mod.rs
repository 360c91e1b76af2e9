//! Sagas against a real database.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests may fail the test"
)]

mod again;
mod back;
mod birth;
mod drift;
mod fenced;
mod forward;
mod kit;
mod operate;
mod pauses;
mod poison;
mod takeover;
mod together;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgPool};
use tasuki::barrier;
use tasuki::lease::Owner;
use tasuki::migrate::library;
use tasuki::retry::{Backoff, Policy};
use tasuki::saga::{
    Again, At, Definition, Ended, Engine, Fail, Local, LocalUndo, Registry, Remote, RemoteUndo,
    SagaId, Sagas, Settings, State, Step, Tx, View,
};
use tasuki::worker::{Stopped, Supervisor};
use tasuki::{Clock, Schema};
use tasuki_testkit::{TestDb, eventually};
use tokio::sync::Notify;

const GRACE: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3600);
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Trouble(String);

/// What a step is told to answer.
#[derive(Clone, Debug)]
enum Answer {
    Abort,
    Retry,
    /// Not before an hour has passed.
    Later,
    Unknown,
    Stuck,
    /// Waits until the test lets it go.
    Hold,
    Panic,
    /// A statement fails, and the step says nothing of it.
    Swallow,
}

/// What the steps of a test share: what they are told, and what they did.
#[derive(Clone, Default)]
struct World {
    script: Arc<Mutex<HashMap<String, VecDeque<Answer>>>>,
    log: Arc<Mutex<Vec<String>>>,
    keys: Arc<Mutex<Vec<String>>>,
    /// What each was done, or undone, as: the key of the action, and that of its barrier.
    actions: Arc<Mutex<Vec<(String, barrier::Key)>>>,
    gate: Arc<Notify>,
    retries: Arc<Mutex<Option<Policy>>>,
}

impl World {
    /// The next attempts of `what` (`a:act`) end like this; those behind them go well.
    fn tell(&self, what: &str, answers: impl IntoIterator<Item = Answer>) {
        let mut script = self.script.lock().unwrap();
        script.entry(what.to_owned()).or_default().extend(answers);
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    fn keys(&self) -> Vec<String> {
        self.keys.lock().unwrap().clone()
    }

    fn next(&self, at: &At) -> Option<Answer> {
        let what = format!("{}:{}", at.step(), at.phase().as_str());
        self.log.lock().unwrap().push(what.clone());
        self.keys.lock().unwrap().push(at.key());
        let action = (at.action_key(), at.barrier_key());
        self.actions.lock().unwrap().push(action);
        self.script.lock().unwrap().get_mut(&what)?.pop_front()
    }

    fn policy(&self) -> Policy {
        let policy = self.retries.lock().unwrap().clone();
        policy.unwrap_or_else(|| Policy::new(3, Backoff::list([Duration::from_millis(1)])))
    }
}

/// A step in the database: writes a row when done, and one when undone.
struct L<const N: usize>(World);
/// A step elsewhere: the log is what it did.
struct R<const N: usize>(World);
/// The same, that can't abort.
struct F<const N: usize>(World);
struct G<const N: usize>(World);

macro_rules! step {
    ($($name:ident $failure:ty;)*) => {$(
        impl<const N: usize> Step for $name<N> {
            const NAME: &'static str = NAMES[N];
            type Input = u32;
            type Output = String;
            type Failure = $failure;

            fn retry(&self) -> Policy {
                self.0.policy()
            }

            fn undo_retry(&self) -> Policy {
                self.0.policy()
            }

            fn timeout(&self) -> Duration {
                GRACE
            }
        }
    )*};
}

step! {
    L Fail<Trouble>;
    R Fail<Trouble>;
    F Again<Trouble>;
    G Again<Trouble>;
}

async fn wrote(tx: &mut Tx, at: &At) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO app.effects (saga_id, step, phase) VALUES ($1, $2, $3)")
        .bind(at.saga().as_uuid())
        .bind(at.step())
        .bind(at.phase().as_str())
        .execute(tx.get().await?)
        .await?;
    Ok(())
}

impl World {
    async fn local(&self, tx: &mut Tx, at: &At) -> Result<String, Fail<Trouble>> {
        let trouble = || Trouble(format!("{} said no", at.step()));
        let store = |error: sqlx::Error| Fail::retry(Trouble(error.to_string()));
        let answer = self.next(at);
        wrote(tx, at).await.map_err(store)?;
        match answer {
            None => Ok(format!("{} done", at.step())),
            Some(Answer::Abort) => Err(Fail::abort(trouble())),
            Some(Answer::Retry | Answer::Stuck) => Err(Fail::retry(trouble())),
            Some(Answer::Later) => Err(Fail::retry_after(HOUR, trouble())),
            Some(Answer::Unknown) => Err(Fail::unknown(trouble())),
            Some(Answer::Panic) => panic!("on purpose"),
            Some(Answer::Swallow) => {
                let connection = tx.get().await.map_err(store)?;
                sqlx::query("SELECT 1 / 0")
                    .execute(connection)
                    .await
                    .unwrap_err();
                Ok("swallowed".to_owned())
            }
            Some(Answer::Hold) => {
                self.gate.notified().await;
                Ok("held".to_owned())
            }
        }
    }

    async fn remote(&self, at: &At) -> Result<String, Fail<Trouble>> {
        let trouble = || Trouble(format!("{} said no", at.step()));
        match self.next(at) {
            None => Ok(format!("{} done", at.step())),
            Some(Answer::Abort) => Err(Fail::abort(trouble())),
            Some(Answer::Retry | Answer::Stuck) => Err(Fail::retry(trouble())),
            Some(Answer::Later) => Err(Fail::retry_after(HOUR, trouble())),
            Some(Answer::Unknown | Answer::Swallow) => Err(Fail::unknown(trouble())),
            Some(Answer::Panic) => panic!("on purpose"),
            Some(Answer::Hold) => {
                self.gate.notified().await;
                Ok("held".to_owned())
            }
        }
    }

    fn again(&self, at: &At) -> Result<(), Again<Trouble>> {
        let trouble = || Trouble(format!("{} said no", at.step()));
        match self.next(at) {
            None => Ok(()),
            Some(Answer::Stuck) => Err(Again::stuck(trouble())),
            Some(_) => Err(Again::retry(trouble())),
        }
    }
}

impl<const N: usize> Local for L<N> {
    async fn act(&self, tx: &mut Tx, _: &u32, at: &At) -> Result<String, Fail<Trouble>> {
        self.0.local(tx, at).await
    }
}

impl<const N: usize> LocalUndo for L<N> {
    async fn undo(&self, tx: &mut Tx, _: &u32, _: &String, at: &At) -> Result<(), Again> {
        wrote(tx, at).await?;
        self.0.again(at).map_err(|again| {
            let failed = format!("{again:?}");
            match failed.contains("Stuck") {
                true => Again::stuck(failed),
                false => Again::retry(failed),
            }
        })
    }
}

impl<const N: usize> Remote for R<N> {
    async fn act(&self, _: &u32, at: &At) -> Result<String, Fail<Trouble>> {
        self.0.remote(at).await
    }
}

impl<const N: usize> RemoteUndo for R<N> {
    async fn undo(&self, _: &u32, _: Option<&String>, at: &At) -> Result<(), Again> {
        self.0.again(at).map_err(|again| {
            let failed = format!("{again:?}");
            match failed.contains("Stuck") {
                true => Again::stuck(failed),
                false => Again::retry(failed),
            }
        })
    }
}

impl<const N: usize> Local for F<N> {
    async fn act(&self, tx: &mut Tx, _: &u32, at: &At) -> Result<String, Again<Trouble>> {
        let store = |error: sqlx::Error| Again::retry(Trouble(error.to_string()));
        wrote(tx, at).await.map_err(store)?;
        self.0.again(at)?;
        Ok("forward".to_owned())
    }
}

impl<const N: usize> Remote for G<N> {
    async fn act(&self, _: &u32, at: &At) -> Result<String, Again<Trouble>> {
        self.0.again(at)?;
        Ok("forward".to_owned())
    }
}

/// A migrated database with a table for effects.
struct Bench {
    db: TestDb,
    sagas: Sagas,
    world: World,
}

/// One process, as far as sagas can tell.
struct Process {
    engine: Engine,
    supervisor: Supervisor,
}

impl Bench {
    async fn new() -> Self {
        let schema = Schema::new("app").unwrap();
        let db = TestDb::new(&[library(&schema)]).await;
        let table = "CREATE TABLE app.effects (
            saga_id uuid NOT NULL, step text NOT NULL, phase text NOT NULL,
            n bigint GENERATED ALWAYS AS IDENTITY
        )";
        sqlx::query(table).execute(&db.pool).await.unwrap();
        Self {
            db,
            sagas: Sagas::new(&schema),
            world: World::default(),
        }
    }

    fn pool(&self) -> &PgPool {
        &self.db.pool
    }

    fn settings(&self, owner: &str) -> Settings {
        Settings::new("test.sagas", self.pool().clone())
            .owner(Owner::on(owner))
            .poll(Duration::from_millis(20))
    }

    fn process(&self, registry: &Registry) -> Process {
        self.process_of(registry, self.settings("one"))
    }

    fn process_of(&self, registry: &Registry, settings: Settings) -> Process {
        let engine = Engine::new(&self.sagas, registry.clone(), settings).unwrap();
        let supervisor = Supervisor::new(Clock::system());
        engine.start(&supervisor);
        Process { engine, supervisor }
    }

    /// Runs one saga in a process of its own, to its end.
    async fn run(&self, definition: &Definition<u32>) -> (Ended, View) {
        let process = self.process(&Registry::new().with(definition));
        let ended = process.engine.run(definition, &7).await.unwrap();
        self.is_written_down(ended.id).await;
        process.stop().await;
        let view = self.view(ended.id).await;
        (ended, view)
    }

    async fn view(&self, id: SagaId) -> View {
        let mut connection = self.pool().acquire().await.unwrap();
        self.sagas.get(&mut connection, id).await.unwrap().unwrap()
    }

    /// Its engine has written down what the steps of its definition are. No saga waits for that.
    async fn is_written_down(&self, id: SagaId) {
        let name = self.view(id).await.definition;
        eventually("the definition is written down", async || {
            let mut connection = self.pool().acquire().await.unwrap();
            let outlines = self.sagas.outlines(&mut connection).await.unwrap();
            let is_there = outlines.iter().any(|it| it.definition == name);
            is_there.then_some(())
        })
        .await;
    }

    async fn until(&self, id: SagaId, state: &State) -> View {
        eventually("the saga is in that state", async || {
            let view = self.view(id).await;
            (view.state == *state).then_some(view)
        })
        .await
    }

    /// An engine has looked at the saga, which rests again.
    async fn is_claimed_early(&self, id: SagaId) {
        let moves = "SELECT moves::bigint FROM app.sagas";
        let before = self.scalar(moves).await;
        let now = "UPDATE app.sagas SET next_retry_at = now()";
        sqlx::query(now).execute(self.pool()).await.unwrap();
        eventually("it was looked at, and rests again", async || {
            let looked = self.scalar(moves).await > before;
            (looked && self.view(id).await.due_at.is_some()).then_some(())
        })
        .await;
    }

    /// As if an hour had passed since the last move of each.
    async fn hour_passes(&self) {
        let hour = "UPDATE app.sagas SET
            updated_at = updated_at - interval '1 hour',
            next_retry_at = next_retry_at - interval '1 hour'";
        sqlx::query(hour).execute(self.pool()).await.unwrap();
    }

    /// `a:act`, `a:undo` … as they are committed.
    async fn effects(&self) -> Vec<String> {
        sqlx::query_scalar("SELECT step || ':' || phase FROM app.effects ORDER BY n")
            .fetch_all(self.pool())
            .await
            .unwrap()
    }

    async fn scalar(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(self.pool())
            .await
            .unwrap()
    }
}

impl Process {
    async fn stop(&self) {
        assert_eq!(self.supervisor.stop(GRACE).await, Stopped::Finished);
    }
}

fn l<const N: usize>(world: &World) -> L<N> {
    L(world.clone())
}

fn r<const N: usize>(world: &World) -> R<N> {
    R(world.clone())
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Three steps in the database.
fn three_local(world: &World) -> Definition<u32> {
    tasuki::saga::define::<u32>("three", 1)
        .local(l::<0>(world), |saga| Ok(*saga.input()))
        .local(l::<1>(world), |saga| Ok(*saga.input()))
        .local(l::<2>(world), |saga| Ok(*saga.input()))
        .build()
        .unwrap()
}

/// Three steps elsewhere.
fn three_remote(world: &World) -> Definition<u32> {
    tasuki::saga::define::<u32>("three", 1)
        .remote(r::<0>(world), |saga| Ok(*saga.input()))
        .remote(r::<1>(world), |saga| Ok(*saga.input()))
        .remote(r::<2>(world), |saga| Ok(*saga.input()))
        .build()
        .unwrap()
}

#[tokio::test]
async fn keys_are_of_a_saga_a_step_and_a_direction_and_of_nothing_else() {
    let bench = Bench::new().await;
    let definition = three_remote(&bench.world);
    let mut all = Vec::new();
    for _ in 0..2 {
        bench.world.tell("b:act", [Answer::Retry]);
        bench.world.tell("c:act", [Answer::Abort]);
        bench.world.tell("a:undo", [Answer::Retry]);
        let (ended, _) = bench.run(&definition).await;
        assert_eq!(ended.state, State::Compensated);
        let calls = "a:act b:act b:act c:act b:undo a:undo a:undo";
        all.extend(
            words(calls)
                .iter()
                .map(|call| format!("{}:{call}", ended.id)),
        );
    }
    assert_eq!(bench.world.keys(), all);
}
