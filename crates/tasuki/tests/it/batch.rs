//! Commands that wait at the same time share one transaction.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests may fail the test"
)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::PgPool;
use tasuki::batch::{Batcher, Error, Group, Options, Ran};
use tasuki::idempotency::{self, Keys, Opened, Reply, Request, RequestHash};
use tasuki::worker::{Stopped, Supervisor};
use tasuki::{Clock, Schema};
use tasuki_testkit::{TestDb, eventually};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::dropped;

const GRACE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Command {
    Double(u32),
    Refuse,
    Fail,
    FailEveryone,
    Panic,
    Miscount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Trouble {
    #[error("refused")]
    Refused,
    #[error("bad command")]
    Bad,
    #[error("the database is away")]
    Away,
}

/// A group whose batches begin when the test gives a permit, and that remembers them.
#[derive(Clone)]
struct Scripted {
    permits: Arc<Semaphore>,
    batches: Arc<Mutex<Vec<Vec<Command>>>>,
}

impl Scripted {
    fn held() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(0)),
            batches: Arc::default(),
        }
    }

    fn free() -> Self {
        let group = Self::held();
        group.release();
        group
    }

    fn release(&self) {
        self.permits.add_permits(1_000_000);
    }

    fn batches(&self) -> Vec<Vec<Command>> {
        self.batches.lock().unwrap().clone()
    }

    async fn until_batches(&self, number: usize) {
        eventually("so many batches have begun", async || {
            (self.batches().len() >= number).then_some(())
        })
        .await;
    }
}

impl Group for Scripted {
    type Command = Command;
    type Reply = u32;
    type Error = Trouble;

    async fn run(&self, commands: &[Command]) -> Ran<u32, Trouble> {
        self.batches.lock().unwrap().push(commands.to_vec());
        self.permits.acquire().await.unwrap().forget();
        let mut verdicts = Vec::new();
        for command in commands {
            verdicts.push(match command {
                Command::Double(number) => Ok(number * 2),
                Command::Refuse => Err(Trouble::Refused),
                Command::Fail => return Err(Trouble::Bad),
                Command::FailEveryone => return Err(Trouble::Away),
                Command::Panic => panic!("on purpose"),
                Command::Miscount => return Ok(Vec::new()),
            });
        }
        Ok(verdicts)
    }

    fn is_everyones(&self, error: &Trouble) -> bool {
        *error == Trouble::Away
    }
}

type Answered = Result<u32, Error<Trouble>>;

/// A group that is held in its first batch, `[Double(0)]`, so that what is submitted queues.
struct Env {
    group: Scripted,
    batcher: Batcher<Scripted>,
    supervisor: Supervisor,
    first: JoinSet<Answered>,
}

async fn busy(options: Options) -> Env {
    let group = Scripted::held();
    let supervisor = Supervisor::new(Clock::system());
    let batcher = Batcher::new("test.batch", group.clone(), options);
    batcher.start(&supervisor);
    let mut first = JoinSet::new();
    let submitting = batcher.clone();
    first.spawn(async move { submitting.submit(Command::Double(0)).await });
    group.until_batches(1).await;
    Env {
        group,
        batcher,
        supervisor,
        first,
    }
}

impl Env {
    /// Submits `commands` in their order, lets the group go, and returns their answers.
    async fn answers(&mut self, commands: &[Command]) -> Vec<Answered> {
        let submits = commands
            .iter()
            .map(|command| self.batcher.submit(command.clone()));
        let submits = futures_util::future::join_all(submits);
        let letting_go = async { self.group.release() };
        // Polled in this order: everything has queued before the group goes on.
        let (answers, ()) = tokio::join!(submits, letting_go);
        self.first.join_next().await.unwrap().unwrap().unwrap();
        answers
    }
}

fn doubles(numbers: std::ops::Range<u32>) -> Vec<Command> {
    numbers.map(Command::Double).collect()
}

