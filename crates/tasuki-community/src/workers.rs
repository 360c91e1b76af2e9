//! What the community node does in the background: number the log, tell what others took in, end what has
//! ended, keep tables small.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tasuki::Clock;
use tasuki::admin::Gauges;
use tasuki::bus::{NatsBus, StreamSpec};
use tasuki::dlq::Letters;
use tasuki::outbox::{self, Outbox, RelaySettings, Routes};
use tasuki::seqlog::{Consumers, Follower, Log};
use tasuki::upkeep::{self, Expiring, Partitioned, Upkeep};
use tasuki::worker::{Wake, Worker};
use tasuki_service::Service;
use tasuki_service::database::beside;
use tasuki_service::service::Tables;
use tasuki_service::telemetry::trace;
use tokio::sync::Mutex;

use crate::NAME;
use crate::config::{Community, TopicMode};
use crate::follow::Follow;
use crate::lapse::Lapse;
use crate::moderation::{self, Moderation, Moderator};
use crate::node::Keys;
use crate::pressure::{self, Look, Pressure};
use crate::relay::live::Live;
use crate::rules::{Read, Rules};
use crate::search::Index;
use crate::trust::{Scores, Speak, Trust};

/// Of each consumer: a rebuild reads a snapshot, fills a table and keeps its place, for as long as it takes.
const CONSUMER_CONNECTIONS: u32 = 3;
/// Two fill the table of the index.
const INDEX_CONNECTIONS: u32 = CONSUMER_CONNECTIONS + 1;
/// How long rows of the log are gathered: clients of this process are told of an event meanwhile.
const GATHERED: Duration = Duration::from_millis(5);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Everything that workers share.
pub(crate) struct Staff<'a> {
    pub(crate) own: &'a Community,
    pub(crate) tables: &'a Tables,
    pub(crate) log: &'a Log,
    pub(crate) live: &'a Live,
    pub(crate) rules: &'a Rules,
    pub(crate) pressure: &'a Pressure,
    /// Those with which the node speaks, if it has any.
    pub(crate) keys: Option<&'a Keys>,
    pub(crate) outbox: &'a Outbox,
    pub(crate) bus: &'a Arc<NatsBus>,
    pub(crate) stream: StreamSpec,
    pub(crate) clock: &'a Clock,
}

