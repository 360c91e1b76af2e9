//! Who follows is woken; and comes by itself when nobody wakes it.

use sqlx::postgres::PgListener;
use tasuki::Clock;
use tasuki::worker::{Stopped, Supervisor};
use tasuki_testkit::eventually;

use super::*;

const GRACE: Duration = Duration::from_secs(10);

/// Ends whoever listens in this database.
async fn cut_listeners(bench: &Bench) -> i64 {
    bench
        .number(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND query ILIKE 'LISTEN%'",
        )
        .await
}

async fn is_seen(bench: &Bench, expected: &str) {
    eventually("the consumer has seen it", async || {
        (bench.seen().await == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn each_batch_tells_its_highest_number() {
    let bench = Bench::new().await;
    let mut listener = PgListener::connect_with(bench.pool()).await.unwrap();
    listener.listen(bench.log.channel()).await.unwrap();
    bench.append("a b c").await;
    drain(&bench.sequencer().batch(2)).await.unwrap();
    let mut told = Vec::new();
    for _ in 0..2 {
        told.push(listener.recv().await.unwrap().payload().to_owned());
    }
    assert_eq!(told, ["2", "3"]);
    assert_eq!(bench.log.channel(), "app_seqlog");
}

#[tokio::test]
async fn a_ring_goes_from_the_writer_to_consumers_of_other_processes_without_a_poll() {
    let bench = Bench::new().await;
    let world = World::default();
    let supervisor = Supervisor::new(Clock::system());
    // Three processes: a writer, one that numbers, one that follows.
    let (numbers, follows) = (Log::new(&schema()), Log::new(&schema()));
    supervisor.start(bench.log.ringer(bench.pool()));
    supervisor.start(numbers.listener(bench.pool()));
    supervisor.start(numbers.sequencer("test.sequencer", bench.pool()).poll(HOUR));
    supervisor.start(follows.listener(bench.pool()));
    let follower = Follower::new(&follows, CONSUMER, bench.pool(), Words(world));
    supervisor.start(follower.poll(HOUR));
    for (n, expected) in [(1, "1:w"), (2, "1:w 2:w"), (3, "1:w 2:w 3:w")] {
        bench.append("w").await;
        // Until they listen nobody hears it; each of them looks once when it does.
        bench.log.ring();
        eventually("it is numbered", async || {
            bench.log.ring();
            let mut db = bench.pool().acquire().await.unwrap();
            let head = bench.log.head(&mut db).await.unwrap();
            (head.last_seq == n).then_some(())
        })
        .await;
        is_seen(&bench, expected).await;
    }
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}

#[tokio::test]
async fn a_consumer_whose_listener_was_cut_polls_and_is_woken_again_when_it_is_back() {
    let bench = Bench::new().await;
    let supervisor = Supervisor::new(Clock::system());
    let (polls, waits) = (Log::new(&schema()), Log::new(&schema()));
    // One that polls has no listener at all; the other has nothing else.
    let polling = Words(World::default());
    let polling = Follower::new(&polls, CONSUMER, bench.pool(), polling);
    supervisor.start(polling.poll(Duration::from_millis(20)));
    let waiting = Elsewhere::default();
    let seen = Arc::clone(&waiting.0);
    let waiting = Follower::new(&waits, "waiting-v1", bench.pool(), waiting);
    supervisor.start(waiting.poll(HOUR));
    supervisor.start(waits.listener(bench.pool()));
    let told = async |expected: i64| {
        eventually("the other has been woken", async || {
            (*seen.lock().unwrap() == expected).then_some(())
        })
        .await;
    };
    bench.write("a").await;
    is_seen(&bench, "1:a").await;
    told(1).await;
    eventually("the listener is cut", async || {
        (cut_listeners(&bench).await > 0).then_some(())
    })
    .await;
    bench.write("b").await;
    is_seen(&bench, "1:a 2:b").await;
    told(2).await;
    bench.write("c").await;
    is_seen(&bench, "1:a 2:b 3:c").await;
    told(3).await;
    assert_eq!(supervisor.stop(GRACE).await, Stopped::Finished);
}

/// Remembers the highest number.
#[derive(Default)]
struct Elsewhere(Arc<Mutex<i64>>);

impl Handler for Elsewhere {
    type Row = Read;

    async fn handle(&self, rows: &[Numbered<Read>], _: &mut Tx) -> Result<(), Failure> {
        *self.0.lock().unwrap() = rows.last().map_or(0, |row| row.seq);
        Ok(())
    }
}
