//! DBOS Transact (Rust) behind the sub-commands that every peer of the scenario `saga` has.
//!
//! A workflow of three steps that do nothing, run in the process that waits for it: the quickest way
//! that there is, without a queue. Each step is checkpointed before the next begins.

use std::{env, error::Error};

use dbos::{Config, DBOS};
use serde::{Deserialize, Serialize};

#[path = "../../../src/saga/callers.rs"]
mod callers;

type Failure = Box<dyn Error + Send + Sync>;

/// More connections, or fewer, were no better.
const CONNECTIONS: u32 = 20;

#[derive(Deserialize, Serialize)]
struct Noop {
    n: u64,
    email: String,
    template: String,
}

impl Noop {
    fn new() -> Self {
        Self {
            n: 1,
            email: "someone@example.com".to_owned(),
            template: "welcome".to_owned(),
        }
    }
}

async fn saga(_: Noop) -> dbos::Result<i32> {
    dbos::step("first", || nothing(1)).await?;
    dbos::step("second", || nothing(2)).await?;
    dbos::step("third", || nothing(3)).await
}

async fn nothing(step: i32) -> dbos::Result<i32> {
    Ok(step)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let url = env::var("DATABASE_URL")?;
    match words.as_slice() {
        ["version"] => version(),
        ["setup"] => setup(url).await,
        ["saga", callers, seconds] => call(url, callers.parse()?, seconds.parse()?).await,
        _ => Err("usage: version | setup | saga CALLERS SECONDS".into()),
    }
}

/// The version that the lock file names.
fn version() -> Result<(), Failure> {
    let mut lines = include_str!("../Cargo.lock").lines();
    lines.find(|line| *line == r#"name = "dbos""#);
    let version = lines.next().and_then(|line| line.split('"').nth(1));
    let version = format!("dbos {} (Rust)", version.unwrap_or("?"));
    println!("{}", serde_json::json!({ "version": version }));
    Ok(())
}

fn dbos(url: String) -> DBOS {
    DBOS::new(Config {
        app_version: Some("1".to_owned()),
        max_connections: CONNECTIONS,
        ..Config::new("bench", url)
    })
}

/// A launch makes the tables.
async fn setup(url: String) -> Result<(), Failure> {
    let dbos = dbos(url);
    dbos.launch().await?;
    dbos.shutdown().await;
    Ok(())
}

async fn call(url: String, callers: u32, seconds: u32) -> Result<(), Failure> {
    let dbos = dbos(url);
    let workflow = dbos.register_workflow("saga", saga)?;
    dbos.launch().await?;
    let went = callers::run(callers, seconds, move || {
        let workflow = workflow.clone();
        async move {
            let last = workflow.run(Noop::new()).await?;
            if last != 3 {
                return Err(Failure::from("the last step is missing"));
            }
            Ok(())
        }
    })
    .await?;
    println!("{went}");
    dbos.shutdown().await;
    Ok(())
}
