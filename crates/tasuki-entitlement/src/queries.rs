//! What can be read: a check, a list, a history.
//!
//! Lists that are asked for at the same time are read together: a question to the database costs
//! more than what it answers.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sqlx::PgPool;
use tasuki::batch::{Group, Ran};
use tasuki_contract::entitlement as wire;
use tasuki_contract::names::{Sku, UserId};
use tasuki_contract::timestamp;
use tasuki_service::database;
use time::OffsetDateTime;

use crate::domain::Status;
use crate::store::{self, Listed, Past, Wanted};
use crate::views;

/// A text that is no cursor of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidCursor;

/// Which of a user's entitlements.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) status: Option<Status>,
    pub(crate) changed_since: Option<OffsetDateTime>,
}

/// Reads whole lists, many users at once.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    pub(crate) pool: PgPool,
}

/// Entries of a whole list: what is asked for when nothing is said. Whoever has more gets the rest
/// with the cursor.
pub(crate) const WHOLE: u32 = 10_000;
/// Entries of each list that are read together with others; few users have as many.
pub(crate) const TOGETHER: u32 = 1000;
/// Users whose lists are read together: all of them are in memory at once.
pub(crate) const USERS_TOGETHER: usize = 128;

impl Group for Lists {
    type Command = UserId;
    type Reply = Vec<Listed>;
    type Error = sqlx::Error;

    async fn run(&self, users: &[UserId]) -> Ran<Vec<Listed>, sqlx::Error> {
        let users: Vec<String> = users.iter().map(ToString::to_string).collect();
        let mut connection = self.pool.acquire().await?;
        // One more tells whether the list is longer.
        let lists = store::lists(&mut connection, &users, i64::from(TOGETHER) + 1).await?;
        Ok(lists.into_iter().map(Ok).collect())
    }

    fn is_everyones(&self, error: &sqlx::Error) -> bool {
        database::is_away(error)
    }
}

/// Reads, on connections of `pool`.
#[derive(Clone, Debug)]
pub(crate) struct Queries {
    pub(crate) pool: PgPool,
}

impl Queries {
    /// Whether `user` may use `sku` now.
    pub(crate) async fn check(&self, user: &UserId, sku: &Sku) -> sqlx::Result<wire::Check> {
        let mut connection = self.pool.acquire().await?;
        let found = store::find(&mut connection, user.as_str(), sku.as_str()).await?;
        Ok(match found {
            None => wire::Check {
                allowed: false,
                entitlement: None,
            },
            Some((holding, now)) => wire::Check {
                allowed: holding.allows(now),
                entitlement: Some(views::entitlement(user.as_str(), sku.as_str(), &holding)),
            },
        })
    }

    /// A page of what `user` has or had.
    pub(crate) async fn list(
        &self,
        user: &UserId,
        filter: &Filter,
        after: Option<(OffsetDateTime, String)>,
        limit: u32,
    ) -> sqlx::Result<wire::Entitlements> {
        let wanted = Wanted {
            status: filter.status,
            changed_since: filter.changed_since,
            after,
            // One more than was asked for tells whether there is another page.
            limit: i64::from(limit) + 1,
        };
        let mut connection = self.pool.acquire().await?;
        let listed = store::list(&mut connection, user.as_str(), &wanted).await?;
        Ok(page(user, listed, limit))
    }

    /// A page of what happened to `sku` of `user`, below version `below`.
    pub(crate) async fn history(
        &self,
        user: &UserId,
        sku: &Sku,
        below: Option<i64>,
        limit: u32,
    ) -> sqlx::Result<wire::History> {
        let mut connection = self.pool.acquire().await?;
        let limit_and_one = i64::from(limit) + 1;
        let (user, sku) = (user.as_str(), sku.as_str());
        let mut past = store::history(&mut connection, user, sku, below, limit_and_one).await?;
        let more = cut(&mut past, limit);
        let next_cursor = past
            .last()
            .filter(|_| more)
            .map(|last| last.version.to_string());
        Ok(wire::History {
            user_id: user.to_owned(),
            stock_keeping_unit: sku.to_owned(),
            history: past.into_iter().map(entry).collect(),
            next_cursor,
        })
    }
}

/// The list of a user, when it is not longer than what is read together.
pub(crate) fn whole(user: &UserId, listed: Vec<Listed>) -> Option<wire::Entitlements> {
    let list = page(user, listed, TOGETHER);
    list.next_cursor.is_none().then_some(list)
}

/// What was read of a user, cut to a page.
fn page(user: &UserId, mut listed: Vec<Listed>, limit: u32) -> wire::Entitlements {
    let more = cut(&mut listed, limit);
    let last = listed.last().filter(|_| more);
    let next_cursor = last.map(|last| cursor(last.updated_at, &last.stock_keeping_unit));
    wire::Entitlements {
        user_id: user.to_string(),
        entitlements: listed.into_iter().map(views::item).collect(),
        next_cursor,
    }
}

/// Cuts a page to `limit`, and says whether there was more.
fn cut<T>(page: &mut Vec<T>, limit: u32) -> bool {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = page.len() > limit;
    page.truncate(limit);
    more
}

fn entry(past: Past) -> wire::HistoryEntry {
    wire::HistoryEntry {
        event_id: past.audit_id.into(),
        action: past.action,
        occurred_at: past.occurred_at,
        version: past.version,
        source: past.source,
        source_id: past.source_id,
        caller: past.caller,
        request_id: past.request_id,
    }
}

/// Where the page after this entitlement begins: opaque to clients, and safe in a query.
fn cursor(at: OffsetDateTime, sku: &str) -> String {
    let at = timestamp::format(at).unwrap_or_default();
    URL_SAFE_NO_PAD.encode(format!("{at} {sku}"))
}

/// Reads a [`cursor`].
pub(crate) fn parse_cursor(text: &str) -> Result<(OffsetDateTime, String), InvalidCursor> {
    let parsed = || {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let (at, sku) = text.split_once(' ')?;
        let at = timestamp::parse(at).ok()?;
        let sku = Sku::try_from(sku.to_owned()).ok()?;
        Some((at, sku.into()))
    };
    parsed().ok_or(InvalidCursor)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_cursor_is_read_back_and_anything_else_is_refused() {
        let at = datetime!(2026-11-16 9:00:00.123456 UTC);
        let text = cursor(at, "a b/ç");
        assert_eq!(parse_cursor(&text), Ok((at, "a b/ç".to_owned())));
        for bad in ["", "x", "AAAA", &text[1..], "%00"] {
            assert_eq!(parse_cursor(bad), Err(InvalidCursor), "{bad}");
        }
    }
}
