//! What people do about a saga that needs them.

use serde_json::json;
use tasuki::saga::{By, Close, Error, Filter, StepState, define};

use super::forward::Paid;
use super::*;

/// A saga whose second compensation fails for good.
async fn parked(bench: &Bench) -> (Definition<u32>, SagaId) {
    bench.world.tell("c:act", [Answer::Abort]);
    bench.world.tell("b:undo", [Answer::Stuck]);
    let definition = three_remote(&bench.world);
    let (ended, view) = bench.run(&definition).await;
    assert_eq!(ended.state, State::NeedsAttention);
    assert_eq!(bench.world.log(), words("a:act b:act c:act b:undo"));
    assert_eq!(view.stuck.unwrap().0.as_deref(), Some("b"));
    assert_eq!(view.failure.unwrap().1, "c said no");
    (definition, ended.id)
}

#[tokio::test]
async fn a_compensation_that_fails_for_good_parks_the_saga_and_resume_completes_it() {
    let bench = Bench::new().await;
    let (definition, id) = parked(&bench).await;
    let process = bench.process(&Registry::new().with(&definition));
    let mut tx = bench.pool().begin().await.unwrap();
    let by = By::new("ada", "the provider is back");
    bench.sagas.resume(&mut tx, id, &by).await.unwrap();
    tx.commit().await.unwrap();
    bench.sagas.ring();
    let view = bench.until(id, &State::Compensated).await;
    // Earlier compensations have waited, and each ran once.
    assert_eq!(
        bench.world.log(),
        words("a:act b:act c:act b:undo b:undo a:undo")
    );
    let note = view.notes.first().unwrap();
    assert_eq!((note.what.as_str(), note.by.as_str()), ("resume", "ada"));
    assert_eq!(note.reason, "the provider is back");
    process.stop().await;
}

#[tokio::test]
async fn a_skipped_compensation_counts_as_done_and_the_earlier_ones_run() {
    let bench = Bench::new().await;
    let (definition, id) = parked(&bench).await;
    let process = bench.process(&Registry::new().with(&definition));
    let mut tx = bench.pool().begin().await.unwrap();
    let by = By::new("ada", "refunded by hand");
    for (step, output, why) in [
        ("a", None, "not stuck at `a`, but at `b`"),
        ("b", Some(json!("refund-1")), "that gives no output"),
    ] {
        let wrong = bench.sagas.skip(&mut tx, id, step, output.as_ref(), &by);
        let wrong = wrong.await.unwrap_err().to_string();
        assert!(wrong.contains(why), "{wrong}");
    }
    bench.sagas.skip(&mut tx, id, "b", None, &by).await.unwrap();
    tx.commit().await.unwrap();
    bench.until(id, &State::Compensated).await;
    assert_eq!(bench.world.log(), words("a:act b:act c:act b:undo a:undo"));
    process.stop().await;
}

#[tokio::test]
async fn a_closed_saga_ends_as_the_person_says() {
    let bench = Bench::new().await;
    let (_, id) = parked(&bench).await;
    let mut connection = bench.pool().acquire().await.unwrap();
    let by = By::new("ada", "all undone by hand");
    let close = bench
        .sagas
        .close(&mut connection, id, Close::Compensated, &by);
    close.await.unwrap();
    let view = bench.view(id).await;
    assert_eq!(view.state, State::Compensated);
    assert_eq!(view.notes.first().unwrap().what, "close as COMPENSATED");
    let again = bench.sagas.resume(&mut connection, id, &by).await;
    assert!(matches!(again, Err(Error::Refused { .. })), "{again:?}");
}

#[tokio::test]
async fn a_step_that_is_stuck_behind_the_pivot_is_retried_or_taken_as_done() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("b:act", [Answer::Stuck]);
    let definition = define::<u32>("forward", 1)
        .pivot_local(l::<0>(world), |saga| Ok(*saga.input()))
        .remote(G::<1>(world.clone()), |saga| Ok(*saga.input()))
        .remote(G::<2>(world.clone()), |saga| {
            Ok(u32::try_from(saga.output::<G<1>>()?.len())?)
        })
        .build()
        .unwrap();
    let (ended, _) = bench.run(&definition).await;
    assert_eq!(ended.state, State::NeedsAttention);
    let process = bench.process(&Registry::new().with(&definition));
    let mut connection = bench.pool().acquire().await.unwrap();
    let by = By::new("ada", "granted by hand");
    bench
        .sagas
        .skip(&mut connection, ended.id, "b", Some(&json!("four")), &by)
        .await
        .unwrap();
    let view = bench.until(ended.id, &State::Completed).await;
    assert_eq!(view.step("c").unwrap().input.as_ref().unwrap(), 4);
    process.stop().await;
}

