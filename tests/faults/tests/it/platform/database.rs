//! The database killed, paused, cut off, full, and without a free connection.

use std::time::Duration;

use sqlx::{Postgres, Transaction};
use tasuki_testkit::eventually_within;

use super::processes::answered_more;
use super::{LEASE, Platform};
use crate::site::stretched;

/// PostgreSQL says that its disk is full, whatever is written to the audit.
const FULL: &str = "
    CREATE FUNCTION entitlement.full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
    END $$;
    CREATE TRIGGER full_disk BEFORE INSERT ON entitlement.entitlement_audit
        FOR EACH STATEMENT EXECUTE FUNCTION entitlement.full_disk()";
const ROOM: &str = "
    DROP TRIGGER full_disk ON entitlement.entitlement_audit;
    DROP FUNCTION entitlement.full_disk()";

/// Nothing can be written to the audit for a while.
pub(super) async fn fill_the_disk(platform: &Platform) {
    sqlx::raw_sql(FULL).execute(&platform.pool).await.unwrap();
    // sleep: callers have to run into it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    sqlx::raw_sql(ROOM).execute(&platform.pool).await.unwrap();
}

/// So many callers have to be sent away before there are connections again.
const SENT_AWAY: u64 = 10;

/// Until this ends, whoever changes something keeps their connection.
pub(super) async fn hold(platform: &Platform) -> Transaction<'static, Postgres> {
    let mut held = platform.pool.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE entitlement.entitlement_audit IN EXCLUSIVE MODE")
        .execute(&mut *held)
        .await
        .unwrap();
    held
}

#[tokio::test]
async fn a_database_that_dies_pauses_or_is_cut_off_loses_nothing_that_was_answered() {
    let platform = Platform::start("database").await;
    let nodes = platform.pairs().await;
    let calling = platform.callers(&nodes).call();
    for _ in 0..stretched(1, 8) {
        answered_more(&calling, 30).await;
        platform.stack.postgres.kill().await.unwrap();
        platform.stack.postgres.start().await.unwrap();
        answered_more(&calling, 30).await;
        platform.stack.postgres.pause().await.unwrap();
        // sleep: it has to be away for longer than a lease.
        tokio::time::sleep(LEASE + LEASE / 2).await;
        platform.stack.postgres.resume().await.unwrap();
        for _ in 0..5 {
            answered_more(&calling, 10).await;
            platform.proxy.reset().await.unwrap();
        }
        platform.proxy.refuse().await.unwrap();
        platform.proxy.reset().await.unwrap();
        // sleep: it has to stay away for a while.
        tokio::time::sleep(stretched(Duration::from_secs(3), Duration::from_secs(60))).await;
        platform.proxy.heal().await.unwrap();
        answered_more(&calling, 30).await;
    }
    let decided = calling.stop().await;
    platform.keeps_its_promises(&decided, &nodes).await;
}

#[tokio::test]
async fn a_full_disk_is_told_as_unavailable_and_goes_on_when_there_is_room() {
    let platform = Platform::start("full").await;
    let nodes = platform.pairs().await;
    let calling = platform.callers(&nodes).call();
    for _ in 0..stretched(1, 10) {
        answered_more(&calling, 30).await;
        fill_the_disk(&platform).await;
    }
    answered_more(&calling, 30).await;
    let decided = calling.stop().await;
    platform.keeps_its_promises(&decided, &nodes).await;
}

#[tokio::test]
async fn more_callers_than_connections_are_told_to_come_back_and_all_are_served() {
    let platform = Platform::with(
        "exhausted",
        &[
            ("TASUKI_DATABASE__MAX_CONNECTIONS", "1"),
            ("TASUKI_DATABASE__WORKER_CONNECTIONS", "2"),
            ("TASUKI_DATABASE__ACQUIRE_TIMEOUT", "300ms"),
            ("TASUKI_ENTITLEMENT__COMMANDS__CONCURRENCY", "4"),
        ],
    )
    .await;
    let nodes = platform.pairs().await;
    let calling = platform.callers(&nodes).call();
    for _ in 0..stretched(1, 10) {
        answered_more(&calling, 100).await;
        // Whoever has the only connection gets no further, and nobody else gets one.
        let held = hold(&platform).await;
        let before = calling.sent_away();
        eventually_within(
            Duration::from_secs(30),
            "callers are sent away",
            async || (calling.sent_away() >= before + SENT_AWAY).then_some(()),
        )
        .await;
        held.rollback().await.unwrap();
        answered_more(&calling, 100).await;
    }
    let decided = calling.stop().await;
    platform.keeps_its_promises(&decided, &nodes).await;
}
