//! Under which id the platform knows the owner of a key.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::nostr::Key;

/// The users of these keys; those that nobody has linked are left out.
pub(crate) async fn of(
    connection: &mut PgConnection,
    keys: &[Key],
) -> sqlx::Result<HashMap<Key, String>> {
    let keys: Vec<_> = keys.iter().map(|key| key.0.to_vec()).collect();
    let rows = sqlx::query!(
        "SELECT pubkey, user_id FROM cn_relay.members WHERE pubkey = ANY($1)",
        &keys,
    )
    .fetch_all(connection)
    .await?;
    let users = rows.into_iter().filter_map(|row| {
        let key = row.pubkey.try_into().ok()?;
        Some((Key(key), row.user_id))
    });
    Ok(users.collect())
}

/// Links a key to a user.
pub(crate) async fn link(
    tx: &mut PgConnection,
    key: Key,
    user: &str,
    actor: &str,
) -> sqlx::Result<()> {
    sqlx::query!(
        "INSERT INTO cn_relay.members (pubkey, user_id, actor) VALUES ($1, $2, $3)
         ON CONFLICT (pubkey) DO UPDATE
         SET user_id = excluded.user_id, actor = excluded.actor, changed_at = now()",
        key.0.as_slice(),
        user,
        actor,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Takes the link away; answers whose it was.
pub(crate) async fn unlink(tx: &mut PgConnection, key: Key) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar!(
        "DELETE FROM cn_relay.members WHERE pubkey = $1 RETURNING user_id",
        key.0.as_slice(),
    )
    .fetch_optional(tx)
    .await
}
