//! Births: what is acknowledged is there, and what is there was begun once.

use std::net::{Ipv4Addr, SocketAddr};

use futures_util::future::join_all;
use sqlx::postgres::PgConnectOptions;
use tasuki::saga::{Error, define};
use tasuki_stack::Proxy;

use super::*;

impl Bench {
    async fn is_there(&self, id: SagaId) -> bool {
        let mut connection = self.pool().acquire().await.unwrap();
        let view = self.sagas.get(&mut connection, id).await.unwrap();
        view.is_some()
    }

    /// A way to the database that can be cut.
    async fn through_proxy(&self) -> (Proxy, PgPool) {
        let direct: PgConnectOptions = self.db.url().parse().unwrap();
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, direct.get_port()));
        let proxy = Proxy::start(server).await.unwrap();
        let through = direct.host("127.0.0.1").port(proxy.addr().port());
        let through = PgPool::connect_with(through).await.unwrap();
        (proxy, through)
    }
}

#[tokio::test]
async fn a_saga_that_is_acknowledged_while_the_engine_stops_is_there() {
    let bench = Bench::new().await;
    let (mut acknowledged, mut refused) = (0, 0);
    for definition in [three_local(&bench.world), three_remote(&bench.world)] {
        let process = bench.process(&Registry::new().with(&definition));
        process.engine.run(&definition, &0).await.unwrap();
        acknowledged += 1;
        // On the one thread of a test the stop comes between each beginning and its first move.
        let numbers: Vec<u32> = (0..20).collect();
        let begins = numbers.iter().map(|n| process.engine.begin(&definition, n));
        let (stopped, begun) = tokio::join!(process.supervisor.stop(GRACE), join_all(begins));
        assert_eq!(stopped, Stopped::Finished);
        for begun in begun {
            match begun {
                Ok(id) => {
                    assert!(bench.is_there(id).await, "{id}");
                    acknowledged += 1;
                }
                Err(Error::Stopped) => refused += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    assert!(refused > 0, "no stop came in between");
    let there = "SELECT (SELECT count(*) FROM app.sagas) + (SELECT count(*) FROM app.sagas_done)";
    assert_eq!(bench.scalar(there).await, acknowledged);
}

#[tokio::test]
async fn a_saga_whose_first_input_panics_is_acknowledged_only_if_it_is_there() {
    let bench = Bench::new().await;
    let definition = define::<u32>("panics", 1)
        .local(l::<0>(&bench.world), |saga| match saga.input() {
            7 => panic!("on purpose"),
            input => Ok(*input),
        })
        .build()
        .unwrap();
    let process = bench.process(&Registry::new().with(&definition));
    match process.engine.begin(&definition, &7).await {
        Ok(id) => assert!(bench.is_there(id).await),
        Err(error) => assert!(matches!(error, Error::Journal(_)), "{error:?}"),
    }
    process.stop().await;
}

#[tokio::test]
async fn a_first_step_that_takes_longer_than_a_lease_is_waited_for() {
    let bench = Bench::new().await;
    let definition = together::counting(&bench).await;
    let settings = bench.settings("one").lease(Duration::from_millis(300));
    let process = bench.process_of(&Registry::new().with(&definition), settings);
    let holder = together::hold(&bench, 7).await;
    let run = process.engine.run(&definition, &7);
    let held = async {
        let waits = "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'
                 AND query_start < clock_timestamp() - interval '1 second'";
        eventually("it has waited for three leases", async || {
            (bench.scalar(waits).await > 0).then_some(())
        })
        .await;
        holder.rollback().await.unwrap();
    };
    let (ended, ()) = tokio::join!(run, held);
    assert_eq!(ended.unwrap().state, State::Completed);
    assert_eq!(bench.scalar("SELECT sum(value) FROM app.counters").await, 1);
    process.stop().await;
}

#[tokio::test]
async fn a_birth_whose_answer_is_lost_is_not_made_again() {
    let bench = Bench::new().await;
    let definition = three_remote(&bench.world);
    let registry = Registry::new().with(&definition);
    let (proxy, through) = bench.through_proxy().await;
    let settings = Settings::new("test.sagas", through).owner(Owner::on("one"));
    let first = bench.process_of(&registry, settings);
    // With a connection and statements that are ready, a birth is one way there and one back.
    first.engine.run(&definition, &1).await.unwrap();

    proxy.latency(Duration::from_millis(500)).await.unwrap();
    let begin = first.engine.begin(&definition, &7);
    let meanwhile = async {
        eventually("it is written", async || {
            (bench.scalar("SELECT count(*) FROM app.sagas").await == 1).then_some(())
        })
        .await;
        // The answer is on its way, and does not come.
        proxy.refuse().await.unwrap();
        proxy.reset().await.unwrap();
        let expire = "UPDATE app.sagas SET lease_until = now(), next_retry_at = now()";
        sqlx::query(expire).execute(bench.pool()).await.unwrap();
        let second = bench.process_of(&registry, bench.settings("two"));
        let done = "SELECT count(*) FROM app.sagas_done";
        eventually("another process has ended it", async || {
            (bench.scalar(done).await == 2).then_some(())
        })
        .await;
        proxy.heal().await.unwrap();
        second
    };
    let (begun, second) = tokio::join!(begin, meanwhile);
    assert!(matches!(begun, Err(Error::Journal(_))), "{begun:?}");
    first.stop().await;
    second.stop().await;
    let sagas = "SELECT (SELECT count(*) FROM app.sagas) + (SELECT count(*) FROM app.sagas_done)";
    assert_eq!(bench.scalar(sagas).await, 2);
    let once = "a:act b:act c:act";
    assert_eq!(bench.world.log(), words(&format!("{once} {once}")));
}

/// What each commit waits for that has effects in it.
const SLOW_COMMITS: &str = "
    CREATE FUNCTION app.commits() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock_shared(4711);
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER commits AFTER INSERT ON app.effects
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.commits()";

impl Bench {
    /// Cuts the first process off when it has sent a commit, which is made all the same, and lets it come
    /// back when another one has ended the sagas.
    async fn answer_is_lost(&self, proxy: &Proxy, registry: &Registry) -> Process {
        let mut holder = self.pool().begin().await.unwrap();
        sqlx::query("SELECT pg_advisory_xact_lock(4711)")
            .execute(&mut *holder)
            .await
            .unwrap();
        let commits = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event = 'advisory'";
        eventually("a commit is under way", async || {
            (self.scalar(commits).await == 1).then_some(())
        })
        .await;
        assert_eq!(self.world.log(), words("a:act a:act"), "of both, in one");
        // Whatever the server says from here on is on its way for long.
        proxy.latency(HOUR).await.unwrap();
        holder.rollback().await.unwrap();
        eventually("both are written", async || {
            (self.scalar("SELECT count(*) FROM app.sagas").await == 2).then_some(())
        })
        .await;
        let expire = "UPDATE app.sagas SET lease_until = now(), next_retry_at = now()";
        sqlx::query(expire).execute(self.pool()).await.unwrap();
        let second = self.process_of(registry, self.settings("two"));
        let done = "SELECT count(*) FROM app.sagas_done";
        eventually("another process has ended them", async || {
            (self.scalar(done).await == 2).then_some(())
        })
        .await;
        // The connection breaks, and the server is there.
        proxy.reset().await.unwrap();
        proxy.heal().await.unwrap();
        second
    }
}

#[tokio::test]
async fn births_that_share_a_commit_whose_answer_is_lost_are_not_made_again() {
    let bench = Bench::new().await;
    sqlx::raw_sql(SLOW_COMMITS)
        .execute(bench.pool())
        .await
        .unwrap();
    let definition = three_local(&bench.world);
    let registry = Registry::new().with(&definition);
    let (proxy, through) = bench.through_proxy().await;
    let settings = Settings::new("test.sagas", through).owner(Owner::on("one"));
    let first = bench.process_of(&registry, settings);
    let engine = &first.engine;
    // On the one thread of a test both wait for the journal before it looks.
    let (one, other, second) = tokio::join!(
        engine.begin(&definition, &7),
        engine.begin(&definition, &8),
        bench.answer_is_lost(&proxy, &registry),
    );
    for begun in [one, other] {
        assert!(matches!(begun, Err(Error::Journal(_))), "{begun:?}");
    }
    first.stop().await;
    second.stop().await;
    let sagas = "SELECT (SELECT count(*) FROM app.sagas) + (SELECT count(*) FROM app.sagas_done)";
    assert_eq!(bench.scalar(sagas).await, 2);
    assert_eq!(bench.scalar("SELECT count(*) FROM app.effects").await, 6);
}
