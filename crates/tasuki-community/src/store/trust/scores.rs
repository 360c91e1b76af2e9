//! What scores are made of, by indexes alone: what it costs is what somebody has done himself, not how much
//! is stored.

use sqlx::PgConnection;

use super::events::key;
use crate::nostr::{Key, Target};
use crate::trust::Contact;

/// People to whom one has spoken that are weighed, in the order of their keys.
pub(crate) const CONTACTS: i32 = 500;
/// Reporters that are weighed: first those who talk with somebody, then the latest.
pub(crate) const REPORTERS: i64 = 500;

/// Now, by the clock of the database, in seconds.
pub(crate) async fn now(connection: &mut PgConnection) -> sqlx::Result<i64> {
    let now = sqlx::query_scalar!(
        r#"SELECT floor(extract(EPOCH FROM clock_timestamp()))::bigint AS "now!""#
    );
    now.fetch_one(connection).await
}

/// To whom `keys` have spoken after `since`, and when those have answered.
pub(crate) async fn contacts(
    connection: &mut PgConnection,
    keys: &[Key],
    since: i64,
) -> sqlx::Result<Vec<(Key, Contact)>> {
    let keys: Vec<_> = keys.iter().map(|key| key.0.to_vec()).collect();
    let rows = sqlx::query_file!("src/store/trust/contacts.sql", &keys, since, CONTACTS)
        .fetch_all(connection)
        .await?;
    let rows = rows.into_iter().filter_map(|row| {
        let contact = Contact {
            said_at: row.said_at?,
            heard_at: row.heard_at,
        };
        Some((key(&row.key?)?, contact))
    });
    Ok(rows.collect())
}

/// Somebody who has reported one of several subjects.
pub(crate) struct ReportedBy {
    /// Which of them.
    pub(crate) place: usize,
    pub(crate) reporter: String,
    /// When last.
    pub(crate) at: i64,
}

/// Who has reported `subjects` after `since`, each once and nobody himself: an author by what was reported
/// of him and of all that he made, everything else by itself.
pub(crate) async fn reporters(
    connection: &mut PgConnection,
    subjects: &[Target],
    since: i64,
) -> sqlx::Result<Vec<ReportedBy>> {
    let each = || subjects.iter();
    let authors = each().map(|it| match it {
        Target::Author(key) => Some(key.to_string()),
        _ => None,
    });
    let authors: Vec<_> = authors.collect();
    let targets = each().map(|it| match it {
        Target::Author(_) => None,
        other => Some(other.to_string()),
    });
    let targets: Vec<_> = targets.collect();
    let rows = sqlx::query_file!(
        "src/store/trust/reporters.sql",
        &authors as &[Option<String>],
        &targets as &[Option<String>],
        since,
        REPORTERS,
    )
    .fetch_all(connection)
    .await?;
    let rows = rows.into_iter().filter_map(|row| {
        Some(ReportedBy {
            place: usize::try_from(row.place? - 1).ok()?,
            reporter: row.reporter?,
            at: row.reported_at?,
        })
    });
    Ok(rows.collect())
}
