//! Tables that grow with time stay small: partitions are made ahead, and old rows go.
//!
//! `cargo run -p tasuki --example upkeep -- postgres://localhost/example`

use std::time::Duration;

use sqlx::PgPool;
use tasuki::Schema;
use tasuki::upkeep::{Expiring, Partitioned, Upkeep};
use tasuki::worker::{self, Error};

const HOUR: Duration = Duration::from_secs(60 * 60);

/// Tables of a service's own beside those of the library.
const TABLES: [&str; 7] = [
    "DROP TABLE IF EXISTS upkeep_example.visits, upkeep_example.sessions",
    "CREATE TABLE upkeep_example.visits (page text NOT NULL, visited_at timestamptz NOT NULL)
        PARTITION BY RANGE (visited_at)",
    "CREATE TABLE upkeep_example.visits_default PARTITION OF upkeep_example.visits DEFAULT",
    "CREATE TABLE upkeep_example.sessions (name text NOT NULL, expires_at timestamptz NOT NULL)",
    "CREATE INDEX sessions_expires_at_idx ON upkeep_example.sessions (expires_at)",
    "INSERT INTO upkeep_example.visits VALUES
        ('today', now()), ('this morning', now() - interval '7 h'),
        ('last week', now() - interval '7 d')",
    "INSERT INTO upkeep_example.sessions VALUES
        ('ada', now() + interval '1 h'), ('bob', now() - interval '1 h')",
];

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).ok_or("give a database URL")?;
    let pool = PgPool::connect(&url).await?;
    let schema = Schema::new("upkeep_example")?;
    tasuki::migrate(&pool, schema.as_str()).await?;
    for sql in TABLES {
        sqlx::query(sql).execute(&pool).await?;
    }

    // It knows how long the library's tables are kept; what it says of ours, we say.
    let visits = Partitioned::by_time("visits", "visited_at").width(HOUR);
    let upkeep = Upkeep::new(pool.clone(), &schema)
        .partitioned(visits.keep(24 * HOUR))?
        .expiring(Expiring::new("sessions", "expires_at"))?;

    // Under a supervisor it ticks every minute, in as many processes as you like: one works.
    worker::drain(&upkeep).await?;
    let ahead: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_inherits
         WHERE inhparent = 'upkeep_example.visits'::regclass",
    )
    .fetch_one(&pool)
    .await?;
    println!("partitions of visits: {ahead}");
    assert!(ahead > 24, "a day ahead, hour by hour, and the default");
    let visits = names(
        &pool,
        "SELECT page FROM upkeep_example.visits ORDER BY page",
    )
    .await?;
    println!("visits of the last day: {visits:?}");
    assert_eq!(visits, ["this morning", "today"]);
    let sessions = names(&pool, "SELECT name FROM upkeep_example.sessions").await?;
    println!("sessions that live: {sessions:?}");
    assert_eq!(sessions, ["ada"]);

    // An operator who can't wait for the retention asks for less.
    let cleaned = upkeep.cleanup("visits", HOUR).await?;
    println!("cleaned: {} row(s)", cleaned.rows);
    let visits = names(&pool, "SELECT page FROM upkeep_example.visits").await?;
    assert_eq!(visits, ["today"]);
    Ok(())
}

async fn names(pool: &PgPool, sql: &'static str) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar(sql).fetch_all(pool).await
}
