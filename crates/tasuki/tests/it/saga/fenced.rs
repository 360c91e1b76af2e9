//! What goes wrong around the savepoints and the locked rows of a shared transaction.

use super::*;
use crate::dropped::after;

#[tokio::test]
async fn a_saga_whose_row_somebody_has_locked_is_held_up_and_no_other_is() {
    let bench = Bench::new().await;
    let world = &bench.world;
    // All of them try again at about the same time, and nothing is written until then.
    let soon = Policy::new(3, Backoff::list([Duration::from_millis(900)]));
    *world.retries.lock().unwrap() = Some(soon);
    world.tell("a:act", vec![Answer::Retry; 20]);
    let definition = three_local(world);
    for sql in [
        "CREATE TABLE app.given_back (saga_id uuid)",
        "CREATE FUNCTION app.note() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN INSERT INTO app.given_back VALUES (NEW.saga_id); RETURN NEW; END $$",
        "CREATE TRIGGER note AFTER UPDATE ON app.sagas FOR EACH ROW
            WHEN (OLD.status = 'PROCESSING' AND NEW.status = 'PENDING')
            EXECUTE FUNCTION app.note()",
    ] {
        sqlx::query(sql).execute(bench.pool()).await.unwrap();
    }
    let registry = Registry::new().with(&definition);
    let process = bench.process_of(&registry, bench.settings("one").lease(HOUR));
    let begins = (0..20).map(|_| process.engine.begin(&definition, &7));
    let ids = futures_util::future::join_all(begins).await;
    let ids: Vec<SagaId> = ids.into_iter().map(Result::unwrap).collect();
    let mut holder = bench.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM app.sagas WHERE saga_id = $1 FOR UPDATE")
        .bind(ids[7])
        .execute(&mut *holder)
        .await
        .unwrap();
    for id in ids.iter().filter(|id| **id != ids[7]) {
        let ended = process.engine.wait(*id).await.unwrap();
        assert_eq!(ended.state, State::Completed);
    }
    holder.rollback().await.unwrap();
    let ended = process.engine.wait(ids[7]).await.unwrap();
    assert_eq!(ended.state, State::Completed);
    let back = "SELECT count(*) FROM app.given_back";
    assert_eq!(bench.scalar(back).await, 0);
    process.stop().await;
}

/// Whoever looks at a saga's row for long.
async fn locks(bench: &Bench, id: SagaId) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut holder = bench.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM app.sagas WHERE saga_id = $1 FOR UPDATE")
        .bind(id)
        .execute(&mut *holder)
        .await
        .unwrap();
    holder
}

/// Begins `count` sagas; each of them is in the middle of its first call then.
async fn called(
    bench: &Bench,
    engine: &Engine,
    definition: &Definition<u32>,
    count: usize,
) -> Vec<SagaId> {
    bench.world.tell("a:act", vec![Answer::Hold; count]);
    let begins = (0..count).map(|_| engine.begin(definition, &7));
    let ids = futures_util::future::join_all(begins).await;
    eventually("all of them are called", async || {
        (bench.world.log().len() == count).then_some(())
    })
    .await;
    ids.into_iter().map(Result::unwrap).collect()
}

#[tokio::test]
async fn what_a_call_has_brought_waits_for_a_row_that_a_person_holds_and_no_other_saga_does() {
    let bench = Bench::new().await;
    let definition = three_remote(&bench.world);
    let registry = Registry::new().with(&definition);
    let process = bench.process_of(&registry, bench.settings("one").lease(HOUR));
    let ids = called(&bench, &process.engine, &definition, 20).await;
    let person = locks(&bench, ids[7]).await;
    bench.world.gate.notify_waiters();
    for id in ids.iter().filter(|id| **id != ids[7]) {
        let ended = process.engine.wait(*id).await.unwrap();
        assert_eq!(ended.state, State::Completed);
    }
    let held = bench.view(ids[7]).await;
    assert_eq!(held.state, State::Step("a".to_owned()));
    person.rollback().await.unwrap();
    let ended = process.engine.wait(ids[7]).await.unwrap();
    assert_eq!(ended.state, State::Completed);
    // What it had learned was not lost.
    assert_eq!(bench.world.log().len(), 60);
    process.stop().await;
}

#[tokio::test]
async fn a_saga_whose_row_a_person_holds_keeps_no_other_from_being_given_back() {
    let bench = Bench::new().await;
    let definition = three_remote(&bench.world);
    let registry = Registry::new().with(&definition);
    let first = bench.process_of(&registry, bench.settings("one").lease(HOUR));
    let ids = called(&bench, &first.engine, &definition, 3).await;
    let person = locks(&bench, ids[1]).await;
    // Nobody answers: they are cut.
    let stopped = first.supervisor.stop(Duration::from_millis(100)).await;
    assert_ne!(stopped, Stopped::Finished);
    let second = bench.process_of(&registry, bench.settings("two").lease(HOUR));
    for id in [ids[0], ids[2]] {
        let ended = second.engine.wait(id).await.unwrap();
        assert_eq!(ended.state, State::Completed);
    }
    person.rollback().await.unwrap();
    second.stop().await;
}

/// Asks for its transaction, and does not wait for the answer.
struct Nibbles(usize);

impl Step for Nibbles {
    const NAME: &'static str = "nibbles";
    type Input = u32;
    type Output = ();
    type Failure = Fail<Trouble>;
}

impl Local for Nibbles {
    async fn act(&self, tx: &mut Tx, _: &u32, _: &At) -> Result<(), Fail<Trouble>> {
        drop(after(self.0, tx.get()).await);
        Ok(())
    }
}

#[tokio::test]
async fn a_step_that_hides_a_failed_statement_is_found_out_wherever_the_next_one_is_cut() {
    for polls in 1..8 {
        let bench = Bench::new().await;
        let world = &bench.world;
        let swallows = tasuki::saga::define::<u32>("swallows", 1)
            .remote(r::<0>(world), |saga| Ok(*saga.input()))
            .local(l::<1>(world), |saga| Ok(*saga.input()))
            .build()
            .unwrap();
        let nibbles = tasuki::saga::define::<u32>("nibbles", 1)
            .remote(r::<0>(world), |saga| Ok(*saga.input()))
            .pivot_local(Nibbles(polls), |saga| Ok(*saga.input()))
            .build()
            .unwrap();
        world.tell("a:act", vec![Answer::Hold; 20]);
        world.tell("b:act", vec![Answer::Swallow; 10]);
        let process = bench.process(&Registry::new().with(&swallows).with(&nibbles));
        let engine = &process.engine;
        let pairs = (0..10).map(|_| async {
            let (one, other) = tokio::join!(engine.run(&swallows, &7), engine.run(&nibbles, &7));
            [one.unwrap().state, other.unwrap().state]
        });
        let opens = async {
            eventually("all of them are called", async || {
                (world.log().len() == 20).then_some(())
            })
            .await;
            world.gate.notify_waiters();
        };
        let (ended, ()) = tokio::join!(futures_util::future::join_all(pairs), opens);
        for states in ended {
            assert_eq!(states, [State::Completed, State::Completed]);
        }
        assert_eq!(bench.effects().await, vec!["b:act"; 10], "{polls} polls");
        process.stop().await;
    }
}
