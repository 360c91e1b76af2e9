//! Signatures, checked together and off the threads that serve connections: one takes as long as a round
//! trip on a local network, and a flood of them would hold up everybody else.

use std::sync::Arc;

use tasuki::batch::{Group, Ran};
use tokio::task::spawn_blocking;

use crate::nostr::{Event, Fault, Parsed};

/// Checks signatures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verify;

impl Group for Verify {
    type Command = Parsed;
    type Reply = Arc<Event>;
    type Error = Fault;

    async fn run(&self, events: &[Parsed]) -> Ran<Arc<Event>, Fault> {
        let events = events.to_vec();
        let check = move || events.iter().map(Parsed::verify).collect();
        let checked = spawn_blocking(check).await;
        checked.map_err(|_panic| Fault::new("the signature could not be checked"))
    }
}
