//! Callers that each start a saga, wait until it has ended, and start the next.
//!
//! The same loop for everybody: the library runs it, and the peers, which are written in Rust, too,
//! include this file. It has a second to warm up, in which connections are opened and statements
//! prepared; then every saga counts that ends before the time is over.

use std::{
    fmt,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

/// How long callers are at it before anything counts.
const WARM_UP: Duration = Duration::from_secs(1);

/// How it went. Written out, it is the answer of a contestant.
#[derive(Clone, Debug)]
pub(crate) struct Went {
    seconds: u32,
    /// From the start of each saga to its end, the quickest first.
    times: Vec<Duration>,
}

/// So many callers of `saga`, for so long. A saga that fails ends it.
pub(crate) async fn run<E, F, S>(callers: u32, seconds: u32, saga: S) -> Result<Went, E>
where
    E: Send + 'static,
    F: Future<Output = Result<(), E>> + Send,
    S: Fn() -> F + Clone + Send + 'static,
{
    let from = Instant::now() + WARM_UP;
    let until = from + Duration::from_secs(u64::from(seconds));
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let saga = saga.clone();
        tasks.spawn(async move { call(from, until, saga).await });
    }
    let mut times = Vec::new();
    for took in tasks.join_all().await {
        times.extend(took?);
    }
    times.sort_unstable();
    Ok(Went { seconds, times })
}

/// One caller, and how long each of its sagas took.
async fn call<E, F>(from: Instant, until: Instant, saga: impl Fn() -> F) -> Result<Vec<Duration>, E>
where
    F: Future<Output = Result<(), E>>,
{
    let mut times = Vec::new();
    loop {
        let began = Instant::now();
        if began >= until {
            return Ok(times);
        }
        saga().await?;
        let ended = Instant::now();
        if ended >= from && ended < until {
            times.push(ended - began);
        }
    }
}

impl Went {
    /// The time that so many hundredths are below, in milliseconds.
    fn share(&self, share: usize) -> f64 {
        let time = self.times.get(self.times.len() * share / 100);
        time.map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
    }
}

impl fmt::Display for Went {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sagas = self.times.len();
        let per_second = sagas as f64 / f64::from(self.seconds);
        let (p50, p99) = (self.share(50), self.share(99));
        write!(
            f,
            r#"{{"sagas":{sagas},"per_second":{per_second},"p50_ms":{p50},"p99_ms":{p99}}}"#
        )
    }
}
