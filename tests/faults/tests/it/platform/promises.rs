//! What must hold when everything has come to rest, whatever was broken before.

use std::collections::HashMap;
use std::time::Duration;

use tasuki_testkit::eventually_within;
use time::OffsetDateTime;
use uuid::Uuid;

use super::load::{Decided, repeat};
use super::{Node, Platform};

/// How long everything may take to come to rest, without a person.
const REST: Duration = Duration::from_secs(60);
/// Repetitions that are compared.
const REPEATED: usize = 40;

impl Platform {
    /// Everything converges, and every promise holds for every request that was decided.
    pub(crate) async fn keeps_its_promises(&self, decided: &[Decided], nodes: &[Node]) {
        assert!(
            decided.len() > 50,
            "only {} requests were decided",
            decided.len()
        );
        self.comes_to_rest().await;
        self.every_change_has_its_event_and_its_notification(decided)
            .await;
        self.versions_have_no_gap().await;
        let address = nodes.iter().find_map(|node| node.api).unwrap();
        for decided in decided.iter().rev().take(REPEATED) {
            let again = repeat(address, &self.key, decided).await;
            assert_eq!(
                again,
                (decided.status, decided.text.clone()),
                "{}",
                decided.key
            );
        }
    }

    async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }

    async fn comes_to_rest(&self) {
        eventually_within(REST, "every event is published and told", async || {
            let waiting = self.count(
                "SELECT (SELECT count(*) FROM entitlement.outbox_events)
                     + (SELECT count(*) FROM notification.notifications_live)
                     + (SELECT count(*) FROM entitlement.entitlement_audit)
                     - (SELECT count(*) FROM notification.processed_events)",
            );
            (waiting.await == 0).then_some(())
        })
        .await;
    }

    async fn every_change_has_its_event_and_its_notification(&self, decided: &[Decided]) {
        let answered = tasuki_entitlement::verify::Ledger::new(self.pool.clone());
        let told = tasuki_notification::verify::Ledger::new(self.pool.clone());
        let now = tasuki::Clock::system().now() + Duration::from_secs(3600);
        let changes = answered
            .changes(OffsetDateTime::UNIX_EPOCH, now)
            .await
            .unwrap();
        let granted = decided.iter().filter(|it| it.status == 200).count();
        assert_eq!(changes.len(), granted, "as many changes as answers");
        let ids = changes.iter().map(|it| (it.event_id, it.user_id.clone()));
        let ids: Vec<(Uuid, String)> = ids.collect();
        let told: HashMap<Uuid, _> = told
            .told(&ids)
            .await
            .unwrap()
            .into_iter()
            .map(|told| (told.event_id, told))
            .collect();
        for change in &changes {
            assert_eq!(change.events, 1, "{change:?}");
            let told = told.get(&change.event_id).unwrap();
            assert_eq!(
                (told.processed, told.sent, told.most_each),
                (1, 1, 1),
                "{told:?}"
            );
            assert_eq!((told.failed, told.letters), (0, 0), "{told:?}");
        }
        let keyed = "SELECT count(DISTINCT request_id) FROM entitlement.entitlement_audit";
        assert_eq!(self.count(keyed).await, i64::try_from(granted).unwrap());
        for table in ["entitlement.dead_letters", "notification.dead_letters"] {
            let sql = format!("SELECT count(*) FROM {table}");
            let dead: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                .fetch_one(&self.pool)
                .await
                .unwrap();
            assert_eq!(dead, 0, "{table}");
        }
        assert_eq!(
            self.count("SELECT count(*) FROM notification.notification_nats_dlq")
                .await,
            0
        );
    }

    async fn versions_have_no_gap(&self) {
        let answered = tasuki_entitlement::verify::Ledger::new(self.pool.clone());
        let torn = answered.torn(OffsetDateTime::UNIX_EPOCH, 10).await.unwrap();
        assert_eq!(torn, []);
    }
}
