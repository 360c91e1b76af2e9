//! Which streams are taken in, and how their messages are read.

use std::sync::Arc;

use tasuki::Clock;
use tasuki::inbox::Inbox;
use tasuki::worker::Bell;
use tasuki_service::service::Tables;

use crate::config::{Notification, Source};
use crate::events::{self, Reader};
use crate::intake::Intake;

/// Every source with what takes in its events, and rings `bell` for them.
pub(crate) fn intakes<'a>(
    own: &'a Notification,
    tables: &Tables,
    clock: &Clock,
    bell: &Bell,
) -> Vec<(&'a Source, Intake)> {
    let sources: [(&Source, Reader); 4] = [
        (&own.nats, events::entitlement),
        (&own.matchmaking_nats, events::matchmaking),
        (&own.shop_nats, events::shop),
        (&own.community_nats, events::community),
    ];
    let intake = |source: &Source, read| Intake {
        consumer: source.durable.clone(),
        read,
        pool: tables.database.workers.clone(),
        inbox: Inbox::new(&tables.schema),
        default_channels: own.delivery.default_channels.clone(),
        clock: clock.clone(),
        bell: bell.clone(),
        stuck: Arc::default(),
    };
    sources
        .into_iter()
        .map(|(source, read)| (source, intake(source, read)))
        .collect()
}
