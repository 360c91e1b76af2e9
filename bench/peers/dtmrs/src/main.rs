//! dtmrs behind the sub-commands that every peer of the scenario `saga` has.
//!
//! Its coordinator as a library, on PostgreSQL, with branches in the same process: no network is in
//! between. Whoever submits a saga drives it, as its server does (`DTMRS_INLINE_SUBMIT`), and waits
//! for it; to ask for its state until it is final, which is the way that its API has, would be slower.

use std::{
    env,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dtmrs::{
    BranchResult, GlobalStatus, SagaStep, Store,
    server::{driver::Driver, registry::Registry, saga_rows},
    store::now,
};

#[path = "../../../src/saga/callers.rs"]
mod callers;

type Failure = Box<dyn Error + Send + Sync>;

const STEPS: [&str; 3] = ["first", "second", "third"];
const INPUT: &str = r#"{"n":1,"email":"someone@example.com","template":"welcome"}"#;
/// How often its workers look for what was left behind: the default of its server.
const TICK: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let url = env::var("DATABASE_URL")?;
    match words.as_slice() {
        ["version"] => version(),
        ["setup"] => {
            Store::open(&url).await?;
            Ok(())
        }
        ["saga", callers, seconds] => call(&url, callers.parse()?, seconds.parse()?).await,
        _ => Err("usage: version | setup | saga CALLERS SECONDS".into()),
    }
}

/// The version that the lock file names.
fn version() -> Result<(), Failure> {
    let mut lines = include_str!("../Cargo.lock").lines();
    lines.find(|line| *line == r#"name = "dtmrs""#);
    let version = lines.next().and_then(|line| line.split('"').nth(1));
    let version = format!("dtmrs {}, embedded", version.unwrap_or("?"));
    println!("{}", serde_json::json!({ "version": version }));
    Ok(())
}

async fn call(url: &str, callers: u32, seconds: u32) -> Result<(), Failure> {
    let store = Store::open(url).await?;
    let mut registry = Registry::new();
    for step in STEPS {
        registry.register(step, |_| async { BranchResult::Success });
        registry.register(&format!("undo_{step}"), |_| async { BranchResult::Success });
    }
    let driver = Driver::from_env(store, "bench".to_owned()).with_registry(Arc::new(registry));
    let workers = tokio::spawn(driver.clone().run_forever(TICK));
    let steps: Arc<[SagaStep]> = STEPS
        .iter()
        .map(|step| SagaStep {
            action: format!("local://{step}"),
            compensate: format!("local://undo_{step}"),
            payload: INPUT.to_owned(),
        })
        .collect();
    let number = Arc::new(AtomicU64::new(0));
    let (check, numbers) = (driver.clone(), Arc::clone(&number));
    let went = callers::run(callers, seconds, move || {
        let n = number.fetch_add(1, Ordering::Relaxed);
        let (driver, steps) = (driver.clone(), Arc::clone(&steps));
        async move { saga(&driver, &format!("bench-{n}"), &steps).await }
    })
    .await?;
    // It says nothing when a saga is left half-way.
    for n in [0, numbers.load(Ordering::Relaxed) - 1] {
        let last = check.store.get_global(&format!("bench-{n}")).await?;
        if last.is_none_or(|last| last.status != GlobalStatus::Succeed) {
            return Err(format!("bench-{n} has not ended well").into());
        }
    }
    println!("{went}");
    workers.abort();
    Ok(())
}

/// Submits a saga that is claimed as it is written, and drives it to its end.
async fn saga(driver: &Driver, gid: &str, steps: &[SagaStep]) -> Result<(), Failure> {
    let (mut global, branches) = saga_rows(gid, steps);
    global.owner = driver.owner.clone();
    global.next_cron_time = now() + driver.lease;
    global.lease_until = global.next_cron_time;
    if !driver.store.create_global(&global, &branches).await? {
        return Err(format!("{gid} is there already").into());
    }
    driver.process(&global).await?;
    Ok(())
}
