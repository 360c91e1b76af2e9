//! Restate behind the sub-commands that every peer of the scenario `saga` has.
//!
//! Its server, one node, runs beside this process for as long as the callers do. This process has the
//! service, with a handler of three steps that do nothing, and the callers, which come through the
//! ingress: Restate calls the service for each of them. Each step's result is in Restate's log before
//! the next begins. The log is synced to disk, which is its default.

use std::{
    env,
    error::Error,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use restate_sdk::{ingress::ReqwestClient, prelude::*};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{
    net::TcpListener,
    process::{Child, Command},
    time::sleep,
};

#[path = "../../../src/saga/callers.rs"]
mod callers;

type Failure = Box<dyn Error + Send + Sync>;

/// Where npm puts the server, from this program's folder on.
const SERVER: &str = "node_modules/@restatedev/restate-server-linux-";
/// How long it may take to be ready.
const START_LIMIT: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

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

struct Saga;

#[service]
impl Saga {
    #[handler]
    async fn run(&self, ctx: Context<'_>, _: Json<Noop>) -> HandlerResult<i32> {
        ctx.run(|| nothing(1)).name("first").await?;
        ctx.run(|| nothing(2)).name("second").await?;
        Ok(ctx.run(|| nothing(3)).name("third").await?)
    }
}

async fn nothing(step: i32) -> HandlerResult<i32> {
    Ok(step)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["version"] => version(),
        // Its tables are its own.
        ["setup"] => Ok(()),
        ["saga", callers, seconds] => call(callers.parse()?, seconds.parse()?).await,
        _ => Err("usage: version | setup | saga CALLERS SECONDS".into()),
    }
}

/// The versions that the lock files name.
fn version() -> Result<(), Failure> {
    let mut lines = include_str!("../Cargo.lock").lines();
    lines.find(|line| *line == r#"name = "restate-sdk""#);
    let sdk = lines.next().and_then(|line| line.split('"').nth(1));
    let lock: serde_json::Value = serde_json::from_str(include_str!("../package-lock.json"))?;
    let server = lock["packages"]["node_modules/@restatedev/restate-server"]["version"].as_str();
    let (server, sdk) = (server.unwrap_or("?"), sdk.unwrap_or("?"));
    let version = format!("restate {server}, SDK {sdk} (Rust)");
    println!("{}", json!({ "version": version }));
    Ok(())
}

async fn call(callers: u32, seconds: u32) -> Result<(), Failure> {
    let home = env::current_exe()?;
    let home = home.parent().ok_or("this program has no folder")?;
    let (ingress, admin) = (free_port()?, free_port()?);
    let mut server = start(home, ingress, admin)?;
    let http = reqwest::Client::new();
    ready(&mut server, &http, admin, "health").await?;
    ready(&mut server, &http, ingress, "restate/health").await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let service = listener.local_addr()?;
    let endpoint = Endpoint::builder().bind(Saga).build();
    tokio::spawn(HttpServer::new(endpoint).serve(listener));
    let registered = http
        .post(format!("http://{admin}/deployments"))
        .json(&json!({ "uri": format!("http://{service}") }))
        .send()
        .await?;
    if !registered.status().is_success() {
        return Err(format!("not registered: {}", registered.text().await?).into());
    }
    let client = ReqwestClient::connect(format!("http://{ingress}").parse()?)?;
    let went = callers::run(callers, seconds, move || {
        let saga = SagaIngressClient::from_client(client.clone());
        async move {
            let last = saga.run(Json(Noop::new())).call().await?.into_body()?;
            if last != 3 {
                return Err(Failure::from("the last step is missing"));
            }
            Ok(())
        }
    })
    .await?;
    println!("{went}");
    server.kill().await?;
    fs::remove_dir_all(home.join("data"))?;
    Ok(())
}

/// Starts the server with an empty folder. It dies with this process.
fn start(home: &Path, ingress: SocketAddr, admin: SocketAddr) -> Result<Child, Failure> {
    let data = home.join("data");
    if data.exists() {
        fs::remove_dir_all(&data)?;
    }
    fs::create_dir_all(&data)?;
    let log = fs::File::create(home.join("server.log"))?;
    let child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(program(home))
        .env("RESTATE_BASE_DIR", &data)
        .env("RESTATE_NODE_NAME", "bench")
        .env("RESTATE_LISTEN_MODE", "tcp")
        .env("RESTATE_BIND_ADDRESS", free_port()?.to_string())
        .env("RESTATE_INGRESS__BIND_ADDRESS", ingress.to_string())
        .env("RESTATE_ADMIN__BIND_ADDRESS", admin.to_string())
        .env("RESTATE_LOG_SERVER__ROCKSDB_DISABLE_WAL_FSYNC", "false")
        .env("RESTATE_LOG_FILTER", "warn")
        .env("RESTATE_DISABLE_TELEMETRY", "true")
        .env("DO_NOT_TRACK", "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}

fn program(home: &Path) -> PathBuf {
    let machine = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "x64"
    };
    home.join(format!("{SERVER}{machine}/bin/restate-server"))
}

async fn ready(
    server: &mut Child,
    http: &reqwest::Client,
    address: SocketAddr,
    path: &str,
) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        if let Some(status) = server.try_wait()? {
            return Err(format!("the server ended with {status}, server.log says more").into());
        }
        let asked = http.get(format!("http://{address}/{path}")).send().await;
        if asked.is_ok_and(|answer| answer.status().is_success()) {
            return Ok(());
        }
        if began.elapsed() > START_LIMIT {
            return Err("the server is not ready, server.log says more".into());
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// A port that nobody had a moment ago.
fn free_port() -> Result<SocketAddr, Failure> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?)
}
