//! Which streams are taken in, and how their messages are read.

use tasuki::inbox::Inbox;

use crate::config::Source;
use crate::events::{self, Reader};
use crate::intake::Intake;
use crate::workers::Shop;

/// Every source with what takes in its events.
pub(crate) fn intakes<'a>(shop: &Shop<'a>) -> Vec<(&'a Source, Intake)> {
    let sources: [(&Source, Reader); 2] = [
        (&shop.own.nats, events::entitlement),
        (&shop.own.matchmaking_nats, events::matchmaking),
    ];
    let intake = |source: &Source, read| Intake {
        consumer: source.durable.clone(),
        read,
        pool: shop.tables.database.workers.clone(),
        inbox: Inbox::new(&shop.tables.schema),
        default_channels: shop.own.delivery.default_channels.clone(),
        clock: shop.clock.clone(),
        bell: shop.deliveries.clone(),
    };
    sources
        .into_iter()
        .map(|(source, read)| (source, intake(source, read)))
        .collect()
}
