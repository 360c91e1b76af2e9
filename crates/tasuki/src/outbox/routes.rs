//! Which event goes where.

use std::collections::HashMap;
use std::sync::Arc;

/// Maps event types to subjects, with a default.
#[derive(Clone, Debug)]
#[must_use]
pub struct Routes {
    default: Arc<str>,
    by_type: HashMap<String, Arc<str>>,
}

impl Routes {
    /// Everything goes to `subject`.
    pub fn to(subject: &str) -> Self {
        Self {
            default: subject.into(),
            by_type: HashMap::new(),
        }
    }

    /// Events of this type go to `subject` instead.
    pub fn route(mut self, event_type: &str, subject: &str) -> Self {
        self.by_type.insert(event_type.to_owned(), subject.into());
        self
    }

    /// Where events of this type go.
    #[must_use]
    pub fn subject(&self, event_type: &str) -> Arc<str> {
        Arc::clone(self.by_type.get(event_type).unwrap_or(&self.default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_goes_where_its_type_says_or_to_the_default() {
        let routes = Routes::to("shop.events").route("OrderPaid", "shop.payments");
        assert_eq!(&*routes.subject("OrderPaid"), "shop.payments");
        assert_eq!(&*routes.subject("OrderPlaced"), "shop.events");
    }
}
