//! A message that will not come by itself, written down once where a person sees it.

use sqlx::PgConnection;

use crate::store::broker::{self, Lost};

/// Sets a message aside; says whether that is news.
pub(crate) async fn set_aside(tx: &mut PgConnection, lost: &Lost<'_>) -> sqlx::Result<bool> {
    if let Some(other) = broker::make_room(&mut *tx, lost).await? {
        tracing::warn!(
            stream = lost.stream,
            sequence = lost.stream_seq,
            message.id = other.map(display),
            "entry removed, the broker has given its number to another message",
        );
    }
    broker::record(tx, lost).await
}
