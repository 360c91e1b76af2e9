//! The history of reports. What changes something answers whom it concerns.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sqlx::PgConnection;
use uuid::Uuid;

use crate::nostr::{Id, Key, Target};
use crate::trust::Reported;

/// Puts reports in; of versions of one report the latest stays. `authors` are those who are known of the
/// events that are reported.
pub(crate) async fn put(
    tx: &mut PgConnection,
    reports: &[Reported],
    authors: &HashMap<Id, Key>,
) -> sqlx::Result<BTreeSet<Target>> {
    // Each once: a statement can't change a row twice.
    let mut latest: BTreeMap<Uuid, &Reported> = BTreeMap::new();
    for report in reports {
        let stays = latest.entry(report.key).or_insert(report);
        if report.replaces(stays) {
            *stays = report;
        }
    }
    let keys: Vec<_> = latest.keys().copied().collect();
    let latest: Vec<_> = latest.into_values().collect();
    let each = || latest.iter();
    let author = |it: &&Reported| match &it.target {
        Target::Event(id) => authors.get(id).copied(),
        _ => it.author(),
    };
    let columns = (
        each().map(|it| it.event.0.to_vec()).collect::<Vec<_>>(),
        each().map(|it| it.reporter.clone()).collect::<Vec<_>>(),
        each().map(|it| it.target.to_string()).collect::<Vec<_>>(),
        each()
            .map(|it| author(it).map(|key| key.to_string()))
            .collect::<Vec<_>>(),
        each().map(|it| it.reason.clone()).collect::<Vec<_>>(),
        each().map(|it| it.at).collect::<Vec<_>>(),
    );
    // What the version was about whose place another one takes is concerned, too.
    let rows = sqlx::query!(
        r#"
        WITH before AS MATERIALIZED (
            SELECT report_key, target, author FROM cn_relay.trust_reports WHERE report_key = ANY($1)
        ),

        changed AS (
            INSERT INTO cn_relay.trust_reports AS report (
                report_key, event_id, reporter, target, author, reason, reported_at
            )
            SELECT * FROM unnest(
                $1::uuid[], $2::bytea[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[]
            )
            ON CONFLICT (report_key) DO UPDATE
            SET event_id = excluded.event_id, reporter = excluded.reporter, target = excluded.target,
                author = excluded.author, reason = excluded.reason, reported_at = excluded.reported_at
            WHERE (excluded.reported_at, report.event_id) > (report.reported_at, excluded.event_id)
            RETURNING report_key, target, author
        )

        SELECT target AS "target!", author FROM changed
        UNION ALL
        SELECT before.target, before.author FROM before JOIN changed USING (report_key)
        "#,
        &keys,
        &columns.0,
        &columns.1,
        &columns.2,
        &columns.3 as &[Option<String>],
        &columns.4,
        &columns.5,
    )
    .fetch_all(tx)
    .await?;
    let rows = rows.iter().map(|row| (&*row.target, row.author.as_deref()));
    Ok(concerned(rows))
}

/// Events have come that were reported before.
pub(crate) async fn learn(
    tx: &mut PgConnection,
    authors: &[(Id, Key)],
) -> sqlx::Result<BTreeSet<Target>> {
    let targets: Vec<_> = authors
        .iter()
        .map(|(id, _)| Target::Event(*id).to_string())
        .collect();
    let keys: Vec<_> = authors.iter().map(|(_, key)| key.to_string()).collect();
    let rows = sqlx::query!(
        r#"
        UPDATE cn_relay.trust_reports AS report
        SET author = known.author
        FROM unnest($1::text[], $2::text[]) AS known (target, author)
        WHERE report.target = known.target AND report.author IS NULL
        RETURNING report.target, report.author
        "#,
        &targets,
        &keys,
    )
    .fetch_all(tx)
    .await?;
    let rows = rows.iter().map(|row| (&*row.target, row.author.as_deref()));
    Ok(concerned(rows))
}

/// What is reported, and whoever made it.
fn concerned<'a>(rows: impl Iterator<Item = (&'a str, Option<&'a str>)>) -> BTreeSet<Target> {
    let mut all = BTreeSet::new();
    for (target, author) in rows {
        all.extend(target.parse::<Target>());
        all.extend(author.and_then(Key::parse).map(Target::Author));
    }
    all
}
