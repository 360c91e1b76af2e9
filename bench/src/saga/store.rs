//! What the steps of a saga write in this scenario, and what is asked about sagas.

use anyhow::Context as _;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tasuki::{Schema, saga::SagaId};

/// A row for every local step that was committed. Nothing keeps a second one away: it is counted.
const MAKE_EFFECTS: &str = "
CREATE TABLE {schema}.effects (
    saga_id uuid NOT NULL,
    step integer NOT NULL,
    worker integer NOT NULL
)";

const ADD_EFFECT: &str = "INSERT INTO {schema}.effects (saga_id, step, worker) VALUES ($1, $2, $3)";

const EFFECTS: &str = "SELECT count(*) FROM {schema}.effects";

const EFFECTS_OF: &str = "SELECT count(*) FROM {schema}.effects WHERE worker = $1";

const TAKEN_OVER: &str = "SELECT count(DISTINCT saga_id) FROM {schema}.effects WHERE worker = $1";

const RERUNS: &str = "SELECT count(*) - count(DISTINCT (saga_id, step)) FROM {schema}.effects";

const LIVE: &str = "SELECT count(*) FROM {schema}.sagas";

const ENDED: &str = "SELECT count(*) FROM {schema}.sagas_done WHERE state = 'COMPLETED'";

const OWNERS: &str = "SELECT count(*) FROM {schema}.lease_owners";

/// Makes the table of effects.
pub(super) async fn make_effects(url: &str, schema: &Schema) -> sqlx::Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::query(rendered(schema, MAKE_EFFECTS))
        .execute(&mut connection)
        .await?;
    connection.close().await
}

/// The statement that a step runs.
pub(super) fn add_effect(schema: &Schema) -> String {
    schema.render(ADD_EFFECT)
}

/// Runs it: the step `step` of `saga` was done by `worker`.
pub(super) async fn say(
    connection: &mut PgConnection,
    add_effect: &str,
    (saga, step, worker): (SagaId, i32, i32),
) -> sqlx::Result<()> {
    // Safe: rendered by `add_effect`.
    sqlx::query(AssertSqlSafe(add_effect))
        .bind(saga.as_uuid())
        .bind(step)
        .bind(worker)
        .execute(connection)
        .await?;
    Ok(())
}

/// A connection that looks at what workers do.
#[derive(Debug)]
pub(super) struct Watch {
    connection: PgConnection,
    schema: Schema,
}

impl Watch {
    pub(super) async fn open(url: &str, schema: &Schema) -> sqlx::Result<Self> {
        Ok(Self {
            connection: PgConnection::connect(url).await?,
            schema: schema.clone(),
        })
    }

    /// Local steps that were committed.
    pub(super) async fn effects(&mut self) -> anyhow::Result<u32> {
        self.count(EFFECTS, None).await
    }

    /// Those that this worker has committed.
    pub(super) async fn effects_of(&mut self, worker: u32) -> anyhow::Result<u32> {
        self.count(EFFECTS_OF, Some(worker)).await
    }

    /// Sagas of which this worker has committed a step.
    pub(super) async fn taken_over(&mut self, worker: u32) -> anyhow::Result<u32> {
        self.count(TAKEN_OVER, Some(worker)).await
    }

    /// Steps that were committed once more, each time.
    pub(super) async fn reruns(&mut self) -> anyhow::Result<u32> {
        self.count(RERUNS, None).await
    }

    /// Sagas that have not ended.
    pub(super) async fn live(&mut self) -> anyhow::Result<u32> {
        self.count(LIVE, None).await
    }

    /// Sagas that have ended well.
    pub(super) async fn ended(&mut self) -> anyhow::Result<u32> {
        self.count(ENDED, None).await
    }

    /// Processes that are known to live, or not to be dead.
    pub(super) async fn owners(&mut self) -> anyhow::Result<u32> {
        self.count(OWNERS, None).await
    }

    async fn count(&mut self, statement: &str, worker: Option<u32>) -> anyhow::Result<u32> {
        let query = sqlx::query_scalar(rendered(&self.schema, statement));
        let query = match worker {
            Some(worker) => query.bind(i64::from(worker)),
            None => query,
        };
        let count: i64 = query.fetch_one(&mut self.connection).await?;
        u32::try_from(count).context("more rows than can be")
    }
}

/// Safe: a `Schema` is a plain identifier, and the rest is a constant of this file.
fn rendered(schema: &Schema, statement: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(schema.render(statement))
}
