//! What API keys can be allowed to do here. Services that call for a user may read what is that
//! user's; nobody grants themselves anything.

use tasuki_service::auth::Scope;

pub(crate) struct Grant;
pub(crate) struct Revoke;
pub(crate) struct Consume;
pub(crate) struct Read;

impl Scope for Grant {
    const NAME: &'static str = "entitlement:grant";
}

impl Scope for Revoke {
    const NAME: &'static str = "entitlement:revoke";
}

impl Scope for Consume {
    const NAME: &'static str = "entitlement:consume";
}

impl Scope for Read {
    const NAME: &'static str = "entitlement:read";
}
