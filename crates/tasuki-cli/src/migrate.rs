//! `tasuki migrate`: brings every schema up to date, or says what is missing.

use std::process::ExitCode;

use serde_json::json;
use tasuki_service::service::Tables;

use crate::args::{Migrate, Source};
use crate::output::{say, say_json, table};
use crate::platform::{self, Platform};

pub(crate) async fn run(
    source: &Source,
    options: &Migrate,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let platform = Platform::read(&platform::configuration(source)?)?;
    let mut rows = Vec::new();
    let mut pending = 0;
    for tables in platform.all_tables()? {
        let limit = platform.common.database.start_timeout;
        tables.database.wait(limit).await?;
        let before = progress(&tables).await?;
        if !options.check {
            tables.migrate(limit).await?;
        }
        for ((name, before), (_, after)) in before.into_iter().zip(progress(&tables).await?) {
            pending += after.pending;
            rows.push((name, before.applied, after.applied, after.pending));
        }
    }
    if json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(name, before, after, pending)| {
                json!({ "schema": name, "before": before, "after": after, "pending": pending })
            })
            .collect();
        say_json(&rows)?;
    } else {
        let rows = rows.iter().map(|(name, before, after, pending)| {
            let what = match (pending, before == after) {
                (0, true) => "up to date".to_owned(),
                (0, false) => format!("migrated from {before}"),
                (missing, _) => format!("{missing} missing"),
            };
            vec![name.clone(), after.to_string(), what]
        });
        say(table(&["SCHEMA", "AT", ""], rows));
    }
    Ok(ExitCode::from(u8::from(pending > 0)))
}

async fn progress(tables: &Tables) -> anyhow::Result<Vec<(String, tasuki::migrate::Progress)>> {
    let mut all = Vec::new();
    for plan in &*tables.plans {
        let progress = plan.progress(&tables.database.workers).await?;
        all.push((plan.name().to_owned(), progress));
    }
    Ok(all)
}
