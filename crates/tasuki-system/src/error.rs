//! Why the system service can't start.

/// One sentence each.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// NATS can't be used.
    #[error(transparent)]
    Nats(#[from] tasuki_service::nats::Error),
    /// No address of Redis.
    #[error("redis.url is not set: set TASUKI_REDIS__URL, or use `tasuki up` for a private server")]
    NoRedis,
    /// An address that is not one.
    #[error("redis.url is not a Redis address: {0}")]
    BadRedis(#[source] redis::RedisError),
}
