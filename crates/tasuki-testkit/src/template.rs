//! A database per test, cloned from a template that is migrated once.
//!
//! The template's name carries a hash of its migrations, so that a changed migration makes a
//! new one. Processes that need the same template at once agree by an advisory lock; it gets
//! its name only when it is complete.

use std::hash::{DefaultHasher, Hash, Hasher};

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool};
use tasuki::Clock;
use tasuki::migrate::Plan;

use crate::servers::Servers;

/// A migrated, empty database of one test. Dropped with it; a failed test's is kept, and its
/// name printed.
#[derive(Debug)]
pub struct TestDb {
    /// Connections to it.
    pub pool: PgPool,
    name: String,
    server: PgConnectOptions,
}

impl TestDb {
    /// A database on which `plans` have been run.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn new(plans: &[Plan]) -> Self {
        Self::with(plans).await
    }

    /// As [`new`](Self::new), for plans that belong to several services.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn with(plans: impl IntoIterator<Item = &Plan>) -> Self {
        let plans: Vec<_> = plans.into_iter().collect();
        match Self::make(&plans).await {
            Ok(database) => database,
            #[expect(clippy::panic, reason = "without a database no test can pass")]
            Err(error) => panic!("no test database: {error}"),
        }
    }

    /// Its name, which no other database has.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        let options = self.server.clone().database(&self.name);
        options.to_url_lossy().to_string()
    }

    async fn make(plans: &[&Plan]) -> Result<Self, Box<dyn std::error::Error>> {
        let server: PgConnectOptions = Servers::get().await.database.parse()?;
        let template = template(&server, plans).await?;
        let name = format!("t_{}", tasuki::uuid_v7(&Clock::system()).simple());
        let mut connection = PgConnection::connect_with(&server).await?;
        run(
            &mut connection,
            format!("CREATE DATABASE {name} TEMPLATE {template}"),
        )
        .await?;
        connection.close().await?;
        let pool = PgPoolOptions::new()
            .max_connections(8)
            .connect_lazy_with(server.clone().database(&name));
        Ok(Self { pool, name, server })
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the database of this test is kept: {}", self.name);
            return;
        }
        let (server, name) = (self.server.clone(), self.name.clone());
        // Drop can't await: a runtime of its own, on a thread of its own.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let Ok(runtime) = runtime else { return };
            let dropped: sqlx::Result<()> = runtime.block_on(async {
                let mut connection = PgConnection::connect_with(&server).await?;
                run(
                    &mut connection,
                    format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"),
                )
                .await
            });
            if let Err(error) = dropped {
                eprintln!("test database {name} could not be dropped: {error}");
            }
        });
        dropping.join().unwrap_or_default();
    }
}

/// The name of the template for `plans`, made by whoever needs it first.
async fn template(
    server: &PgConnectOptions,
    plans: &[&Plan],
) -> Result<String, Box<dyn std::error::Error>> {
    let mut hasher = DefaultHasher::new();
    for plan in plans {
        plan.name().hash(&mut hasher);
        plan.statements().for_each(|sql| sql.hash(&mut hasher));
    }
    let hash = hasher.finish();
    let name = format!("template_{hash:016x}");
    let mut connection = PgConnection::connect_with(server).await?;
    sqlx::query("SELECT pg_advisory_lock($1)")
        .bind(hash.cast_signed())
        .execute(&mut connection)
        .await?;
    let exists: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
            .bind(&name)
            .fetch_one(&mut connection)
            .await?;
    if !exists {
        let draft = format!("{name}_draft");
        run(
            &mut connection,
            format!("DROP DATABASE IF EXISTS {draft} WITH (FORCE)"),
        )
        .await?;
        run(&mut connection, format!("CREATE DATABASE {draft}")).await?;
        let options = server.clone().database(&draft);
        let mut inside = PgConnection::connect_with(&options).await?;
        for plan in plans {
            plan.run(&mut inside).await?;
        }
        inside.close().await?;
        run(
            &mut connection,
            format!("ALTER DATABASE {draft} RENAME TO {name}"),
        )
        .await?;
    }
    connection.close().await?;
    Ok(name)
}

async fn run(connection: &mut PgConnection, sql: String) -> sqlx::Result<()> {
    // Safe: names are made of hex digits.
    sqlx::query(AssertSqlSafe(sql)).execute(connection).await?;
    Ok(())
}