#[tokio::test]
async fn what_queued_while_a_batch_ran_is_the_next_batch_in_the_order_it_came() {
    let mut env = busy(Options::default().max_batch(10)).await;
    let commands = doubles(1..26);

    let answers = env.answers(&commands).await;

    let answers: Vec<u32> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers, (1..26).map(|n| n * 2).collect::<Vec<_>>());
    let batches = env.group.batches();
    let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 10, 10, 5]);
    assert_eq!(batches[1..].concat(), commands);
}

#[tokio::test]
async fn an_idle_batcher_runs_a_command_at_once() {
    let group = Scripted::free();
    let supervisor = Supervisor::new(Clock::system());
    let batcher = Batcher::new("test.batch", group, Options::default());
    batcher.start(&supervisor);
    let began = std::time::Instant::now();
    for number in 0..200 {
        let reply = batcher.submit(Command::Double(number)).await.unwrap();
        assert_eq!(reply, number * 2);
    }
    // Had each waited for the poll, this would have taken minutes.
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn one_bad_command_never_fails_another() {
    for bad in [Command::Fail, Command::Panic] {
        let mut env = busy(Options::default()).await;
        let commands = [
            Command::Double(1),
            bad.clone(),
            Command::Refuse,
            Command::Double(2),
        ];

        let answers = env.answers(&commands).await;

        let [first, failed, refused, last] = answers.try_into().unwrap();
        assert_eq!((first.unwrap(), last.unwrap()), (2, 4));
        assert!(matches!(refused, Err(Error::Refused(Trouble::Refused))));
        match bad {
            Command::Panic => assert!(matches!(failed, Err(Error::Panicked)), "{failed:?}"),
            _ => assert!(matches!(&failed, Err(Error::Failed(error)) if **error == Trouble::Bad)),
        }
        // The batch, then each alone.
        assert_eq!(env.group.batches().len(), 1 + 1 + 4);
        let health = env.supervisor.health().pop().unwrap();
        assert_eq!((health.failures, health.panics), (0, 0));
    }
}

#[tokio::test]
async fn a_lone_command_that_fails_is_not_run_again() {
    for bad in [Command::Fail, Command::Panic] {
        let mut env = busy(Options::default()).await;
        let answers = env.answers(&[bad]).await;
        assert!(answers[0].is_err());
        assert_eq!(env.group.batches().len(), 2);
    }
}

#[tokio::test]
async fn an_error_that_is_everyones_is_told_to_everyone_at_once() {
    let mut env = busy(Options::default()).await;
    let commands = [
        Command::Double(1),
        Command::FailEveryone,
        Command::Double(2),
    ];
    for answer in env.answers(&commands).await {
        assert!(matches!(answer, Err(Error::Failed(error)) if *error == Trouble::Away));
    }
    assert_eq!(env.group.batches().len(), 2);

    // Found while they run one by one, it spares those who are left.
    let mut env = busy(Options::default()).await;
    let commands = [
        Command::Double(1),
        Command::Fail,
        Command::FailEveryone,
        Command::Double(2),
    ];
    let answers = env.answers(&commands).await;
    let [first, bad, away, last] = answers.try_into().unwrap();
    assert_eq!(first.unwrap(), 2);
    assert!(matches!(bad, Err(Error::Failed(error)) if *error == Trouble::Bad));
    for answer in [away, last] {
        assert!(matches!(answer, Err(Error::Failed(error)) if *error == Trouble::Away));
    }
    assert_eq!(env.group.batches().len(), 2 + 3);
}

#[tokio::test]
async fn a_group_that_miscounts_is_told_and_not_run_again() {
    let mut env = busy(Options::default()).await;
    for answer in env.answers(&[Command::Double(1), Command::Miscount]).await {
        let miscounted: Error<Trouble> = Error::Miscounted {
            expected: 2,
            got: 0,
        };
        assert_eq!(answer.unwrap_err().to_string(), miscounted.to_string());
    }
    assert_eq!(env.group.batches().len(), 2);
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_what_waits_is_served() {
    let mut env = busy(Options::default().queue(3)).await;
    let answers = env.answers(&doubles(1..6)).await;
    let (served, refused) = answers.split_at(3);
    assert!(served.iter().all(Result::is_ok));
    assert!(
        refused
            .iter()
            .all(|it| matches!(it, Err(Error::Overloaded)))
    );
}

#[tokio::test]
async fn a_full_queue_is_waited_for_as_long_as_it_may() {
    let mut env = busy(Options::default().queue(3).max_batch(3).wait(GRACE)).await;
    let answers = env.answers(&doubles(1..12)).await;
    assert!(answers.iter().all(Result::is_ok));

    let options = Options::default().queue(1).wait(Duration::from_millis(50));
    let mut env = busy(options).await;
    let waiting = env.batcher.clone();
    env.first
        .spawn(async move { waiting.submit(Command::Double(1)).await });
    eventually("one waits", async || {
        format!("{:?}", env.batcher)
            .contains("waiting: 1")
            .then_some(())
    })
    .await;
    let refused = env.batcher.submit(Command::Double(2)).await;
    assert!(matches!(refused, Err(Error::Overloaded)));
    env.group.release();
}

#[tokio::test]
async fn a_caller_that_goes_away_while_it_waits_takes_its_command_along() {
    let mut env = busy(Options::default()).await;
    let gone = dropped::after(1, env.batcher.submit(Command::Double(7))).await;
    assert!(gone.is_none());

    env.answers(&[Command::Double(8)]).await;

    assert_eq!(env.group.batches()[1], [Command::Double(8)]);
}

#[tokio::test]
async fn a_stop_runs_what_has_queued_and_lets_nobody_in() {
    let mut env = busy(Options::default().max_batch(2)).await;
    let mut waiting = JoinSet::new();
    for number in 1..=5 {
        let batcher = env.batcher.clone();
        waiting.spawn(async move { batcher.submit(Command::Double(number)).await });
    }
    eventually("all wait", async || {
        format!("{:?}", env.batcher)
            .contains("waiting: 5")
            .then_some(())
    })
    .await;
    env.supervisor.stop_ticking();
    env.group.release();

    assert_eq!(env.supervisor.stop(GRACE).await, Stopped::Finished);

    let answers = waiting.join_all().await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    env.first.join_next().await.unwrap().unwrap().unwrap();
    let late = env.batcher.submit(Command::Double(9)).await;
    assert!(matches!(late, Err(Error::Stopped)), "{late:?}");
}

#[tokio::test]
async fn a_batch_that_is_cut_off_is_told_so_and_the_rest_runs() {
    let mut env = busy(Options::default().limit(Duration::from_millis(100))).await;
    let cut = env.first.join_next().await.unwrap().unwrap();
    assert!(matches!(cut, Err(Error::Cut)), "{cut:?}");

    env.group.release();
    let reply = env.batcher.submit(Command::Double(4)).await.unwrap();
    assert_eq!(reply, 8);
}

#[tokio::test]
async fn nobody_waits_for_a_batcher_whose_workers_are_gone() {
    let Env {
        group,
        batcher,
        supervisor,
        mut first,
    } = busy(Options::default()).await;
    let waiting = batcher.clone();
    first.spawn(async move { waiting.submit(Command::Double(1)).await });
    eventually("one waits", async || {
        format!("{batcher:?}").contains("waiting: 1").then_some(())
    })
    .await;

    // The group never gives up its batch: it is cut, and so is the run of what has queued.
    assert_eq!(supervisor.stop(Duration::ZERO).await, Stopped::Cut);

    for answer in first.join_all().await {
        assert!(matches!(answer, Err(Error::Cut)), "{answer:?}");
    }
    let late = batcher.submit(Command::Double(2)).await;
    assert!(matches!(late, Err(Error::Stopped)), "{late:?}");
    assert_eq!(group.batches().len(), 2);
}

#[tokio::test]
async fn several_batches_run_at_once_where_that_is_allowed() {
    let group = Scripted::held();
    let supervisor = Supervisor::new(Clock::system());
    let options = Options::default().concurrency(3).max_batch(1);
    let batcher = Batcher::new("test.batch", group.clone(), options);
    batcher.start(&supervisor);
    let mut submits = JoinSet::new();
    for number in 0..3 {
        let batcher = batcher.clone();
        submits.spawn(async move { batcher.submit(Command::Double(number)).await });
    }
    group.until_batches(3).await;
    group.release();
    assert!(submits.join_all().await.iter().all(Result::is_ok));
    let names = supervisor.health().into_iter().map(|health| health.name);
    let names: Vec<_> = names.collect();
    assert_eq!(names, ["test.batch", "test.batch-2", "test.batch-3"]);
}

/// Counts up an account per command, once per key.
struct Deposits {
    pool: PgPool,
    keys: Keys,
    transactions: Arc<AtomicUsize>,
}

impl Group for Deposits {
    type Command = Request;
    type Reply = Reply;
    type Error = idempotency::Error;

    async fn run(&self, requests: &[Request]) -> Ran<Reply, idempotency::Error> {
        self.transactions.fetch_add(1, Ordering::SeqCst);
        let mut tx = self.pool.begin().await?;
        let mut replies: Vec<Option<Reply>> = Vec::new();
        let mut fresh = Vec::new();
        for (at, opened) in self
            .keys
            .open_all(&mut tx, requests)
            .await?
            .into_iter()
            .enumerate()
        {
            replies.push(match opened {
                Opened::Fresh => {
                    fresh.push(at);
                    Some(Reply::new(200, format!("deposit {}", requests[at].key())))
                }
                Opened::Stored(reply) => Some(reply),
                Opened::Twin(first) => replies[first].clone(),
                _ => None,
            });
        }
        let deposits = i64::try_from(fresh.len()).unwrap();
        sqlx::query("UPDATE app.account SET balance = balance + $1")
            .bind(deposits)
            .execute(&mut *tx)
            .await?;
        let answered: Vec<_> = fresh
            .iter()
            .map(|at| (&requests[*at], replies[*at].as_ref().unwrap()))
            .collect();
        self.keys.store_all(&mut tx, &answered).await?;
        tx.commit().await?;
        let verdict = |reply: Option<Reply>| reply.ok_or(idempotency::Error::Conflict);
        Ok(replies.into_iter().map(verdict).collect())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_many_callers_share_transactions_and_each_key_counts_once() {
    let schema = Schema::new("app").unwrap();
    let db = TestDb::new(&[tasuki::migrate::library(&schema)]).await;
    for sql in [
        "CREATE TABLE app.account (balance bigint NOT NULL)",
        "INSERT INTO app.account VALUES (0)",
    ] {
        sqlx::query(sql).execute(&db.pool).await.unwrap();
    }
    let transactions = Arc::new(AtomicUsize::new(0));
    let group = Deposits {
        pool: db.pool.clone(),
        keys: Keys::new(&schema),
        transactions: Arc::clone(&transactions),
    };
    let supervisor = Supervisor::new(Clock::system());
    let batcher = Batcher::new("test.deposits", group, Options::default());
    batcher.start(&supervisor);

    let mut callers = JoinSet::new();
    for number in 0..400u16 {
        let batcher = batcher.clone();
        callers.spawn(async move {
            // Every key comes four times; the fourth time with another request.
            let (key, body) = (format!("k{}", number % 100), u8::from(number >= 300));
            let hash = RequestHash::of("POST", "/", &[body]);
            let request = Request::new("shop", key.clone(), hash).unwrap();
            (key, body, batcher.submit(request).await)
        });
    }
    let mut done: HashMap<(String, u8), usize> = HashMap::new();
    for (key, body, answer) in callers.join_all().await {
        if let Ok(reply) = answer {
            assert_eq!(reply.body(), &format!("deposit {key}"));
            *done.entry((key, body)).or_default() += 1;
        }
    }

    // Of each key one of the two requests was done, however often it was sent.
    assert_eq!(done.len(), 100);
    assert!(
        done.iter()
            .all(|((_, body), times)| *times == if *body == 0 { 3 } else { 1 })
    );
    let balance: i64 = sqlx::query_scalar("SELECT balance FROM app.account")
        .fetch_one(&db.pool)
        .await
        .unwrap();
    assert_eq!(balance, 100);
    let transactions = transactions.load(Ordering::SeqCst);
    assert!(
        transactions < 200,
        "{transactions} transactions for 400 commands"
    );
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}
