//! Tables that are filled beside those in use, and take their place.
//!
//! Each attempt at a rebuild has one of its own: a process that slept through its replacement, and wakes in
//! the middle of its attempt, writes into a table that nobody takes, and drops none that somebody fills.

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

/// The fresh table of an attempt. Statements call it `<table>_fresh`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    table: &'static str,
    attempt: i64,
}

impl Fresh {
    pub(crate) const fn new(table: &'static str, attempt: i64) -> Self {
        Self { table, attempt }
    }

    fn prefix(&self) -> String {
        format!("{}_fresh", self.table)
    }

    /// A statement about this very table, and what belongs to it.
    pub(crate) fn named(&self, sql: &str) -> AssertSqlSafe<String> {
        let prefix = self.prefix();
        // Safe: a name and a number of ours.
        AssertSqlSafe(sql.replace(&prefix, &format!("{prefix}_{}", self.attempt)))
    }

    /// Makes it by `sql`, and drops what earlier attempts have left.
    pub(crate) async fn make(&self, connection: &mut PgConnection, sql: &str) -> sqlx::Result<()> {
        self.drop_earlier(connection).await?;
        connection.execute(sqlx::raw_sql(self.named(sql))).await?;
        Ok(())
    }

    /// Statements about this very table that may take as long as they need; they end with whoever waits.
    pub(crate) async fn at_length(
        &self,
        connection: &mut PgConnection,
        sql: &str,
    ) -> sqlx::Result<()> {
        let mut tx = connection.begin().await?;
        let settings = "SET LOCAL statement_timeout = 0;
             SET LOCAL client_connection_check_interval = '5s';
             SET LOCAL maintenance_work_mem = '256MB'; ";
        sqlx::raw_sql(self.named(&format!("{settings}{sql}")))
            .execute(&mut *tx)
            .await?;
        tx.commit().await
    }

    /// Drops the tables of earlier attempts.
    pub(crate) async fn drop_earlier(&self, connection: &mut PgConnection) -> sqlx::Result<()> {
        let prefix = format!("{}_", self.prefix());
        let names = sqlx::query_scalar!(
            r#"
            SELECT tablename AS "name!" FROM pg_tables
            WHERE schemaname = 'cn_relay' AND starts_with(tablename, $1)
            "#,
            prefix,
        )
        .fetch_all(&mut *connection)
        .await?;
        let attempts = names.iter().filter_map(|name| name.strip_prefix(&prefix));
        let attempts = attempts.filter_map(|attempt| attempt.parse::<i64>().ok());
        for earlier in attempts.filter(|attempt| *attempt < self.attempt) {
            let drop = format!("DROP TABLE IF EXISTS cn_relay.{prefix}{earlier}");
            // Safe: the same.
            connection.execute(AssertSqlSafe(drop)).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_about_the_table_of_its_attempt() {
        let fresh = Fresh::new("documents", 7);
        let named = fresh
            .named("ALTER INDEX documents_fresh_idx RENAME TO documents_idx")
            .0;
        assert_eq!(
            named,
            "ALTER INDEX documents_fresh_7_idx RENAME TO documents_idx"
        );
    }
}