/// A step elsewhere that lasts until the test lets it go.
struct Lasts(World);

impl Step for Lasts {
    const NAME: &'static str = "lasts";
    type Input = u32;
    type Output = ();
    type Failure = Again<Trouble>;
}

impl Remote for Lasts {
    async fn act(&self, _: &u32, at: &At) -> Result<(), Again<Trouble>> {
        self.0.next(at);
        self.0.gate.notified().await;
        Ok(())
    }
}

#[tokio::test]
async fn when_one_of_a_group_needs_a_person_the_calls_of_the_others_are_waited_for() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("b:act", [Answer::Stuck]);
    let definition = define::<u32>("group", 1)
        .pivot_local(l::<0>(world), |saga| Ok(*saga.input()))
        .parallel(|group| {
            group
                .remote(G::<1>(world.clone()), |saga| Ok(*saga.input()))
                .remote(Lasts(world.clone()), |saga| Ok(*saga.input()))
        })
        .build()
        .unwrap();
    let process = bench.process(&Registry::new().with(&definition));
    let id = process.engine.begin(&definition, &7).await.unwrap();
    eventually("both are called", async || {
        (world.log().len() == 3).then_some(())
    })
    .await;
    world.gate.notify_one();
    let view = bench.until(id, &State::NeedsAttention).await;
    assert_eq!(view.stuck.unwrap().0.as_deref(), Some("b"));
    let lasts = view.steps.iter().find(|step| step.name == "lasts").unwrap();
    assert_eq!(lasts.state, StepState::Done);
    process.stop().await;
}

