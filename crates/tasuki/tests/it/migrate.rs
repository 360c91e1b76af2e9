//! Migrations into a schema that the user names.

use sqlx::PgConnection;
use tasuki::Schema;
use tasuki::migrate::{Error, Plan, Step};
use tasuki_testkit::TestDb;

const FIRST: Step = Step {
    version: 1,
    description: "things",
    sql: "CREATE TABLE {schema}.things (id int PRIMARY KEY);",
};
const SECOND: Step = Step {
    version: 2,
    description: "names",
    sql: "ALTER TABLE {schema}.things ADD COLUMN name text;",
};
const BROKEN: Step = Step {
    version: 2,
    description: "broken",
    sql: "CREATE TABLE {schema}.more (id int); SELECT 1 / 0;",
};

fn plan(schema: &str, steps: &[Step]) -> Plan {
    Plan::rendered("test", &Schema::new(schema).unwrap(), steps)
}

async fn connect(db: &TestDb) -> PgConnection {
    db.pool.acquire().await.unwrap().detach()
}

async fn columns(db: &TestDb, schema: &str) -> Vec<String> {
    sqlx::query_scalar(
        "SELECT table_name || '.' || column_name FROM information_schema.columns
         WHERE table_schema = $1 AND table_name NOT LIKE '\\_%' ORDER BY 1",
    )
    .bind(schema)
    .fetch_all(&db.pool)
    .await
    .unwrap()
}

#[tokio::test]
async fn a_plan_makes_its_tables_in_any_schema_and_running_it_again_changes_nothing() {
    let db = TestDb::new(&[]).await;
    for schema in ["app", "other"] {
        let plan = plan(schema, &[FIRST, SECOND]);
        let before = plan.progress(&db.pool).await.unwrap();
        assert_eq!((before.applied, before.pending), (0, 2));

        plan.run(&mut connect(&db).await).await.unwrap();
        plan.run(&mut connect(&db).await).await.unwrap();

        let after = plan.progress(&db.pool).await.unwrap();
        assert_eq!((after.applied, after.needed, after.pending), (2, 2, 0));
        assert_eq!(columns(&db, schema).await, ["things.id", "things.name"]);
    }
}

#[tokio::test]
async fn many_processes_may_migrate_at_once() {
    let db = TestDb::new(&[]).await;
    let runs = (0..8).map(|_| async {
        plan("app", &[FIRST, SECOND])
            .run(&mut connect(&db).await)
            .await
            .unwrap();
    });
    futures_util::future::join_all(runs).await;
    assert_eq!(columns(&db, "app").await, ["things.id", "things.name"]);
}

#[tokio::test]
async fn waiting_for_another_process_is_not_limited_by_the_lock_timeout() {
    let db = TestDb::new(&[]).await;
    let slow = Step {
        version: 1,
        description: "slow",
        sql: "CREATE TABLE {schema}.things (id int); SELECT pg_sleep(0.5);",
    };
    let runs = (0..3).map(|_| async {
        let mut connection = connect(&db).await;
        sqlx::query("SET lock_timeout = '100ms'")
            .execute(&mut connection)
            .await
            .unwrap();
        plan("app", &[slow]).run(&mut connection).await.unwrap();
        let limit: String = sqlx::query_scalar("SELECT current_setting('lock_timeout')")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(limit, "100ms");
    });
    futures_util::future::join_all(runs).await;
    assert_eq!(columns(&db, "app").await, ["things.id"]);
}

#[tokio::test]
async fn the_previous_release_accepts_a_database_that_is_newer() {
    let db = TestDb::new(&[]).await;
    plan("app", &[FIRST, SECOND])
        .run(&mut connect(&db).await)
        .await
        .unwrap();

    let previous = plan("app", &[FIRST]);
    previous.run(&mut connect(&db).await).await.unwrap();

    let progress = previous.progress(&db.pool).await.unwrap();
    assert_eq!(
        (progress.applied, progress.needed, progress.pending),
        (2, 1, 0)
    );
}

#[tokio::test]
async fn a_migration_that_fails_leaves_nothing_behind_and_can_be_mended() {
    let db = TestDb::new(&[]).await;
    let error = plan("app", &[FIRST, BROKEN])
        .run(&mut connect(&db).await)
        .await;
    assert!(matches!(error, Err(Error::Run { .. })), "{error:?}");
    assert_eq!(columns(&db, "app").await, ["things.id"]);

    plan("app", &[FIRST, SECOND])
        .run(&mut connect(&db).await)
        .await
        .unwrap();
    assert_eq!(columns(&db, "app").await, ["things.id", "things.name"]);
}

#[tokio::test]
async fn an_index_whose_building_was_cut_short_is_built_again() {
    let db = TestDb::new(&[]).await;
    let index = Step {
        version: 2,
        description: "index",
        sql: "-- no-transaction\nCREATE INDEX CONCURRENTLY things_idx ON {schema}.things (id);",
    };
    plan("app", &[FIRST])
        .run(&mut connect(&db).await)
        .await
        .unwrap();
    // Somebody else looks at an older state of the database, and building waits for them.
    let mut looker = db.pool.begin().await.unwrap();
    for statement in [
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "SELECT count(*) FROM app.things",
    ] {
        sqlx::query(statement).execute(&mut *looker).await.unwrap();
    }
    let mut hurried = connect(&db).await;
    sqlx::query("SET lock_timeout = '100ms'")
        .execute(&mut hurried)
        .await
        .unwrap();
    let error = plan("app", &[FIRST, index]).run(&mut hurried).await;
    assert!(matches!(error, Err(Error::Run { .. })), "{error:?}");

    looker.rollback().await.unwrap();
    plan("app", &[FIRST, index])
        .run(&mut hurried)
        .await
        .unwrap();
    let valid: bool = sqlx::query_scalar(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = 'app.things_idx'::regclass",
    )
    .fetch_one(&db.pool)
    .await
    .unwrap();
    assert!(valid);
}

#[tokio::test]
async fn a_migration_that_was_changed_after_it_ran_is_refused() {
    let db = TestDb::new(&[]).await;
    plan("app", &[FIRST])
        .run(&mut connect(&db).await)
        .await
        .unwrap();
    let changed = Step {
        sql: "CREATE TABLE {schema}.things (id bigint PRIMARY KEY);",
        ..FIRST
    };
    let error = plan("app", &[changed]).run(&mut connect(&db).await).await;
    assert!(matches!(error, Err(Error::Run { .. })), "{error:?}");
}
