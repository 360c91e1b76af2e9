//! What the shop does in the background: run sagas, react, run errands, publish, put back what
//! nobody came for, end transfers that were left behind, compare money with goods.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tasuki::admin::Gauges;
use tasuki::bus::{Consumer, ConsumerSpec, NatsBus, StreamSpec};
use tasuki::choreography::Reactor;
use tasuki::dlq::Letters;
use tasuki::inbox::Inbox;
use tasuki::jobs::Queue;
use tasuki::outbox::{self, RelaySettings, Routes};
use tasuki::saga::{Engine, Sagas};
use tasuki::twopc::Coordinator;
use tasuki::upkeep::{self, Expiring, Partitioned, Upkeep};
use tasuki::worker::{Error, Listener, Tick, Worker};
use tasuki::{Clock, begin, is_away, jobs};
use tasuki_contract::ids::ReservationId;
use tasuki_service::Service;
use tasuki_service::service::Tables;
use tasuki_service::telemetry::trace;

use crate::choreographed::{Dancer, Part};
use crate::config::Shop;
use crate::parts::Parts;
use crate::unread::{Keeping, Reads, Unread};
use crate::verify::Reconciler;
use crate::watch::Watch;
use crate::{NAME, errands, inventory};

/// Reservations that are looked for at a time.
const AT_ONCE: i64 = 100;
/// How long one of them waits for a row of stock that somebody holds: others can be put back. It is half
/// as long after each that has waited in vain, and not less than the second.
const EXPIRY_PATIENCE: Duration = Duration::from_millis(500);
const LEAST_PATIENCE: Duration = Duration::from_millis(50);
/// How soon after its end a reservation is put back, at the latest.
const EXPIRY_POLL: Duration = Duration::from_millis(500);

/// Everything that workers share.
pub(crate) struct Staff<'a> {
    pub(crate) own: &'a Shop,
    pub(crate) tables: &'a Tables,
    pub(crate) parts: &'a Parts,
    pub(crate) sagas: &'a Sagas,
    pub(crate) engine: &'a Engine,
    pub(crate) coordinator: Option<&'a Coordinator>,
    pub(crate) reconciler: &'a Reconciler,
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
        let registry = errands::registry(self.parts).on::<Unread, _>(Reads(self.parts.clone()));
        let (payment, entitlement) = (&self.own.payment, &self.own.entitlement);
        for (queue, calls) in [
            (errands::PAYMENT, payment.concurrency),
            (errands::ENTITLEMENT, entitlement.concurrency),
            (
                errands::BEFORE,
                payment.concurrency.min(entitlement.concurrency),
            ),
        ] {
            let queue = Queue::new(queue).concurrency(calls);
            let queue = queue.lease(self.own.outbox.leased.lease);
            service = service.worker(queue.worker(&self.parts.jobs, &pool, &registry)?);
        }
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
                    reconciler: self.reconciler.clone(),
                    parts: self.parts.clone(),
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
        let reconciler = outbox::Reconciler::new(&name, outbox, bus, pool.clone(), streams);
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
        let keeping = Keeping {
            reactor: Reactor::new(self.parts.story.clone(), pool.clone(), dancer),
            part,
            parts: self.parts.clone(),
            inbox: Inbox::new(&self.tables.schema),
        };
        let name = format!("{NAME}.{}", part.as_str());
        Consumer::new(name, self.bus.as_ref().clone(), self.spec(part), keeping)
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
        let jobs = &self.parts.jobs;
        let ears = self.sagas.heard_by(ears).rings(jobs.channel(), jobs.bell());
        let outbox = self.parts.outbox.ringer(&pool);
        let jobs = jobs.ringer(&pool);
        let sagas = self.sagas.ringer("shop.saga-ringer", pool);
        service.worker(ears).everywhere(move |supervisor| {
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
    let notices = Expiring::new("operator_notices", "told_at").keep(own.retention.notices);
    let every = own.retention.cleanup_interval;
    Ok(Upkeep::new(tables.database.workers.clone(), &tables.schema)
        .partitioned(published)?
        .expiring(notices)?
        .clean_every(own.retention.enabled.then_some(every)))
}

/// Puts back what nobody came for.
#[derive(Debug)]
struct Expiry {
    pool: PgPool,
}

/// How far one tick is.
struct Round {
    gone: u32,
    /// Goods that somebody holds: reservations of them are for the next tick.
    held: Vec<String>,
    patience: Duration,
    failed: Option<sqlx::Error>,
}

impl Expiry {
    /// Ends one, or finds out what is in its way: it does not keep the others. Says whether it is stuck.
    async fn end(&self, reservation: ReservationId, round: &mut Round) -> sqlx::Result<bool> {
        match self.expire(reservation, round.patience).await {
            Ok(is_gone) => {
                round.gone += u32::from(is_gone);
                Ok(false)
            }
            Err(error) if is_away(&error) => Err(error),
            Err(error) => {
                round.patience = (round.patience / 2).max(LEAST_PATIENCE);
                round.held.extend(self.held_by_others(reservation).await?);
                round.failed = Some(error);
                Ok(true)
            }
        }
    }

    async fn expire(&self, reservation: ReservationId, patience: Duration) -> sqlx::Result<bool> {
        let mut tx = begin(&self.pool).await?;
        let is_gone = inventory::expire(&mut tx, reservation, patience).await?;
        tx.commit().await?;
        Ok(is_gone)
    }

    async fn held_by_others(&self, reservation: ReservationId) -> sqlx::Result<Vec<String>> {
        let mut tx = begin(&self.pool).await?;
        let held = inventory::held_by_others(&mut tx, reservation).await?;
        tx.rollback().await?;
        Ok(held)
    }
}

impl Worker for Expiry {
    fn name(&self) -> &'static str {
        "shop.expiry"
    }

    fn poll_interval(&self) -> Duration {
        EXPIRY_POLL
    }

    /// Goes through all that have run out, however many of them are stuck.
    async fn tick(&self) -> Result<Tick, Error> {
        let mut round = Round {
            gone: 0,
            held: Vec::new(),
            patience: EXPIRY_PATIENCE,
            failed: None,
        };
        let mut last = None;
        loop {
            let run_out = {
                let mut connection = self.pool.acquire().await?;
                inventory::run_out(&mut connection, last, &round.held, AT_ONCE).await?
            };
            if run_out.is_empty() {
                break;
            }
            for it in run_out {
                last = Some(it);
                if self.end(it.reservation, &mut round).await? {
                    // Others of what is held are not tried.
                    break;
                }
            }
        }
        if round.gone > 0 {
            tracing::info!(reservations = round.gone, "put back what nobody came for");
        }
        match round.failed {
            Some(error) => Err(error.into()),
            None if round.gone > 0 => Ok(Tick::Worked),
            None => Ok(Tick::Idle),
        }
    }
}
