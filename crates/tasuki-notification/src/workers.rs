//! What notification does in the background: take in, set aside, sweep, deliver, keep tables
//! small.

use std::sync::Arc;
use std::time::Duration;

use tasuki::admin::Gauges;
use tasuki::bus::{Consumer, ConsumerSpec, NatsBus};
use tasuki::dlq::Letters;
use tasuki::inbox::Inbox;
use tasuki::lease::{Leases, Owner, Route, Runner, Settings, Unit, Watermark};
use tasuki::retry::Backoff;
use tasuki::upkeep::{self, Expiring, Partitioned, Upkeep};
use tasuki::worker::{Bell, Listener, Ringer, Worker};
use tasuki::{Clock, Schema};
use tasuki_service::Service;
use tasuki_service::service::Tables;
use tasuki_service::telemetry::trace;
use tokio::sync::Mutex;

use crate::advisories::Advisories;
use crate::config::{Notification, Source};
use crate::delivery::{Inside, Outside};
use crate::events::Reader;
use crate::intake::Intake;
use crate::live::{Followed, Heads};
use crate::retention::Retention;
use crate::store::delivery;
use crate::store::webhooks::owed;
use crate::store::webhooks::trouble::Limits;
use crate::sweep::Sweep;
use crate::watch::Watch;
use crate::webhook::send::Sender;
use crate::{NAME, broker};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// For how long an endpoint in trouble is left alone the first time, and at the most.
const HOLD: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5 * 60));
/// Batches of deliveries in flight at a time.
const IN_FLIGHT: usize = 2;
/// How often upkeep looks at the clock, at the least.
const UPKEEP: Duration = Duration::from_secs(60);

/// Everything that workers share.
pub(crate) struct Shop<'a> {
    pub(crate) own: &'a Notification,
    pub(crate) tables: &'a Tables,
    pub(crate) bus: &'a Arc<NatsBus>,
    pub(crate) sender: &'a Sender,
    pub(crate) followed: &'a Followed,
    pub(crate) deliveries: &'a Bell,
    pub(crate) inboxes: &'a Bell,
    pub(crate) clock: &'a Clock,
    pub(crate) replicas: usize,
}

