//! What the shop does in the background: run sagas, react, run errands, publish, put back what
//! nobody came for, end transfers that were left behind, compare money with goods.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tasuki::admin::Gauges;
use tasuki::bus::{Consumer, ConsumerSpec, NatsBus, StreamSpec};
use tasuki::choreography::Reactor;
use tasuki::dlq::Letters;
use tasuki::jobs::Queue;
use tasuki::outbox::{self, Reconciler, RelaySettings, Routes};
use tasuki::saga::{Engine, Sagas};
use tasuki::twopc::Coordinator;
use tasuki::upkeep::{self, Partitioned, Upkeep};
use tasuki::worker::{Error, Listener, Tick, Worker};
use tasuki::{Clock, begin, jobs};
use tasuki_service::Service;
use tasuki_service::service::Tables;
use tasuki_service::telemetry::trace;

use crate::choreographed::{Dancer, Part};
use crate::config::Shop;
use crate::parts::Parts;
use crate::{NAME, errands, inventory, verify};

/// What does not match, by check. Alert on any.
const MISMATCHES: &str = "tasuki_shop_mismatches";
/// Orders that are neither completed nor undone.
const UNFINISHED: &str = "tasuki_shop_unfinished_orders";

/// Reservations that are ended in one transaction.
const AT_ONCE: i64 = 100;
/// How soon after its end a reservation is put back, at the latest.
const EXPIRY_POLL: Duration = Duration::from_millis(500);
/// Jobs that run side by side: they wait for others most of the time.
const ERRANDS: usize = 32;

/// Everything that workers share.
pub(crate) struct Staff<'a> {
    pub(crate) own: &'a Shop,
    pub(crate) tables: &'a Tables,
    pub(crate) parts: &'a Parts,
    pub(crate) sagas: &'a Sagas,
    pub(crate) engine: &'a Engine,
    pub(crate) coordinator: Option<&'a Coordinator>,
    pub(crate) bus: &'a Arc<NatsBus>,
    pub(crate) stream: StreamSpec,
    pub(crate) clock: &'a Clock,
}

/// Why workers could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StaffError {
    #[error(transparent)]
    Upkeep(#[from] upkeep::Error),
    #[error(transparent)]
    Jobs(#[from] jobs::Error),
}

impl Staff<'_> {
    /// Adds all of them to `service`.
    pub(crate) fn add(&self, service: Service) -> Result<Service, StaffError> {
        let pool = self.tables.database.workers.clone();
        let mut service = self.publish(service);
        for part in Part::ALL {
            service = service.worker(self.hear(part));
        }
        let queue = Queue::new(errands::QUEUE).concurrency(ERRANDS);
        let registry = errands::registry(self.parts);
        let queue = queue.lease(self.own.outbox.leased.lease);
        service = service.worker(queue.worker(&self.parts.jobs, &pool, &registry)?);
        if let Some(coordinator) = self.coordinator {
            service = service
                .worker(coordinator.recovery())
                .worker(coordinator.sweep());
        }
        let engine = self.engine.clone();
        service = service.background(move |supervisor| engine.start(supervisor));
        let letters = Letters::new(&self.tables.schema, &[]);
        let name = format!("{NAME}.gauges");
        let schema = &self.tables.schema;
        let gauges = Gauges::new(&name, pool.clone(), schema, &letters, self.clock.clone());
        Ok(self.tell(
            service
                .worker(upkeep(self.own, self.tables)?)
                .worker(Expiry { pool: pool.clone() })
                .worker(Watch {
                    reconciler: verify::Reconciler::new(pool),
                    every: self.own.retention.reconcile_interval,
                })
                .worker(gauges),
        ))
    }

    fn publish(&self, service: Service) -> Service {
        if !self.own.outbox.enabled {
            return service;
        }
        let pool = self.tables.database.workers.clone();
        let leased = &self.own.outbox.leased;
        let settings = RelaySettings {
            batch: leased.batch_size,
            lease: leased.lease,
            poll: leased.poll_interval,
            policy: leased.policy(),
            link: trace::link,
            ..RelaySettings::new(
                &format!("{NAME}.outbox"),
                pool.clone(),
                Routes::to(&self.own.nats.subject),
            )
        };
        let outbox = &self.parts.outbox;
        let relay = outbox::relay(outbox, Arc::clone(self.bus), settings);
        let suspicion = relay.work().suspicion();
        let name = format!("{NAME}.reconciler");
        let (bus, streams) = (Arc::clone(self.bus), vec![self.stream.clone()]);
        let reconciler = Reconciler::new(&name, outbox, bus, pool.clone(), streams);
        service
            .worker(relay)
            .worker(reconciler.suspecting(suspicion))
            .worker(outbox.listener(&pool))
    }

    /// One part of the choreographed flow.
    fn hear(&self, part: Part) -> impl Worker + use<> {
        let pool = self.tables.database.workers.clone();
        let dancer = Dancer {
            part,
            parts: self.parts.clone(),
        };
        let reactor = Reactor::new(self.parts.story.clone(), pool.clone(), dancer);
        let name = format!("{NAME}.{}", part.as_str());
        Consumer::new(name, self.bus.as_ref().clone(), self.spec(part), reactor)
            .linking_traces(trace::link)
            .remembering(pool, &self.tables.schema)
    }

    /// How a part hears.
    pub(crate) fn spec(&self, part: Part) -> ConsumerSpec {
        let durable = format!("{}-{}", self.own.nats.durable, part.as_str());
        ConsumerSpec::new(self.stream.clone(), durable).ack_wait(self.own.nats.ack_wait)
    }

    /// What tells other processes that there is something to do, and hears it.
    fn tell(&self, service: Service) -> Service {
        let pool = self.tables.database.workers.clone();
        let ears = Listener::new("shop.listener", pool.clone());
        let outbox = self.parts.outbox.ringer(&pool);
        let jobs = self.parts.jobs.ringer(&pool);
        let sagas = self.sagas.ringer("shop.saga-ringer", pool);
        service
            .worker(self.sagas.heard_by(ears))
            .everywhere(move |supervisor| {
                supervisor.start(outbox);
                supervisor.start(jobs);
                supervisor.start(sagas);
            })
    }
}

