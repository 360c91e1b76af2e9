//! What the community node does in the background: number the log, tell what others took in, end what has
//! ended, keep tables small.

use std::time::Duration;

use sqlx::PgPool;
use tasuki::seqlog::{Follower, Log};
use tasuki::upkeep::{self, Expiring, Partitioned, Upkeep};
use tasuki::worker::{Wake, Worker};
use tasuki_service::Service;
use tasuki_service::service::Tables;
use tokio::sync::Mutex;

use crate::NAME;
use crate::config::Community;
use crate::follow::Follow;
use crate::lapse::Lapse;
use crate::moderation::{self, Moderation, Moderator};
use crate::node::Keys;
use crate::relay::live::Live;
use crate::rules::{Read, Rules};
use crate::search::Index;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Everything that workers share.
pub(crate) struct Staff<'a> {
    pub(crate) own: &'a Community,
    pub(crate) tables: &'a Tables,
    pub(crate) log: &'a Log,
    pub(crate) live: &'a Live,
    pub(crate) rules: &'a Rules,
    /// Those with which the node speaks, if it has any.
    pub(crate) keys: Option<&'a Keys>,
    /// Who labels; nobody, if the node has no keys.
    pub(crate) moderator: Option<&'a Moderator>,
}

impl Staff<'_> {
    /// Adds all of them to `service`.
    pub(crate) fn add(&self, service: Service) -> Result<Service, upkeep::Error> {
        let pool = self.tables.database.workers.clone();
        let follow = Follow {
            log: self.log.clone(),
            pool: pool.clone(),
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
        let (listener, ringer) = (self.log.listener(&pool), self.log.ringer(&pool));
        let service = match self.moderation(&pool) {
            Some(moderation) => service.worker(moderation),
            None => service,
        };
        // Whoever serves clients tells them what others took in, and rings for what they publish.
        Ok(service
            .serving(move |supervisor| {
                supervisor.start(follow);
                supervisor.start(rules);
            })
            .everywhere(move |supervisor| {
                supervisor.start(listener);
                supervisor.start(ringer);
            })
            .worker(self.log.sequencer("community.sequencer", &pool))
            .worker(self.log.gauges(&format!("{NAME}.log"), &pool))
            .worker(lapse)
            .worker(self.index(&pool))
            .worker(self.upkeep()?))
    }

    /// The consumer `moderation-v1`.
    fn moderation(&self, pool: &PgPool) -> Option<impl Worker + use<>> {
        let moderation = Moderation {
            pool: pool.clone(),
            moderator: self.moderator?.clone(),
        };
        let follower = Follower::new(self.log, "moderation-v1", pool, moderation);
        Some(
            follower
                .named("community.moderation")
                .batch(moderation::BATCH),
        )
    }

    /// The consumer `index-v1`.
    fn index(&self, pool: &PgPool) -> impl Worker + use<> {
        let index = Index {
            pool: pool.clone(),
            kinds: self.own.index.kinds.clone(),
        };
        Follower::new(self.log, "index-v1", pool, index).named("community.index")
    }

    /// Events are hidden, and the log told of it, a week before their partition is dropped: so long may
    /// nobody have been at work.
    fn upkeep(&self) -> Result<Upkeep, upkeep::Error> {
        let retention = &self.own.retention;
        let events = DAY * (u32::from(retention.events_days) + 7);
        let deletions = DAY * u32::from(retention.deletions_days);
        let pool = self.tables.database.workers.clone();
        Upkeep::new(pool, &self.tables.schema)
            .partitioned(Partitioned::by_time("events", "ingested_at").keep(events))?
            .partitioned(Partitioned::by_time("event_tags", "ingested_at").keep(events))?
            .partitioned(
                Partitioned::by_time("event_dedupe", "ingested_at")
                    .monthly()
                    .keep(deletions),
            )?
            .partitioned(self.log.retention().keep(DAY * retention.log_days.into()))?
            .expiring(Expiring::new("tombstones", "recorded_at").keep(deletions))
    }
}
