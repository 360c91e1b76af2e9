//! Reports: each once, by the id of its event.

use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::nostr::{Id, Report};

/// A report, and who reports.
#[derive(Clone, Debug)]
pub(crate) struct Collected {
    pub(crate) event: Id,
    pub(crate) reporter: String,
    pub(crate) report: Report,
    pub(crate) ingested_at: OffsetDateTime,
}

/// Takes reports down; answers how many were not there before, or were not as they should be.
pub(crate) async fn put(tx: &mut PgConnection, found: &[Collected]) -> sqlx::Result<u64> {
    let ids: Vec<_> = found.iter().map(|it| it.event.0.to_vec()).collect();
    let reporters: Vec<_> = found.iter().map(|it| it.reporter.clone()).collect();
    let targets: Vec<_> = found
        .iter()
        .map(|it| it.report.target.to_string())
        .collect();
    let reasons: Vec<_> = found.iter().map(|it| it.report.reason.clone()).collect();
    let times: Vec<_> = found.iter().map(|it| it.ingested_at).collect();
    let put = sqlx::query!(
        "INSERT INTO cn_relay.reports AS report (event_id, reporter, target, reason, ingested_at)
         SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::timestamptz[])
         ON CONFLICT (event_id) DO UPDATE
         SET reporter = excluded.reporter, target = excluded.target, reason = excluded.reason,
             ingested_at = excluded.ingested_at
         WHERE (report.reporter, report.target, report.reason, report.ingested_at)
             IS DISTINCT FROM
             (excluded.reporter, excluded.target, excluded.reason, excluded.ingested_at)",
        &ids,
        &reporters,
        &targets,
        &reasons,
        &times,
    )
    .execute(tx)
    .await?;
    Ok(put.rows_affected())
}

/// Reports of one target.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    pub(crate) target: String,
    pub(crate) reports: i64,
    pub(crate) reporters: i64,
    pub(crate) reasons: Vec<String>,
    pub(crate) last_at: OffsetDateTime,
}

/// Reports since `since`, counted for each target; those with most reporters first.
pub(crate) async fn count(
    connection: &mut PgConnection,
    target: Option<&str>,
    since: Option<OffsetDateTime>,
    limit: i64,
) -> sqlx::Result<Vec<Counted>> {
    sqlx::query_as!(
        Counted,
        r#"
        SELECT
            target, count(*) AS "reports!", count(DISTINCT reporter) AS "reporters!",
            array_agg(DISTINCT reason) AS "reasons!", max(ingested_at) AS "last_at!"
        FROM cn_relay.reports
        WHERE ($1::text IS NULL OR target = $1)
            AND ($2::timestamptz IS NULL OR ingested_at >= $2)
        GROUP BY target
        ORDER BY 3 DESC, 2 DESC, target
        LIMIT $3
        "#,
        target,
        since,
        limit,
    )
    .fetch_all(connection)
    .await
}
