//! The relay: clients on web sockets, who publish and subscribe.

mod auth;
mod connection;
mod gate;
mod info;
mod limits;
pub(crate) mod live;
mod outgoing;
mod policy;
pub(crate) mod publish;
mod recent;
mod routes;
mod stored;
mod subscriptions;

pub(crate) use auth::address_of;
pub(crate) use gate::Gate;
pub(crate) use limits::{Bucket, Buckets};
pub(crate) use policy::{Policy, is_topic};
pub(crate) use routes::{App, routes};