/// What keeps the shop's tables small.
pub(crate) fn upkeep(own: &Shop, tables: &Tables) -> Result<Upkeep, upkeep::Error> {
    let published = Partitioned::by_time("outbox_published", "published_at")
        .width(Duration::from_secs(60 * 60))
        .keep(own.outbox.published_ttl);
    let every = own.retention.cleanup_interval;
    Ok(Upkeep::new(tables.database.workers.clone(), &tables.schema)
        .partitioned(published)?
        .clean_every(own.retention.enabled.then_some(every)))
}

/// Puts back what nobody came for.
#[derive(Debug)]
struct Expiry {
    pool: PgPool,
}

impl Worker for Expiry {
    fn name(&self) -> &'static str {
        "shop.expiry"
    }

    fn poll_interval(&self) -> Duration {
        EXPIRY_POLL
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let mut tx = begin(&self.pool).await?;
        let gone = inventory::expire(&mut tx, AT_ONCE).await?;
        tx.commit().await?;
        if gone == 0 {
            return Ok(Tick::Idle);
        }
        tracing::info!(reservations = gone, "put back what nobody came for");
        Ok(Tick::Worked)
    }
}

/// Compares money with goods, and shows what does not match.
#[derive(Debug)]
struct Watch {
    reconciler: verify::Reconciler,
    every: Duration,
}

impl Worker for Watch {
    fn name(&self) -> &'static str {
        "shop.watch"
    }

    fn poll_interval(&self) -> Duration {
        self.every
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let seen = self.reconciler.look().await?;
        for check in seen.checks {
            // Few are ever above zero, and an alert needs those that are not.
            let count = f64::from(i32::try_from(check.count).unwrap_or(i32::MAX));
            metrics::gauge!(MISMATCHES, "check" => check.check).set(count);
        }
        let unfinished = i32::try_from(seen.unfinished).unwrap_or(i32::MAX);
        metrics::gauge!(UNFINISHED).set(f64::from(unfinished));
        for wrong in seen.found {
            tracing::error!(
                check = wrong.check,
                order.id = wrong.order_id.map(tracing::field::display),
                subject = wrong.subject,
                "money and goods do not match",
            );
        }
        Ok(Tick::Idle)
    }
}
