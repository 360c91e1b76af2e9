//! The library's own tables, for any schema.

use sqlx::PgPool;

use super::{Error, Plan, Step};
use crate::Schema;

macro_rules! steps {
    ($($version:literal $description:literal $file:literal;)*) => {
        &[$(Step {
            version: $version,
            description: $description,
            sql: include_str!(concat!("../../migrations/", $file)),
        }),*]
    };
}

const STEPS: &[Step] = steps! {
    1 "dead letters" "0001_dead_letters.sql";
    2 "outbox" "0002_outbox.sql";
    3 "jobs" "0003_jobs.sql";
    4 "inbox" "0004_inbox.sql";
    5 "idempotency keys" "0005_idempotency_keys.sql";
    6 "room for claims" "0006_room_for_claims.sql";
    7 "consumer places" "0007_consumer_places.sql";
    8 "stories" "0008_stories.sql";
    9 "chains of published events" "0009_chains_of_published_events.sql";
    10 "barriers" "0010_barriers.sql";
    11 "twopc" "0011_twopc.sql";
    12 "sagas" "0012_sagas.sql";
    13 "seqlog" "0013_seqlog.sql";
    14 "saga definitions" "0014_saga_definitions.sql";
    15 "effects of events" "0015_effects_of_events.sql";
    16 "what sequencers have seen" "0016_what_sequencers_have_seen.sql";
    17 "how young a partition is" "0017_how_young_a_partition_is.sql";
};

/// The plan of the library's own tables in `schema`.
#[must_use]
pub fn library(schema: &Schema) -> Plan {
    Plan::rendered("tasuki", schema, STEPS)
}

/// Installs the library's tables in `schema`, or brings them up to date. Safe from many
/// processes at once; the pool must reach PostgreSQL directly.
///
/// # Errors
/// When `schema` is not a schema name, no connection can be had, a migration fails, or one that was applied has changed.
pub async fn install(pool: &PgPool, schema: &str) -> Result<(), Error> {
    let plan = library(&Schema::new(schema)?);
    let connection = pool.acquire().await.map_err(|source| Error::Read {
        plan: plan.name().to_owned(),
        source,
    })?;
    // Its own connection: what a migration sets for its session must not reach the pool.
    plan.run(&mut connection.detach()).await
}
