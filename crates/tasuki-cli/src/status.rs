//! `tasuki status`: what runs and how it is, and waiting until it is ready.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::StatusCode;
use tasuki_contract::error::ErrorBody;
use tasuki_contract::status::{Overall, Status};
use tokio::time::Instant;

use crate::args::{self, Source};
use crate::env_file;
use crate::output::{BAD, BOLD, GOOD, say, say_json, styled, table};
use crate::platform::{self, Platform};

/// How often a waiting status asks.
const PERIOD: Duration = Duration::from_millis(200);
/// How long one answer may take.
const LIMIT: Duration = Duration::from_secs(10);

pub(crate) async fn run(
    source: &Source,
    options: &args::Status,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let status = match options.wait {
        None => ask(source).await?,
        Some(limit) => wait(source, limit).await?,
    };
    if json {
        say_json(&status)?;
    } else {
        show(&status);
    }
    Ok(ExitCode::from(u8::from(status.overall != Overall::Ok)))
}

async fn wait(source: &Source, limit: Duration) -> anyhow::Result<Status> {
    let deadline = Instant::now() + limit;
    loop {
        let answer = ask(source).await;
        if let Ok(status) = &answer
            && status.overall == Overall::Ok
        {
            return answer;
        }
        if Instant::now() >= deadline {
            let limit = humantime::format_duration(limit);
            return match answer {
                Ok(status) => Ok(status),
                Err(error) => Err(error.context(format!("not ready after {limit}"))),
            };
        }
        tokio::time::sleep(PERIOD).await;
    }
}

async fn ask(source: &Source) -> anyhow::Result<Status> {
    let variables = variables(source)?;
    let find = |name: &str| {
        variables.get(name).cloned().with_context(|| {
            format!(
                "{name} is not set: is `tasuki up` running, or should --env-file name its file?"
            )
        })
    };
    let (url, token) = (find("TASUKI_SYSTEM_URL")?, find("TASUKI_OPERATOR_TOKEN")?);
    let client = reqwest::Client::builder()
        .no_proxy()
        .timeout(LIMIT)
        .build()?;
    let request = client.get(format!("{url}/v1/status")).bearer_auth(token);
    let response = match request.send().await {
        Ok(response) => response,
        Err(error) if error.is_connect() => {
            bail!("nothing answers at {url}: start it again, or set TASUKI_SYSTEM_URL")
        }
        Err(error) => return Err(error).context(format!("{url} does not answer")),
    };
    if response.status() == StatusCode::SERVICE_UNAVAILABLE {
        // Without its database it can't tell operators from others, but it can say so.
        let ready = client.get(format!("{url}/readyz")).send().await?;
        let body: ErrorBody = ready.json().await?;
        bail!("not ready: {}", body.message);
    }
    if !response.status().is_success() {
        let status = response.status();
        let body: ErrorBody = response.json().await?;
        bail!("{url} answered {status}: {}", body.message);
    }
    Ok(response.json().await?)
}

/// The environment; what `--env-file` names over it; and where neither says whom to ask, what
/// the `tasuki up` of this folder has written.
pub(crate) fn variables(source: &Source) -> anyhow::Result<HashMap<String, String>> {
    let mut variables: HashMap<_, _> = platform::environment()?.into_iter().collect();
    if let Some(file) = &source.env_file {
        variables.extend(env_file::read(file)?);
    }
    if variables.contains_key("TASUKI_SYSTEM_URL") {
        return Ok(variables);
    }
    let config = platform::configuration(&Source {
        env_file: None,
        ..source.clone()
    })?;
    let usual = Platform::read(&config)?.stack.run_dir.join("env");
    if usual.exists() {
        variables.extend(env_file::read(&usual)?);
    }
    Ok(variables)
}

fn show(status: &Status) {
    let verdict = match status.overall {
        Overall::Ok => styled(GOOD, "ok"),
        Overall::Degraded => styled(BAD, "degraded"),
    };
    say(format_args!(
        "{} {} is {verdict}\n",
        styled(BOLD, "tasuki"),
        status.version
    ));
    let servers = status.servers.iter().map(|server| {
        let how = match (&server.error, server.latency_ms) {
            (Some(error), _) => error.clone(),
            (None, latency) => format!("{:.1} ms", latency.unwrap_or_default()),
        };
        vec![
            server.name.clone(),
            server.version.clone().unwrap_or_default(),
            how,
        ]
    });
    say(format_args!(
        "{}\n",
        table(&["SERVER", "VERSION", "ANSWER"], servers)
    ));
    let schemas = status.migrations.iter().map(|schema| {
        let how = match schema.pending {
            0 => "up to date".to_owned(),
            missing => format!("{missing} missing"),
        };
        vec![schema.name.clone(), schema.applied.to_string(), how]
    });
    say(format_args!("{}\n", table(&["SCHEMA", "AT", ""], schemas)));
    let workers = status.instances.iter().flat_map(|instance| {
        instance.workers.iter().map(|worker| {
            vec![
                worker.name.clone(),
                instance.process.clone(),
                worker.state.clone(),
                worker.ticks.to_string(),
                (worker.failures + worker.panics).to_string(),
                worker.last_error.clone().unwrap_or_default(),
            ]
        })
    });
    let header = [
        "WORKER",
        "PROCESS",
        "STATE",
        "TICKS",
        "FAILED",
        "LAST ERROR",
    ];
    say(table(&header, workers));
}
