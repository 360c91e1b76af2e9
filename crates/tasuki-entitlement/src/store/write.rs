//! Changes, written: the entitlements and their audit in one statement.

use sqlx::Execute as _;
use tasuki::together::Together;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Pair, Written};
use crate::domain::Holding;

/// The last version of each entitlement, by column.
#[derive(Debug, Default)]
struct Last {
    users: Vec<String>,
    skus: Vec<String>,
    statuses: Vec<String>,
    versions: Vec<i64>,
    quantities: Vec<Option<i64>>,
    ends: Vec<Option<OffsetDateTime>>,
    granted: Vec<Option<OffsetDateTime>>,
    revoked: Vec<Option<OffsetDateTime>>,
    sources: Vec<String>,
    source_ids: Vec<String>,
    updated: Vec<OffsetDateTime>,
    made_from: Vec<i64>,
}

impl Last {
    fn of(last: &[(Pair<'_>, &Holding, i64)]) -> Self {
        let mut columns = Self::default();
        for ((user, sku), holding, made_from) in last {
            columns.users.push((*user).to_owned());
            columns.skus.push((*sku).to_owned());
            columns.statuses.push(holding.status.as_str().to_owned());
            columns.versions.push(holding.version);
            columns.quantities.push(holding.quantity);
            columns.ends.push(holding.expires_at);
            columns.granted.push(holding.granted_at);
            columns.revoked.push(holding.revoked_at);
            columns.sources.push(holding.source.clone());
            columns.source_ids.push(holding.source_id.clone());
            columns.updated.push(holding.updated_at);
            columns.made_from.push(*made_from);
        }
        columns
    }
}

/// Every change, as the audit has it, by column.
#[derive(Debug, Default)]
struct Audit {
    ids: Vec<Uuid>,
    at: Vec<OffsetDateTime>,
    users: Vec<String>,
    skus: Vec<String>,
    versions: Vec<i64>,
    actions: Vec<String>,
    sources: Vec<String>,
    source_ids: Vec<String>,
    callers: Vec<String>,
    requests: Vec<Option<String>>,
    details: Vec<Option<serde_json::Value>>,
}

impl Audit {
    fn of(written: &[Written<'_>]) -> Self {
        let mut columns = Self::default();
        for it in written {
            let holding = &it.change.holding;
            columns.ids.push(it.event_id);
            columns.at.push(holding.updated_at);
            columns.users.push(it.pair.0.to_owned());
            columns.skus.push(it.pair.1.to_owned());
            columns.versions.push(holding.version);
            columns.actions.push(it.change.action.as_str().to_owned());
            columns.sources.push(holding.source.clone());
            columns.source_ids.push(holding.source_id.clone());
            columns.callers.push(it.caller.to_owned());
            columns.requests.push(it.request_id.map(str::to_owned));
            columns.details.push(detail(holding));
        }
        columns
    }
}

/// Will write the last version of each entitlement, on top of exactly the version that it was made
/// from, and every change into the audit. Fewer entitlements than there are mean that somebody
/// changed one without its lock.
pub(crate) fn write(
    last: &[(Pair<'_>, &Holding, i64)],
    written: &[Written<'_>],
) -> sqlx::Result<Together> {
    let rows = last.len();
    let (last, audit) = (Last::of(last), Audit::of(written));
    let mut statement = sqlx::query_file_scalar!(
        "src/store/write.sql",
        &last.users,
        &last.skus,
        &last.statuses,
        &last.versions,
        &last.quantities as &[Option<i64>],
        &last.ends as &[Option<OffsetDateTime>],
        &last.granted as &[Option<OffsetDateTime>],
        &last.revoked as &[Option<OffsetDateTime>],
        &last.sources,
        &last.source_ids,
        &last.updated,
        &last.made_from,
        &audit.ids,
        &audit.at,
        &audit.users,
        &audit.skus,
        &audit.versions,
        &audit.actions,
        &audit.sources,
        &audit.source_ids,
        &audit.callers,
        &audit.requests as &[Option<String>],
        &audit.details as &[Option<serde_json::Value>],
    );
    let arguments = statement.take_arguments().map_err(sqlx::Error::Encode)?;
    let arguments = arguments.unwrap_or_default();
    let sql = statement.sql();
    Ok(Together::new("entitlements", sql.as_str(), arguments, rows))
}

/// What the other columns don't say; nothing for what is simply owned or not.
fn detail(holding: &Holding) -> Option<serde_json::Value> {
    if holding.quantity.is_none() && holding.expires_at.is_none() {
        return None;
    }
    let end = holding.expires_at.map(tasuki_contract::timestamp::format);
    Some(serde_json::json!({
        "quantity": holding.quantity,
        "expires_at": end.and_then(Result::ok),
    }))
}
