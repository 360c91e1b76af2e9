//! What must hold when everything has come to rest, whatever was broken before.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tasuki_testkit::eventually_within;
use time::OffsetDateTime;
use uuid::Uuid;

use super::load::Decided;
use super::{MAX_ATTEMPTS, Node, Platform, UNREACHABLE};
use crate::site::stretched;

/// How long everything may take to come to rest, without a person.
pub(super) const REST: Duration = Duration::from_secs(60);
/// Requests that are asked again at the most, spread evenly over all that were decided, when there is
/// little time; otherwise all are.
const REPEATED: usize = 1000;
/// How many of them at a time.
const AT_ONCE: usize = 8;

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
        self.inboxes_have_no_gap().await;
        let mut serving = nodes.iter().filter(|node| node.service == "entitlement");
        let address = serving.find_map(|node| node.api).unwrap();
        self.answers_again(address, decided).await;
    }

    /// Under its key a request gets the answer that it got, and another request a refusal.
    async fn answers_again(&self, address: SocketAddr, decided: &[Decided]) {
        let every = stretched(decided.len().div_ceil(REPEATED), 1);
        let client = reqwest::Client::new();
        let asked = stream::iter(decided.iter().step_by(every));
        let asked = asked.map(|decided| self.answers_one_again(&client, address, decided));
        asked.buffer_unordered(AT_ONCE).collect::<()>().await;
    }

    async fn answers_one_again(
        &self,
        client: &reqwest::Client,
        address: SocketAddr,
        decided: &Decided,
    ) {
        let Decided {
            key, status, text, ..
        } = decided;
        let ask = async |body: &Value| {
            let what = format!("{key} is answered again");
            eventually_within(REST, &what, async || {
                let request = client
                    .post(format!("http://{address}{}", decided.path))
                    .bearer_auth(&self.key)
                    .header("Idempotency-Key", key)
                    .json(body);
                let response = request.send().await.ok()?;
                // Says to come back: a pool of one connection is easily exhausted.
                let is_busy = response.headers().contains_key("retry-after");
                let status = response.status().as_u16();
                let text = response.text().await.ok()?;
                (!is_busy).then_some((status, text))
            })
            .await
        };
        let again = ask(&decided.body).await;
        assert_eq!(again, (*status, text.clone()), "{key}");
        let mut other = decided.body.clone();
        let fields = other.as_object_mut().unwrap();
        fields.insert("purchase_id".to_owned(), json!("another"));
        let (status, text) = ask(&other).await;
        let is_refused = status == 409 && text.contains("IDEMPOTENCY_KEY_CONFLICT");
        assert!(is_refused, "{key}: {status} {text}");
    }

    async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }

    async fn comes_to_rest(&self) {
        eventually_within(REST, "every event is published and told", async || {
            let waiting = self.count(
                "SELECT (SELECT count(*) FROM entitlement.outbox_events)
                     + (SELECT count(*) FROM notification.notifications_live
                        WHERE status <> 'FAILED')
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
        let ids: Vec<Uuid> = changes.iter().map(|it| it.event_id).collect();
        let told: HashMap<Uuid, _> = told
            .told(&ids)
            .await
            .unwrap()
            .into_iter()
            .map(|told| (told.event_id, told))
            .collect();
        let mut dead = 0;
        for change in &changes {
            assert_eq!(change.events, 1, "{change:?}");
            let told = told.get(&change.event_id).unwrap();
            assert_eq!(
                (told.processed, told.made, told.most_each),
                (1, Some(1), 1),
                "{told:?}"
            );
            let is_dead = change.user_id.starts_with(UNREACHABLE);
            let wanted = if is_dead { (0, 1, 1) } else { (1, 0, 0) };
            assert_eq!((told.sent, told.failed, told.letters), wanted, "{told:?}");
            dead += i64::from(is_dead);
        }
        let keyed = "SELECT count(DISTINCT request_id) FROM entitlement.entitlement_audit";
        assert_eq!(self.count(keyed).await, i64::try_from(granted).unwrap());
        self.nothing_else_is_dead(dead).await;
    }

    /// Only what can't be delivered, each with one letter and after as many attempts as there are.
    async fn nothing_else_is_dead(&self, dead: i64) {
        let attempts = "SELECT sum(attempt_count) FROM notification.notifications_live";
        let attempts: Option<i64> = sqlx::query_scalar(attempts)
            .fetch_one(&self.pool)
            .await
            .unwrap();
        assert_eq!(attempts.unwrap_or(0), dead * MAX_ATTEMPTS);
        for (sql, wanted) in [
            ("SELECT count(*) FROM entitlement.dead_letters", 0),
            ("SELECT count(*) FROM notification.dead_letters", dead),
        ] {
            assert_eq!(self.count(sql).await, wanted, "{sql}");
        }
        assert_eq!(
            self.count("SELECT count(*) FROM notification.notification_nats_dlq")
                .await,
            0
        );
    }

    async fn inboxes_have_no_gap(&self) {
        let torn = self.count(
            "SELECT count(*)
             FROM (
                 SELECT
                     inbox.last_seq, count(*) AS told, count(DISTINCT sent.inbox_seq) AS numbers,
                     min(sent.inbox_seq) AS least, max(sent.inbox_seq) AS most
                 FROM notification.inboxes AS inbox
                 INNER JOIN notification.notifications_sent AS sent
                     ON sent.user_id = inbox.user_id AND sent.channel = 'in-app'
                 GROUP BY inbox.user_id
             ) AS inbox
             WHERE (told, numbers, least, most) <> (last_seq, last_seq, 1, last_seq)",
        );
        assert_eq!(torn.await, 0, "an inbox has a gap or a repeat");
    }

    async fn versions_have_no_gap(&self) {
        let answered = tasuki_entitlement::verify::Ledger::new(self.pool.clone());
        let torn = answered.torn(OffsetDateTime::UNIX_EPOCH, 10).await.unwrap();
        assert_eq!(torn, []);
    }
}
