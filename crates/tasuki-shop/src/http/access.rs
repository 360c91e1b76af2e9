//! What API keys can be allowed to do here. A service that calls for a user may order, and read what
//! is that user's; nobody manages the shop for a user.

use tasuki_service::auth::Scope;

pub(crate) struct Order;
pub(crate) struct Read;
pub(crate) struct Manage;

impl Scope for Order {
    const NAME: &'static str = "shop:order";
}

impl Scope for Read {
    const NAME: &'static str = "shop:read";
}

impl Scope for Manage {
    const NAME: &'static str = "shop:manage";
}