#[tokio::test]
async fn a_saga_is_sent_forward_again_from_a_step_and_undone_ones_get_new_keys() {
    let bench = Bench::new().await;
    bench.world.tell("c:act", [Answer::Abort]);
    bench.world.tell("a:undo", [Answer::Stuck]);
    let definition = three_remote(&bench.world);
    let (ended, _) = bench.run(&definition).await;
    let id = ended.id;
    assert_eq!(ended.state, State::NeedsAttention);
    let registry = Registry::new().with(&definition);
    let process = bench.process(&registry);
    let mut connection = bench.pool().acquire().await.unwrap();
    let by = By::new("ada", "there is stock again");
    let sagas = &bench.sagas;
    for (from, why) in [
        ("a", "`a` is done, and not undone"),
        ("c", "`b`, which is before `c`, is not done"),
        ("z", "its steps are a, b, c"),
    ] {
        let refused = sagas.retry_from(&mut connection, id, from, &by).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    sagas
        .retry_from(&mut connection, id, "b", &by)
        .await
        .unwrap();
    bench.until(id, &State::Completed).await;
    let keys = bench.world.keys();
    assert_eq!(keys.last().unwrap(), &format!("{id}:c:act.1"));
    process.stop().await;
}

#[tokio::test]
async fn a_step_is_undone_by_the_key_that_it_was_done_with_also_after_a_retry_of_later_ones() {
    let bench = Bench::new().await;
    bench.world.tell("c:act", [Answer::Abort, Answer::Abort]);
    bench.world.tell("a:undo", [Answer::Stuck]);
    let definition = three_remote(&bench.world);
    let (ended, _) = bench.run(&definition).await;
    assert_eq!(ended.state, State::NeedsAttention);
    let registry = Registry::new().with(&definition);
    let process = bench.process(&registry);
    let mut connection = bench.pool().acquire().await.unwrap();
    let (id, by) = (ended.id, By::new("ada", "there is stock again"));
    bench
        .sagas
        .retry_from(&mut connection, id, "b", &by)
        .await
        .unwrap();
    bench.until(id, &State::Compensated).await;
    process.stop().await;
    let calls = words("a:act b:act c:act b:undo a:undo b:act c:act b:undo a:undo");
    assert_eq!(bench.world.log(), calls);
    let rounds = [
        "a:act", "b:act", "c:act", "b:act", "a:act", "b:act.1", "c:act.1", "b:act.1", "a:act",
    ];
    let actions = bench.world.actions.lock().unwrap().clone();
    let keys: Vec<String> = actions.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!(keys, rounds.map(|round| format!("{id}:{round}")));
    // An action and its compensation meet at one barrier, and a new round has a new one.
    let barrier = |call: usize| actions[call].1.clone();
    assert_eq!(barrier(0), barrier(8));
    assert_eq!(barrier(5), barrier(7));
    assert_ne!(barrier(1), barrier(5));
}

impl Bench {
    async fn retry_from(&self, id: SagaId, step: &str) {
        self.is_written_down(id).await;
        let mut connection = self.pool().acquire().await.unwrap();
        let by = By::new("ada", "it shall be done after all");
        self.sagas
            .retry_from(&mut connection, id, step, &by)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_saga_that_is_sent_forward_again_has_its_whole_time_limit_again() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("c:act", [Answer::Abort]);
    world.tell("b:undo", [Answer::Stuck]);
    let definition = define::<u32>("limited", 1)
        .timeout(HOUR)
        .remote(r::<0>(world), |saga| Ok(*saga.input()))
        .remote(r::<1>(world), |saga| Ok(*saga.input()))
        .remote(r::<2>(world), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let (ended, _) = bench.run(&definition).await;
    assert_eq!(ended.state, State::NeedsAttention);
    let next_day = "UPDATE app.sagas SET deadline_at = now() - interval '1 day'";
    sqlx::query(next_day).execute(bench.pool()).await.unwrap();
    let registry = Registry::new().with(&definition);
    bench.retry_from(ended.id, "c").await;
    let left = "SELECT extract(EPOCH FROM deadline_at - now())::bigint FROM app.sagas";
    assert!((3500..=3600).contains(&bench.scalar(left).await));
    let process = bench.process(&registry);
    bench.until(ended.id, &State::Completed).await;
    assert_eq!(world.log(), words("a:act b:act c:act b:undo c:act"));
    process.stop().await;
}

#[tokio::test]
async fn the_time_that_a_saga_was_parked_is_not_taken_off_its_time_limit() {
    let bench = Bench::new().await;
    let (_, id) = parked(&bench).await;
    let parked = "UPDATE app.sagas
        SET updated_at = now() - interval '1 day', deadline_at = now() - interval '23 hours'";
    sqlx::query(parked).execute(bench.pool()).await.unwrap();
    let mut connection = bench.pool().acquire().await.unwrap();
    let by = By::new("ada", "the provider is back");
    bench.sagas.resume(&mut connection, id, &by).await.unwrap();
    let left = "SELECT extract(EPOCH FROM deadline_at - now())::bigint FROM app.sagas";
    assert!((3500..=3601).contains(&bench.scalar(left).await));
}

#[tokio::test]
async fn a_saga_that_is_sent_forward_again_forgets_that_it_was_cancelled() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("b:act", [Answer::Hold]);
    world.tell("b:undo", [Answer::Stuck]);
    let definition = three_remote(world);
    let registry = Registry::new().with(&definition);
    let process = bench.process(&registry);
    let id = process.engine.begin(&definition, &7).await.unwrap();
    eventually("it is at its second step", async || {
        (world.log().len() == 2).then_some(())
    })
    .await;
    let mut connection = bench.pool().acquire().await.unwrap();
    let cancelled = bench.sagas.cancel(&mut connection, id, "bob", "no more");
    assert!(cancelled.await.unwrap());
    world.gate.notify_one();
    bench.until(id, &State::NeedsAttention).await;
    bench.retry_from(id, "c").await;
    bench.until(id, &State::Completed).await;
    assert_eq!(world.log(), words("a:act b:act b:undo c:act"));
    process.stop().await;
}

#[tokio::test]
async fn a_saga_that_is_sent_back_to_a_wait_waits_anew() {
    let bench = Bench::new().await;
    let world = &bench.world;
    let definition = define::<u32>("patient", 1)
        .pivot_local(l::<0>(world), |saga| Ok(*saga.input()))
        .wait::<Paid>(HOUR)
        .remote(G::<1>(world.clone()), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let registry = Registry::new().with(&definition);
    let process = bench.process(&registry);
    let id = process.engine.begin(&definition, &7).await.unwrap();
    bench.until(id, &State::Step("paid".to_owned())).await;
    bench.hour_passes().await;
    bench.until(id, &State::NeedsAttention).await;
    bench.retry_from(id, "paid").await;
    bench.until(id, &State::Step("paid".to_owned())).await;
    bench.is_claimed_early(id).await;
    assert_eq!(bench.view(id).await.state, State::Step("paid".to_owned()));
    assert!(bench.pay(id, "at last").await);
    bench.sagas.ring();
    bench.until(id, &State::Completed).await;
    process.stop().await;
}

#[tokio::test]
async fn a_timer_behind_where_a_saga_is_sent_back_to_begins_anew_and_what_was_said_stays_said() {
    let bench = Bench::new().await;
    let world = &bench.world;
    world.tell("b:act", [Answer::Abort]);
    world.tell("a:undo", [Answer::Stuck]);
    let definition = define::<u32>("calm", 1)
        .remote(r::<0>(world), |saga| Ok(*saga.input()))
        .timer("cooling_off", HOUR)
        .wait::<Paid>(HOUR)
        .remote(r::<1>(world), |saga| {
            Ok(u32::try_from(saga.signal::<Paid>()?.len())?)
        })
        .build()
        .unwrap();
    let registry = Registry::new().with(&definition);
    let process = bench.process(&registry);
    let id = process.engine.begin(&definition, &7).await.unwrap();
    assert!(bench.pay(id, "four").await);
    let cooling_off = State::Step("cooling_off".to_owned());
    bench.until(id, &cooling_off).await;
    bench.hour_passes().await;
    bench.until(id, &State::NeedsAttention).await;
    assert_eq!(world.log(), words("a:act b:act a:undo"));

    bench.retry_from(id, "cooling_off").await;
    let left = "SELECT extract(EPOCH FROM next_retry_at - now())::bigint FROM app.sagas";
    eventually("it waits for an hour again", async || {
        (bench.scalar(left).await > 3500).then_some(())
    })
    .await;
    bench.is_claimed_early(id).await;
    assert_eq!(world.log(), words("a:act b:act a:undo"));
    bench.hour_passes().await;
    bench.until(id, &State::Completed).await;
    assert_eq!(world.log(), words("a:act b:act a:undo b:act"));
    process.stop().await;
}

#[tokio::test]
async fn sagas_are_listed_by_state_and_definition_newest_first() {
    let bench = Bench::new().await;
    let (_, stuck) = parked(&bench).await;
    let done = bench.run(&three_local(&bench.world)).await.0.id;
    let mut connection = bench.pool().acquire().await.unwrap();
    let mut list = async |filter: Filter| -> Vec<SagaId> {
        let sagas = bench.sagas.list(&mut connection, &filter).await.unwrap();
        sagas.into_iter().map(|saga| saga.id).collect()
    };
    assert_eq!(list(Filter::new()).await, [done, stuck]);
    assert_eq!(list(Filter::new().limit(1)).await, [done]);
    assert_eq!(list(Filter::new().before(done)).await, [stuck]);
    assert_eq!(list(Filter::new().state("NEEDS_ATTENTION")).await, [stuck]);
    assert_eq!(list(Filter::new().state("COMPLETED")).await, [done]);
    assert_eq!(list(Filter::new().definition("other")).await, []);
}

#[tokio::test]
async fn those_that_have_ended_are_not_looked_through_for_one_that_has_not() {
    let bench = Bench::new().await;
    let list = bench
        .sagas
        .statements()
        .find(|sql| sql.contains("AS reason"));
    let explain = format!("EXPLAIN (ANALYZE) {}", list.unwrap());
    let plan = async |state: Option<&str>| {
        let lines: Vec<String> = sqlx::query_scalar(AssertSqlSafe(explain.clone()))
            .bind(state)
            .bind(None::<String>)
            .bind(None::<uuid::Uuid>)
            .bind(10_i64)
            .fetch_all(bench.pool())
            .await
            .unwrap();
        let scans = lines.into_iter().filter(|line| line.contains("sagas_done"));
        scans
            .filter(|line| !line.contains("never executed"))
            .count()
    };
    assert_eq!(plan(Some("NEEDS_ATTENTION")).await, 0);
    assert!(plan(Some("COMPENSATED")).await > 0);
    assert!(plan(None).await > 0);
}

/// Gives what PostgreSQL can't have in a text, and then says no with it.
struct Nul;

impl Step for Nul {
    const NAME: &'static str = "nul";
    type Input = String;
    type Output = ();
    type Failure = Fail<Trouble>;
}

impl Remote for Nul {
    async fn act(&self, input: &String, _: &At) -> Result<(), Fail<Trouble>> {
        let long = "é".repeat(5000);
        Err(Fail::abort(Trouble(format!("no: {input}{long}"))))
    }
}

impl RemoteUndo for Nul {
    async fn undo(&self, _: &String, _: Option<&()>, _: &At) -> Result<(), Again> {
        Ok(())
    }
}

#[tokio::test]
async fn whatever_characters_go_into_a_saga_all_of_them_can_be_listed() {
    let bench = Bench::new().await;
    let nul = define::<String>("nul", 1)
        .remote(Nul, |saga| Ok(saga.input().clone()))
        .build()
        .unwrap();
    let waits = define::<String>("waits", 1)
        .timer("for_long", HOUR)
        .build()
        .unwrap();
    let process = bench.process(&Registry::new().with(&nul).with(&waits));
    let odd = "a\0b \\u0000 c".to_owned();
    let ended = process.engine.run(&nul, &odd).await.unwrap();
    assert_eq!(ended.state, State::Compensated);
    let id = process.engine.begin(&waits, &odd).await.unwrap();
    let mut connection = bench.pool().acquire().await.unwrap();
    let cancelled = bench.sagas.cancel(&mut connection, id, "ada", "\0").await;
    assert!(cancelled.unwrap());
    bench.until(id, &State::Compensated).await;

    let filter = Filter::default();
    let listed = bench.sagas.list(&mut connection, &filter).await.unwrap();
    let reasons: Vec<String> = listed.into_iter().filter_map(|saga| saga.reason).collect();
    assert_eq!(reasons.len(), 2);
    assert!(reasons[0].starts_with("cancelled by ada"), "{reasons:?}");
    assert!(reasons[1].starts_with("no: ab "), "{reasons:?}");
    assert_eq!(reasons[1].chars().count(), 1000);
    assert_eq!(bench.view(ended.id).await.input, odd);
    process.stop().await;
}

#[tokio::test]
async fn whoever_acts_on_a_saga_has_a_name_and_a_reason() {
    let bench = Bench::new().await;
    let (_, id) = parked(&bench).await;
    let mut connection = bench.pool().acquire().await.unwrap();
    for (who, reason) in [
        ("", "because"),
        ("ada", " "),
        ("ada", "nothing\0"),
        ("a\u{7}", "because"),
    ] {
        let by = By::new(who, reason);
        let refused = bench.sagas.resume(&mut connection, id, &by).await;
        let is_invalid = matches!(refused, Err(Error::Invalid { .. }));
        assert!(is_invalid, "{who:?} {reason:?}: {refused:?}");
    }
    assert_eq!(bench.view(id).await.state, State::NeedsAttention);
}

#[tokio::test]
async fn the_steps_of_a_definition_are_known_where_its_code_is_not() {
    let bench = Bench::new().await;
    let (definition, id) = parked(&bench).await;
    let mut connection = bench.pool().acquire().await.unwrap();
    let outlines = bench.sagas.outlines(&mut connection).await.unwrap();
    let [outline] = outlines.as_slice() else {
        panic!("one definition has run: {outlines:?}");
    };
    assert_eq!((outline.definition.as_str(), outline.version), ("three", 1));
    assert_eq!(outline.steps, definition.shape());
    assert_eq!(outline.steps.len(), 3);
    // Nobody has ever run it: who would know what is before a step?
    let forget = "DELETE FROM app.saga_definitions";
    sqlx::query(forget).execute(&mut *connection).await.unwrap();
    let by = By::new("ada", "again");
    let unknown = bench.sagas.retry_from(&mut connection, id, "c", &by).await;
    assert!(matches!(unknown, Err(Error::Unknown { .. })), "{unknown:?}");
}
