//! Ids that were seen lately: so many, the oldest forgotten first.

use std::collections::{HashSet, VecDeque};

use crate::nostr::Id;

/// Ids that are remembered.
const REMEMBERED: usize = 4096;

/// What was seen lately.
#[derive(Debug, Default)]
pub(super) struct Recent {
    known: HashSet<Id>,
    order: VecDeque<Id>,
}

impl Recent {
    /// Remembers it; answers whether it was not known.
    pub(super) fn is_new(&mut self, id: Id) -> bool {
        if !self.known.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_remembered_and_the_oldest_is_forgotten_first() {
        let id = |n: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&n.to_be_bytes());
            Id(bytes)
        };
        let mut recent = Recent::default();
        assert!((0..REMEMBERED).all(|n| recent.is_new(id(n))));
        assert!((0..REMEMBERED).all(|n| !recent.is_new(id(n))));
        assert!(recent.is_new(id(REMEMBERED)));
        assert!(!recent.is_new(id(1)) && recent.is_new(id(0)));
        assert_eq!(recent.order.len(), recent.known.len());
        assert_eq!(recent.known.len(), REMEMBERED);
    }
}