impl Shop<'_> {
    /// Adds all of them to `service`.
    pub(crate) fn staff(&self, mut service: Service) -> Result<Service, upkeep::Error> {
        let intakes = broker::intakes(self.own, self.tables, self.clock, self.deliveries);
        for (source, intake) in intakes {
            if source.enabled {
                service = self.consume(service, source, intake);
            }
        }
        if self.own.delivery.enabled {
            service = self.deliver(service);
        }
        let pool = self.tables.database.workers.clone();
        service = service
            .worker(self.upkeep()?)
            .worker(Retention::new(pool.clone(), &self.own.retention))
            .worker(Watch { pool: pool.clone() });
        let letters = letters(&self.tables.schema);
        let name = format!("{NAME}.gauges");
        let gauges = Gauges::new(
            &name,
            pool,
            &self.tables.schema,
            &letters,
            self.clock.clone(),
        );
        Ok(self.tell(service.worker(gauges)))
    }

    /// Reads one stream, and what the broker says of it.
    fn consume(&self, mut service: Service, source: &Source, intake: Intake) -> Service {
        let pool = self.tables.database.workers.clone();
        let spec = source.spec(self.replicas);
        let name = |what: &str| format!("{NAME}.{}-{what}", source.durable);
        let read = intake.read;
        let consumer = Consumer::new(
            name("intake"),
            self.bus.as_ref().clone(),
            spec.clone(),
            intake,
        )
        .with_max_batch(source.batch_size)
        .with_backoff(backoff())
        .linking_traces(trace::link)
        .remembering(pool.clone(), &self.tables.schema);
        service = service.worker(consumer);
        for (kind, spec) in ["given-up", "refused"]
            .iter()
            .zip(source.advisories(self.replicas))
        {
            service = service.worker(self.keep_advisories(name(kind), spec, read));
        }
        service.worker(Sweep {
            name: name("sweep"),
            spec,
            bus: Arc::clone(self.bus),
            pool,
            inbox: Inbox::new(&self.tables.schema),
            read,
            every: self.own.sweep.interval,
            before: Mutex::new(None),
        })
    }

    fn keep_advisories(
        &self,
        name: String,
        spec: ConsumerSpec,
        read: Reader,
    ) -> impl Worker + use<> {
        let handler = Advisories {
            pool: self.tables.database.workers.clone(),
            bus: Arc::clone(self.bus),
            inbox: Inbox::new(&self.tables.schema),
            read,
        };
        Consumer::new(name, self.bus.as_ref().clone(), spec, handler)
    }

    fn deliver(&self, service: Service) -> Service {
        let schema = &self.tables.schema;
        let policy = self.own.delivery.leased.policy();
        let injection = self.own.delivery.failure_injection.clone();
        let inside = Inside {
            leases: Leases::new(schema, &delivery::INSIDE),
            watermark: Watermark::new(1),
            policy,
            injection: injection.clone(),
            clock: self.clock.clone(),
            inboxes: self.inboxes.clone(),
        };
        let webhook = &self.own.webhook;
        let outside = Outside {
            leases: Leases::new(schema, &owed::OWED),
            policy: webhook.policy(),
            injection,
            pool: self.tables.database.workers.clone(),
            sender: self.sender.clone(),
            places: webhook.endpoint_concurrency,
            keep: webhook.keep_for_closed,
            limits: Limits {
                failures: i32::try_from(webhook.circuit_failures).unwrap_or(i32::MAX),
                first_hold: HOLD.0,
                longest_hold: HOLD.1,
                disable_after: webhook.disable_after,
            },
            round: std::sync::Mutex::default(),
            deliveries: self.deliveries.clone(),
            clock: self.clock.clone(),
        };
        let inside = Runner::new(inside, self.lease(Unit::Batch, IN_FLIGHT));
        let outside = Runner::new(outside, self.lease(Unit::Row, webhook.concurrency));
        self.deliveries.wakes(&inside.wake());
        self.deliveries.wakes(&outside.wake());
        service.worker(inside).worker(outside)
    }

    fn lease(&self, unit: Unit, slots: usize) -> Settings {
        let leased = &self.own.delivery.leased;
        Settings {
            pool: self.tables.database.workers.clone(),
            route: Route::Direct,
            owner: Owner::here(),
            unit,
            slots,
            batch: leased.batch_size,
            lease: leased.lease,
            poll: leased.poll_interval,
        }
    }

    /// What tells other processes that there is something to deliver or to see, and hears it.
    fn tell(&self, service: Service) -> Service {
        let pool = self.tables.database.workers.clone();
        let (deliveries, inboxes) = ("notification.deliveries", "notification.inboxes");
        let ringer =
            |name: &str, channel: &str, bell: &Bell| Ringer::new(name, pool.clone(), channel, bell);
        let heads = Heads {
            followed: self.followed.clone(),
            pool: self.tables.database.requests.clone(),
            wake: tasuki::worker::Wake::default(),
        };
        self.inboxes.wakes(&heads.wake);
        let ears = Listener::new("notification.listener", pool.clone())
            .rings(deliveries, self.deliveries)
            .rings(inboxes, self.inboxes);
        let rings = [
            ringer(
                "notification.deliveries-ringer",
                deliveries,
                self.deliveries,
            ),
            ringer("notification.inboxes-ringer", inboxes, self.inboxes),
        ];
        // Whoever serves requests has followers to tell, and replays to ring for; whoever delivers
        // has followers elsewhere, and is rung for from there.
        service
            .serving(move |supervisor| {
                supervisor.start(heads);
            })
            .everywhere(move |supervisor| {
                supervisor.start(ears);
                for ringer in rings {
                    supervisor.start(ringer);
                }
            })
    }

    fn upkeep(&self) -> Result<Upkeep, upkeep::Error> {
        let retention = &self.own.retention;
        let keep = DAY * u32::from(retention.retention_days);
        let pool = self.tables.database.workers.clone();
        // Whoever closed an entry may still be asked about it; by then its message has left the stream.
        let aside = Expiring::new("notification_nats_dlq", "created_at").keep(keep);
        let aside = aside.only(
            "(redriven_at IS NOT NULL OR discarded_at IS NOT NULL)
             AND GREATEST(redriven_at, discarded_at) < $1",
        );
        Ok(Upkeep::new(pool, &self.tables.schema)
            .expiring(aside)?
            .partitioned(
                Partitioned::by_uuid_v7("processed_events", "event_id", "processed_at").keep(keep),
            )?
            .partitioned(Partitioned::by_time("notifications_sent", "created_at").keep(keep))?
            .partitioned(Partitioned::by_time("webhook_attempts", "attempted_at").keep(keep))?
            .poll_every(UPKEEP.min(retention.cleanup_interval))
            // Partitions are made whatever is kept: without them everything piles up in one.
            .clean_every(retention.enabled.then_some(retention.cleanup_interval)))
    }
}

/// The dead letters of notification.
pub(crate) fn letters(schema: &Schema) -> Letters {
    Letters::new(schema, &[delivery::INSIDE])
}

/// So many deliveries at least.
pub(crate) const DELIVERIES: u32 = 10;

/// The delays between deliveries of a message that fails: [ten](DELIVERIES) of them span more than an
/// hour.
pub(crate) fn backoff() -> Backoff {
    let quarter = Duration::from_secs(15 * 60);
    Backoff::exponential(Duration::from_secs(1), quarter)
        .factor(4.0)
        .jitter(1.0, 1.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_deliveries_of_a_failing_message_span_more_than_an_hour() {
        let least: Duration = (1..DELIVERIES)
            .map(|delivery| backoff().delay(delivery, 0.0))
            .sum();
        assert!(least >= Duration::from_secs(3600), "{least:?}");
    }
}
