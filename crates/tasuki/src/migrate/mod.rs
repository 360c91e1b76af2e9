//! A crate's tables in whatever schema its user names.
//!
//! A [`Plan`] is a numbered list of migrations for one schema, with a record of its own in
//! that schema, so that a library's tables and a service's tables are upgraded side by side
//! without knowing of each other. Running a plan is safe from many processes at once: one
//! works, the others wait. The connection must reach PostgreSQL directly, because the lock
//! belongs to the session.
//!
//! Two ways to make one: [`Plan::rendered`] for tables whose schema the user chooses (the
//! statements say `{schema}`), [`Plan::fixed`] for a service that owns its schema.
//!
//! A database that is *newer* than the plan is fine: the previous release keeps running
//! while the next one has already expanded the schema.

mod library;
mod store;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, PgConnection, PgPool, SqlSafeStr};

use crate::{InvalidSchema, Schema};

pub use library::{install, library};

/// One migration of a [`Plan::rendered`]: its number, what it does, its statements.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Ascending; never reused.
    pub version: i64,
    /// A few words for the record.
    pub description: &'static str,
    /// Statements with `{schema}` where the schema goes.
    pub sql: &'static str,
}

/// The migrations of one crate for one schema.
#[derive(Debug)]
pub struct Plan {
    name: String,
    migrator: Migrator,
}

/// How far a database is with a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The newest migration that the database has, 0 for none.
    pub applied: i64,
    /// The newest migration that the plan has.
    pub needed: i64,
    /// Migrations of the plan that the database does not have yet.
    pub pending: usize,
}

/// Why a plan could not be run or compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A migration failed, or the record contradicts the plan.
    #[error("migrations of {plan} failed")]
    Run {
        /// The plan's name.
        plan: String,
        /// What went wrong.
        #[source]
        source: MigrateError,
    },
    /// The schema's name.
    #[error(transparent)]
    Schema(#[from] InvalidSchema),
    /// The record could not be read.
    #[error("the migration record of {plan} could not be read")]
    Read {
        /// The plan's name.
        plan: String,
        /// What went wrong.
        #[source]
        source: sqlx::Error,
    },
}

impl Plan {
    /// Migrations that were written for any schema, for `schema`. The record is kept in
    /// `<schema>._<set>_migrations`.
    #[must_use]
    pub fn rendered(set: &str, schema: &Schema, steps: &[Step]) -> Self {
        let migrations = steps
            .iter()
            .map(|step| {
                // Safe: the text is the crate's own, and a `Schema` is a plain identifier.
                let sql = AssertSqlSafe(schema.render(step.sql)).into_sql_str();
                Migration::new(
                    step.version,
                    step.description.into(),
                    MigrationType::Simple,
                    sql,
                    step.sql.starts_with("-- no-transaction"),
                )
            })
            .collect();
        let mut migrator = Migrator::with_migrations(migrations);
        migrator.dangerous_set_table_name(format!("{schema}._{set}_migrations"));
        migrator.create_schema(schema.to_string());
        Self::named(format!("{schema}/{set}"), migrator)
    }

    /// The migrations of a service that owns its schema, from `sqlx::migrate!()`; schema and
    /// record are named in the crate's `sqlx.toml`.
    #[must_use]
    pub fn fixed(schema: &Schema, migrator: Migrator) -> Self {
        Self::named(schema.to_string(), migrator)
    }

    fn named(name: String, mut migrator: Migrator) -> Self {
        // A newer database is not an error: see the module's documentation.
        migrator.set_ignore_missing(true);
        // Its own lock would obey the connection's lock timeout; ours waits for its turn.
        migrator.set_locking(false);
        Self { name, migrator }
    }

    /// `<schema>` or `<schema>/<set>`: how messages and the status page call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Applies what is missing, each migration in a transaction of its own; an index that is built
    /// concurrently has none, and what a failed run left of it is removed first. Mind the limits
    /// of the connection: a statement timeout ends a long migration, and a lock timeout is
    /// what keeps one from standing in the way of traffic.
    ///
    /// # Errors
    /// When a migration fails, or one that was applied has changed since.
    pub async fn run(&self, connection: &mut PgConnection) -> Result<(), Error> {
        let unlocked = |source: sqlx::Error| Error::Run {
            plan: self.name.clone(),
            source: MigrateError::Execute(source),
        };
        store::lock(connection).await.map_err(unlocked)?;
        let run = self.run_locked(connection).await;
        // What went wrong first is what matters; the lock goes with the connection.
        let freed = store::unlock(connection).await.map_err(unlocked);
        run.map_err(|source| Error::Run {
            plan: self.name.clone(),
            source,
        })?;
        freed
    }

    async fn run_locked(&self, connection: &mut PgConnection) -> Result<(), MigrateError> {
        for step in self.migrator.iter().filter(|step| step.no_tx) {
            if let Some(index) = concurrent_index(step.sql.as_str()) {
                store::drop_unfinished(connection, &self.migrator.table_name, index).await?;
            }
        }
        self.migrator.run(&mut *connection).await
    }

    /// Compares the database with the plan. Changes nothing.
    ///
    /// # Errors
    /// When the record can't be read; a missing one only means that nothing was applied.
    pub async fn progress(&self, pool: &PgPool) -> Result<Progress, Error> {
        let applied = store::applied(pool, &self.migrator.table_name)
            .await
            .map_err(|source| Error::Read {
                plan: self.name.clone(),
                source,
            })?;
        let needed = || self.migrator.iter().map(|step| step.version);
        Ok(Progress {
            applied: applied.iter().copied().max().unwrap_or(0),
            needed: needed().max().unwrap_or(0),
            pending: needed().filter(|step| !applied.contains(step)).count(),
        })
    }

    /// Every statement of the plan, for what must differ when they do (a test's template
    /// database).
    pub fn statements(&self) -> impl Iterator<Item = &str> {
        self.migrator.iter().map(|step| step.sql.as_str())
    }
}

/// The name of the index that a migration builds concurrently.
fn concurrent_index(sql: &str) -> Option<&str> {
    let statement = sql.lines().filter(|line| !line.starts_with("--"));
    let mut words = statement.flat_map(str::split_whitespace);
    words.find(|word| word.eq_ignore_ascii_case("create"))?;
    words.find(|word| word.eq_ignore_ascii_case("concurrently"))?;
    words.next()
}

#[cfg(test)]
mod tests {
    use super::concurrent_index;

    #[test]
    fn the_index_that_a_migration_builds_is_found() {
        let sql = "-- no-transaction\n-- Why: CREATE INDEX CONCURRENTLY is slow.\n\
                   CREATE UNIQUE INDEX CONCURRENTLY things_name_idx\n    ON app.things (name);\n";
        assert_eq!(concurrent_index(sql), Some("things_name_idx"));
        assert_eq!(
            concurrent_index("-- no-transaction\nVACUUM app.things;"),
            None
        );
        let drop = "-- no-transaction\nDROP INDEX CONCURRENTLY app.things_name_idx;";
        assert_eq!(concurrent_index(drop), None);
    }
}
