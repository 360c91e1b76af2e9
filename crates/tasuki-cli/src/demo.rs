//! `tasuki demo`: a grant on its way, with times.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tasuki::admin::{Admin, Place};
use tasuki_contract::entitlement::Entitlement;
use tasuki_contract::notification::{DebugInbox, DebugNotification};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::args::Source;
use crate::output::{BOLD, DIM, GOOD, say, say_json, styled};
use crate::platform::{self, Name, Platform};
use crate::status;

/// How long everything may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How often the next stage is looked for.
const PERIOD: Duration = Duration::from_millis(2);

/// How long a busy service is left alone.
const BUSY: Duration = Duration::from_millis(250);

/// What happened when.
struct Stage {
    what: &'static str,
    detail: String,
    after: Duration,
}

impl Stage {
    fn new(what: &'static str, detail: String, after: Duration) -> Self {
        Self {
            what,
            detail,
            after,
        }
    }
}

pub(crate) async fn run(source: &Source, json: bool) -> anyhow::Result<ExitCode> {
    let platform = platform::of_running(source)?;
    let stages = Demo::new(source)?.walk(&platform).await?;
    if json {
        let stages: Vec<Value> = stages
            .iter()
            .map(|it| {
                let millis = it.after.as_secs_f64() * 1e3;
                json!({ "what": it.what, "detail": it.detail, "after_ms": millis })
            })
            .collect();
        say_json(&stages)?;
        return Ok(ExitCode::SUCCESS);
    }
    say(format_args!("\n  {}\n", styled(BOLD, "a grant on its way")));
    for stage in &stages {
        let millis = format!("{:>9.1} ms", stage.after.as_secs_f64() * 1e3);
        let detail = styled(DIM, &stage.detail);
        say(format_args!(
            "  {}  {:<26}{detail}",
            styled(GOOD, millis),
            stage.what
        ));
    }
    say("");
    Ok(ExitCode::SUCCESS)
}

struct Demo {
    client: reqwest::Client,
    entitlement: String,
    notification: String,
    key: String,
    operator: String,
}

impl Demo {
    fn new(source: &Source) -> anyhow::Result<Self> {
        let variables: HashMap<String, String> = status::variables(source)?;
        let find = |name: &str| {
            variables.get(name).cloned().with_context(|| {
                format!(
                    "{name} is not set: is `tasuki up` running, or should --env-file name its file?"
                )
            })
        };
        Ok(Self {
            client: reqwest::Client::builder()
                .no_proxy()
                .timeout(LIMIT)
                .build()?,
            entitlement: find("TASUKI_ENTITLEMENT_URL")?,
            notification: find("TASUKI_NOTIFICATION_URL")?,
            key: find("TASUKI_API_KEY")?,
            operator: find("TASUKI_OPERATOR_TOKEN")?,
        })
    }

    async fn walk(&self, platform: &Platform) -> anyhow::Result<Vec<Stage>> {
        let user = format!("demo-{}", Uuid::now_v7().simple());
        let ask = json!({
            "user_id": user, "stock_keeping_unit": "sword-of-dawn", "reason": "demo",
            "purchase_id": "demo",
        });
        let began = Instant::now();
        let first = self.grant(&user, &ask).await?;
        let answered = began.elapsed();
        let told = self.until_sent(&user, began).await?;
        let granted: Entitlement = serde_json::from_str(&first)?;
        let start = granted.item.updated_at;
        let since = |at: OffsetDateTime| Duration::try_from(at - start).unwrap_or_default();
        let event = told.event_id;
        let (published, place) = published(platform, event.as_uuid()).await?;
        let version = granted.item.version;
        let trace = told.trace_id.as_deref().unwrap_or("-");
        let again = Instant::now();
        if self.grant(&user, &ask).await? != first {
            bail!("the same request got another answer");
        }
        Ok(vec![
            Stage::new(
                "granted, and answered",
                format!("version {version}: entitlement, audit, event and answer are one"),
                answered,
            ),
            Stage::new("published", place, since(published)),
            Stage::new(
                "taken in, once",
                format!("event {event}"),
                since(told.created_at),
            ),
            Stage::new(
                "told",
                format!("over {}, trace {trace}", told.channel),
                since(told.sent_at.unwrap_or(start)),
            ),
            Stage::new(
                "asked again",
                "the same bytes, and nothing happened twice".to_owned(),
                again.elapsed(),
            ),
        ])
    }

    /// Grants. A service that is busy says so, and with the same key it is safe to ask again.
    async fn grant(&self, key: &str, ask: &Value) -> anyhow::Result<String> {
        let began = Instant::now();
        loop {
            let request = self
                .client
                .post(format!("{}/v1/entitlements/grants", self.entitlement))
                .bearer_auth(&self.key)
                .header("Idempotency-Key", key)
                .json(ask);
            let response = request
                .send()
                .await
                .context("entitlement does not answer")?;
            let status = response.status();
            let text = response.text().await?;
            if status.is_success() {
                return Ok(text);
            }
            if status != StatusCode::SERVICE_UNAVAILABLE || began.elapsed() >= LIMIT {
                bail!("entitlement answered {status}: {text}");
            }
            sleep(BUSY).await;
        }
    }

    async fn until_sent(&self, user: &str, began: Instant) -> anyhow::Result<DebugNotification> {
        let url = format!("{}/debug/notification/inbox/{user}", self.notification);
        while began.elapsed() < LIMIT {
            let request = self.client.get(&url).bearer_auth(&self.operator);
            let response = request
                .send()
                .await
                .context("notification does not answer")?;
            let status = response.status();
            if status == StatusCode::SERVICE_UNAVAILABLE {
                sleep(BUSY).await;
                continue;
            }
            if !status.is_success() {
                bail!("notification answered {status}: {}", response.text().await?);
            }
            let inbox: DebugInbox = response.json().await?;
            let told = inbox
                .notifications
                .into_iter()
                .find(|it| it.status == "SENT");
            if let Some(told) = told {
                return Ok(told);
            }
            sleep(PERIOD).await;
        }
        bail!("nobody was told within {}s", LIMIT.as_secs());
    }
}

/// When the broker acknowledged an event, and where it is.
async fn published(platform: &Platform, event: Uuid) -> anyhow::Result<(OffsetDateTime, String)> {
    let tables = platform.tables_of(Name::Entitlement)?;
    tables.database.wait(LIMIT).await?;
    let mut connection = tables.database.workers.acquire().await?;
    let admin = Admin::new(&tables.schema);
    let began = Instant::now();
    // It may be told before the relay has written down that it was published.
    while began.elapsed() < LIMIT {
        let found = admin.event(&mut connection, event).await?;
        if let Some(Place::Published {
            at,
            stream,
            stream_seq,
            ..
        }) = found.map(|it| it.place)
        {
            return Ok((at, format!("message {stream_seq} of {stream}")));
        }
        sleep(PERIOD).await;
    }
    bail!(
        "event {event} was not published within {}s",
        LIMIT.as_secs()
    );
}
