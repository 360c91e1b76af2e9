//! Two databases and a log: what is committed is committed in both.

mod commit;
mod custom;
mod people;
mod pool;
mod recovery;
mod server;
mod sweep;

use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use tasuki::Schema;
use tasuki::migrate::library;
use tasuki::twopc::{
    Branches, Committed, Coordinator, Database, Error, Listed, Record, TransactionId,
};
use tasuki_testkit::{TestDb, eventually};

const SECOND: Duration = Duration::from_secs(1);

fn schema() -> Schema {
    Schema::new("app").unwrap()
}

/// A log, and two participants with a hundred units each.
struct World {
    log: TestDb,
    east: TestDb,
    west: TestDb,
}

impl World {
    async fn new() -> Self {
        let (log, east, west) = tokio::join!(database(), database(), database());
        Self { log, east, west }
    }

    fn east(&self) -> Database {
        Database::new("east", self.east.pool.clone()).unwrap()
    }

    fn west(&self) -> Database {
        Database::new("west", self.west.pool.clone()).unwrap()
    }

    /// West for a process that can work there, and is cut off before it tells how it ended.
    async fn west_that_goes_away(&self) -> Database {
        goes_away("west", &self.west).await
    }

    /// The same of east.
    async fn east_that_goes_away(&self) -> Database {
        goes_away("east", &self.east).await
    }

    /// A process of its own.
    fn coordinator(&self) -> Coordinator {
        self.coordinator_with(&self.west())
    }

    fn coordinator_with(&self, west: &Database) -> Coordinator {
        bare(self)
            .database(&self.east())
            .unwrap()
            .database(west)
            .unwrap()
    }

    async fn units(&self) -> (i64, i64) {
        let of = |pool| number(pool, "SELECT sum(units)::bigint FROM stock");
        (of(&self.east.pool).await, of(&self.west.pool).await)
    }

    /// The names of what is prepared in either participant.
    async fn prepared(&self) -> Vec<String> {
        let names = [self.east.name(), self.west.name()];
        sqlx::query_scalar(
            "SELECT gid FROM pg_prepared_xacts WHERE database = ANY ($1) ORDER BY gid",
        )
        .bind(names)
        .fetch_all(&self.log.pool)
        .await
        .unwrap()
    }

    async fn list(&self, which: Listed) -> Vec<Record> {
        let mut db = self.log.pool.acquire().await.unwrap();
        let ledger = bare(self).ledger();
        ledger.list(&mut db, which, None, 1000).await.unwrap()
    }

    /// The one transaction that is open.
    async fn open(&self) -> Record {
        let open = self.list(Listed::Open).await;
        assert_eq!(open.len(), 1, "{open:?}");
        open.into_iter().next().unwrap()
    }

    /// The time of every lease and of every pause is over.
    async fn time_passes(&self) {
        run(
            &self.log.pool,
            "UPDATE app.twopc_transactions SET
                 next_retry_at = clock_timestamp(),
                 lease_until = clock_timestamp() - INTERVAL '1 second'",
        )
        .await;
    }

    /// Another process ends what is left, and nothing is.
    async fn recovers(&self) {
        self.time_passes().await;
        self.coordinator().recovery().drain().await.unwrap();
        assert_eq!(self.list(Listed::Open).await, []);
        assert_eq!(self.prepared().await, [""; 0]);
    }
}

async fn goes_away(name: &str, db: &TestDb) -> Database {
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .acquire_timeout(SECOND / 2)
        .connect(&db.url())
        .await
        .unwrap();
    let nowhere = (*pool.connect_options()).clone().port(1);
    pool.set_connect_options(nowhere);
    Database::new(name, pool).unwrap()
}

async fn database() -> TestDb {
    let db = TestDb::new(&[library(&schema())]).await;
    run(
        &db.pool,
        "CREATE TABLE stock (units bigint NOT NULL CHECK (units >= 0))",
    )
    .await;
    run(&db.pool, "INSERT INTO stock VALUES (100)").await;
    db
}

/// A coordinator without participants.
fn bare(world: &World) -> Coordinator {
    Coordinator::new(&schema(), world.log.pool.clone()).timeout(10 * SECOND)
}

async fn run(pool: &PgPool, sql: &str) {
    let sql = AssertSqlSafe(sql.to_owned());
    sqlx::raw_sql(sql).execute(pool).await.unwrap();
}

async fn number(pool: &PgPool, sql: &str) -> i64 {
    let sql = AssertSqlSafe(sql.to_owned());
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

async fn add(connection: &mut PgConnection, units: i64) -> sqlx::Result<()> {
    sqlx::query("UPDATE stock SET units = units + $1")
        .bind(units)
        .execute(connection)
        .await?;
    Ok(())
}

/// Moves units from east to west.
async fn transfer(
    coordinator: &Coordinator,
    world: &World,
    units: i64,
) -> Result<Committed, Error> {
    let mut tx = coordinator.begin("transfer").await?;
    add(tx.on(&world.east()).await?, -units).await.unwrap();
    add(tx.on(&world.west()).await?, units).await.unwrap();
    tx.commit().await
}

fn names(branches: &Branches) -> Vec<&str> {
    branches.keys().map(String::as_str).collect()
}

fn gid(record: &Record, participant: &str) -> String {
    let branch = record.branches.get(participant).unwrap();
    branch.gid.clone().unwrap()
}

/// A transaction that is committed, of which west has not heard.
async fn west_has_not_heard(world: &World) -> TransactionId {
    let west = world.west_that_goes_away().await;
    let coordinator = world.coordinator_with(&west);
    let committed = transfer(&coordinator, world, 30).await.unwrap();
    assert_eq!(committed.waiting_for, ["west"]);
    assert_eq!(world.units().await, (70, 100));
    assert_eq!(world.prepared().await.len(), 1);
    committed.id
}

/// Waits until what is prepared there is older than a tenth of a second.
async fn is_prepared_for_a_while(db: &TestDb) {
    let old = "SELECT count(*) FROM pg_prepared_xacts
        WHERE database = current_database() AND prepared < clock_timestamp() - INTERVAL '0.1 s'";
    eventually("it has been prepared for a while", async || {
        (number(&db.pool, old).await == 1).then_some(())
    })
    .await;
}