impl Staff<'_> {
    /// Adds all of them to `service`.
    pub(crate) fn add(&self, service: Service) -> Result<Service, upkeep::Error> {
        let pool = self.tables.database.workers.clone();
        let follow = Follow {
            log: self.log.clone(),
            // Who listens must not wait for whoever rebuilds an index.
            pool: beside(&pool, 1),
            live: self.live.clone(),
            wake: Wake::default(),
            place: Mutex::default(),
        };
        self.log.numbered().wakes(&follow.wake);
        let lapse = Lapse {
            pool: pool.clone(),
            log: self.log.clone(),
            retention: self.own.retention,
        };
        let rules = Read {
            pool: pool.clone(),
            rules: self.rules.clone(),
        };
        let look = Look {
            pool: pool.clone(),
            consumers: Consumers::new(&self.tables.schema),
            log: self.log.name().to_owned(),
            rules: self.rules.clone(),
            pressure: self.pressure.clone(),
            clock: self.clock.clone(),
        };
        let outbox = self.outbox.ringer(&pool);
        let service = self.publish(service);
        let sequencer = self.log.sequencer("community.sequencer", &pool);
        let sequencer = sequencer.gathering(GATHERED);
        let (listener, ringer) = (self.log.listener(&pool), self.log.ringer(&pool));
        let service = match self.moderation(&pool) {
            Some(moderation) => service.worker(moderation),
            None => service,
        };
        // Whoever serves clients tells them what others took in, and rings for what they publish.
        let service = match self.speak(&pool) {
            Some(speak) => service.worker(speak),
            None => service,
        };
        Ok(service
            .serving(move |supervisor| {
                supervisor.start(follow);
                supervisor.start(rules);
            })
            .everywhere(move |supervisor| {
                supervisor.start(listener);
                supervisor.start(ringer);
                supervisor.start(look);
                supervisor.start(outbox);
            })
            .worker(sequencer)
            .worker(self.log.gauges(&format!("{NAME}.log"), &pool))
            .worker(lapse)
            .worker(self.index(&pool))
            .worker(self.trust(&pool))
            .worker(upkeep(self.own, self.tables, self.log)?))
    }

    /// Tells the rest of the platform. A broker that is away keeps nobody from the relay.
    fn publish(&self, service: Service) -> Service {
        let pool = self.tables.database.workers.clone();
        let letters = Letters::new(&self.tables.schema, &[]);
        let (schema, clock) = (&self.tables.schema, self.clock.clone());
        let name = format!("{NAME}.gauges");
        let service = service.worker(Gauges::new(&name, pool.clone(), schema, &letters, clock));
        if !self.own.outbox.enabled {
            return service;
        }
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
        let relay = outbox::relay(self.outbox, Arc::clone(self.bus), settings);
        let suspicion = relay.work().suspicion();
        let name = format!("{NAME}.reconciler");
        let (bus, streams) = (Arc::clone(self.bus), vec![self.stream.clone()]);
        let reconciler = outbox::Reconciler::new(&name, self.outbox, bus, pool.clone(), streams);
        service
            .worker(relay)
            .worker(reconciler.suspecting(suspicion))
            .worker(self.outbox.listener(&pool))
    }

    /// The consumer `moderation-v1`.
    fn moderation(&self, pool: &PgPool) -> Option<impl Worker + use<>> {
        let pool = beside(pool, CONSUMER_CONNECTIONS);
        let moderation = Moderation {
            pool: pool.clone(),
            moderator: Moderator::new(
                self.keys?.clone(),
                self.outbox.clone(),
                self.own.limits.seconds_ahead(),
            ),
        };
        let follower = Follower::new(self.log, "moderation-v1", &pool, moderation);
        let batch = self.pressure.batch(moderation::BATCH);
        Some(follower.named("community.moderation").batch_of(&batch))
    }

    /// The consumer `index-v1`.
    fn index(&self, pool: &PgPool) -> impl Worker + use<> {
        let pool = beside(pool, INDEX_CONNECTIONS);
        let index = Index {
            pool: pool.clone(),
            kinds: self.own.index.kinds.clone(),
        };
        Follower::new(self.log, "index-v1", &pool, index)
            .named("community.index")
            .batch_of(&self.pressure.batch(pressure::BATCH))
    }

    /// The consumer `trust-v1`.
    fn trust(&self, pool: &PgPool) -> impl Worker + use<> {
        let pool = beside(pool, CONSUMER_CONNECTIONS);
        let trust = Trust {
            pool: pool.clone(),
            kinds: self.own.trust.kinds.clone(),
            keys: self.keys.cloned(),
            interval: self.own.trust.interval,
        };
        Follower::new(self.log, "trust-v1", &pool, trust)
            .named("community.trust")
            .batch_of(&self.pressure.batch(pressure::BATCH))
    }

    /// Who has no keys says nothing.
    fn speak(&self, pool: &PgPool) -> Option<Speak> {
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        Some(Speak {
            pool: pool.clone(),
            log: self.log.clone(),
            keys: self.keys?.clone(),
            scores: Scores::new(&self.own.trust),
            life: seconds(self.own.trust.expiry),
            ahead: seconds(self.own.limits.ahead),
            relay: self.own.relay.url.clone(),
            topic: self.own.topics.default.clone(),
            is_topic_told: self.own.topics.mode == TopicMode::Required,
        })
    }
}

/// Events are hidden, and the log told of it, a week before their partition is dropped: so long may nobody
/// have been at work.
pub(crate) fn upkeep(own: &Community, tables: &Tables, log: &Log) -> Result<Upkeep, upkeep::Error> {
    let retention = &own.retention;
    let events = DAY * (u32::from(retention.events_days) + 7);
    let deletions = DAY * u32::from(retention.deletions_days);
    Upkeep::new(tables.database.workers.clone(), &tables.schema)
        .partitioned(Partitioned::by_time("events", "ingested_at").keep(events))?
        .partitioned(Partitioned::by_time("event_tags", "ingested_at").keep(events))?
        .partitioned(
            Partitioned::by_time("event_dedupe", "ingested_at")
                .monthly()
                .keep(deletions),
        )?
        .partitioned(log.retention().keep(DAY * retention.log_days.into()))?
        .partitioned(
            Partitioned::by_time("outbox_published", "published_at")
                .width(Duration::from_secs(60 * 60))
                .keep(own.outbox.published_ttl),
        )?
        .expiring(Expiring::new("tombstones", "recorded_at").keep(deletions))
}
