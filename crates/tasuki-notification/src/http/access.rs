//! What API keys can be allowed to do here. Services that call for a user may do it to what is
//! that user's.

use tasuki_service::auth::Scope;

pub(crate) struct Read;
pub(crate) struct Write;

impl Scope for Read {
    const NAME: &'static str = "notification:read";
}

impl Scope for Write {
    const NAME: &'static str = "notification:write";
}
