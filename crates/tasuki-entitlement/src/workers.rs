//! What entitlement does in the background: publish, reconcile, expire, keep tables small.

use std::sync::Arc;
use std::time::Duration;

use tasuki::Clock;
use tasuki::admin::Gauges;
use tasuki::bus::{NatsBus, StreamSpec};
use tasuki::dlq::Letters;
use tasuki::outbox::{self, Reconciler, RelaySettings, Routes};
use tasuki::upkeep::{self, Partitioned, Upkeep};
use tasuki_service::Service;
use tasuki_service::service::Tables;
use tasuki_service::telemetry::trace;

use crate::NAME;
use crate::commands::Commands;
use crate::config::Entitlement;
use crate::expiry::Expiry;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Adds all of them to `service`.
pub(crate) fn add(
    mut service: Service,
    own: &Entitlement,
    tables: &Tables,
    commands: &Commands,
    bus: &Arc<NatsBus>,
    stream: StreamSpec,
    clock: &Clock,
) -> Result<Service, upkeep::Error> {
    let pool = tables.database.workers.clone();
    let outbox = &commands.outbox;
    if own.outbox.enabled {
        let leased = &own.outbox.leased;
        let settings = RelaySettings {
            batch: leased.batch_size,
            lease: leased.lease,
            poll: leased.poll_interval,
            policy: leased.policy(),
            link: trace::link,
            ..RelaySettings::new(
                &format!("{NAME}.outbox"),
                pool.clone(),
                Routes::to(&own.nats.subject),
            )
        };
        let relay = outbox::relay(outbox, Arc::clone(bus), settings);
        let suspicion = relay.work().suspicion();
        let name = format!("{NAME}.reconciler");
        let bus = Arc::clone(bus);
        let reconciler = Reconciler::new(&name, outbox, bus, pool.clone(), vec![stream]);
        service = service
            .worker(relay)
            .worker(reconciler.suspecting(suspicion))
            .worker(outbox.listener(&pool));
    }
    service = service.worker(upkeep(own, tables)?);
    let letters = Letters::new(&tables.schema, &[]);
    let name = format!("{NAME}.gauges");
    let gauges = Gauges::new(&name, pool.clone(), &tables.schema, &letters, clock.clone());
    let expiry = Expiry::new(Commands {
        pool: pool.clone(),
        ..commands.clone()
    });
    Ok(service
        .everywhere({
            // Whoever serves requests or expires writes events, and wakes relays elsewhere.
            let ringer = outbox.ringer(&pool);
            move |supervisor| {
                supervisor.start(ringer);
            }
        })
        .worker(expiry)
        .worker(gauges))
}

/// What keeps entitlement's tables small.
pub(crate) fn upkeep(own: &Entitlement, tables: &Tables) -> Result<Upkeep, upkeep::Error> {
    let audit = Partitioned::by_time("entitlement_audit", "occurred_at")
        .monthly()
        .keep(DAY * own.retention.audit_days);
    let published = Partitioned::by_time("outbox_published", "published_at")
        .width(Duration::from_secs(60 * 60))
        .keep(own.outbox.published_ttl);
    Ok(Upkeep::new(tables.database.workers.clone(), &tables.schema)
        .partitioned(audit)?
        .partitioned(published)?
        // Partitions are made whatever is kept: without them everything piles up in one.
        .clean_every(
            own.retention
                .enabled
                .then_some(own.retention.cleanup_interval),
        ))
}
