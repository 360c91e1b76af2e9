//! `tasuki apikey`: API keys and operator tokens of a service, in its database.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;
use tasuki_contract::timestamp;
use tasuki_service::auth::credentials::{Credentials, NewCredential, Record, ScopeName, State};

use crate::args::{Apikey, Source};
use crate::output::{note, say, say_json, table};
use crate::platform::{self, Name, Platform};

pub(crate) async fn run(source: &Source, command: &Apikey, json: bool) -> anyhow::Result<ExitCode> {
    let platform = platform::of_running(source)?;
    match command {
        Apikey::Create { service, .. } => create(&platform, *service, command, json).await?,
        Apikey::List { service } => {
            let (credentials, mut connection) = connect(&platform, *service).await?;
            list(&credentials.list(&mut connection).await?, json)?;
        }
        Apikey::Revoke { service, id } => {
            let (credentials, mut connection) = connect(&platform, *service).await?;
            let id = id.parse().map_err(|_error| {
                anyhow::anyhow!("{id:?} is not an id: `tasuki apikey list` shows them")
            })?;
            let revoked = credentials.revoke(&mut connection, id).await?;
            list(&[revoked], json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(
    platform: &Platform,
    service: Name,
    command: &Apikey,
    json: bool,
) -> anyhow::Result<()> {
    let Apikey::Create {
        name,
        scopes,
        operator,
        expires_in,
        ..
    } = command
    else {
        return Ok(());
    };
    check(service, scopes)?;
    let mut wanted = if *operator {
        NewCredential::operator(name)?
    } else {
        NewCredential::api_key(name, scopes.iter().cloned())?
    };
    if let Some(lifetime) = expires_in {
        wanted = wanted.expiring_in(*lifetime)?;
    }
    let (credentials, mut connection) = connect(platform, service).await?;
    let made = credentials
        .create(&mut connection, &platform.clock, &wanted)
        .await?;
    if json {
        return say_json(&json!({ "id": made.id(), "credential": made.expose() }));
    }
    say(made.expose());
    note("keep it now: it is not shown again");
    Ok(())
}

/// Refuses a scope that the service never asks for: the key would be accepted, and allow nothing.
fn check(service: Name, scopes: &[ScopeName]) -> anyhow::Result<()> {
    let known = service.scopes();
    let Some(unknown) = scopes.iter().find(|it| !known.contains(&it.as_str())) else {
        return Ok(());
    };
    let (unknown, name) = (unknown.as_str(), service.as_str());
    if known.is_empty() {
        bail!("{name} has no scope {unknown:?}, nor any other: it answers operators (--operator)");
    }
    bail!(
        "{name} has no scope {unknown:?}: its scopes are {}",
        known.join(", ")
    );
}

type Connection = sqlx::pool::PoolConnection<sqlx::Postgres>;

async fn connect(platform: &Platform, service: Name) -> anyhow::Result<(Credentials, Connection)> {
    let tables = platform.tables_of(service)?;
    let limit = platform.common.database.connect_timeout;
    tables.database.wait(limit).await?;
    let connection = tables.database.workers.acquire().await?;
    Ok((Credentials::new(&tables.schema), connection))
}

fn list(records: &[Record], json: bool) -> anyhow::Result<()> {
    let time = |at| timestamp::format(at).unwrap_or_default();
    if json {
        let rows: Vec<_> = records
            .iter()
            .map(|record| {
                json!({
                    "id": record.id,
                    "kind": record.kind.as_str(),
                    "name": record.name,
                    "scopes": record.scopes,
                    "state": state(record.state),
                    "created_at": time(record.created_at),
                    "expires_at": record.expires_at.map(time),
                    "revoked_at": record.revoked_at.map(time),
                })
            })
            .collect();
        return say_json(&rows);
    }
    let rows = records.iter().map(|record| {
        vec![
            record.id.to_string(),
            record.kind.to_string(),
            record.name.clone(),
            state(record.state).to_owned(),
            record.scopes.join(" "),
            time(record.created_at),
            record.expires_at.map(time).unwrap_or_default(),
        ]
    });
    let header = [
        "ID", "KIND", "NAME", "STATE", "SCOPES", "CREATED", "EXPIRES",
    ];
    say(table(&header, rows));
    Ok(())
}

fn state(state: State) -> &'static str {
    match state {
        State::Active => "active",
        State::Expired => "expired",
        State::Revoked => "revoked",
    }
}
