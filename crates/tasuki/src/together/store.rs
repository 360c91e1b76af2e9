//! The one statement that all parts are.

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{AssertSqlSafe, PgConnection};

/// Runs `sql`, which is made of statements: its values are arguments.
pub(super) async fn run(
    transaction: &mut PgConnection,
    sql: String,
    arguments: PgArguments,
) -> sqlx::Result<PgRow> {
    sqlx::query_with(AssertSqlSafe(sql), arguments)
        .fetch_one(transaction)
        .await
}
