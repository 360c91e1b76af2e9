//! The bus: the conformance suite on both implementations, and what only one of them can be
//! asked.

mod consumer;
mod faults;
mod jetstream;

use async_nats::Client;
use tasuki::bus::conformance::Fixture;
use tasuki::bus::{MemoryBus, Message, NatsBus, StreamSpec};
use tasuki::worker::Error;
use tasuki::{Clock, uuid_v7};
use tasuki_testkit::Servers;
use uuid::Uuid;

mod memory {
    tasuki::bus_conformance!(super::InMemory::new());
}

mod nats {
    tasuki::bus_conformance!(super::OnNats::new().await);
}

struct InMemory(MemoryBus);

impl InMemory {
    fn new() -> Self {
        Self(MemoryBus::new())
    }
}

impl Fixture for InMemory {
    type Bus = MemoryBus;

    fn prefix(&self) -> &str {
        "t"
    }

    fn bus(&self, own: Vec<StreamSpec>) -> MemoryBus {
        own.into_iter()
            .fold(self.0.clone(), |bus, spec| bus.with_stream(spec))
    }

    async fn delete_stream(&self, stream: &str) -> Result<(), Error> {
        self.0.delete_stream(stream);
        Ok(())
    }

    async fn delete_message(&self, stream: &str, sequence: u64) -> Result<(), Error> {
        self.0.delete_message(stream, sequence);
        Ok(())
    }
}

struct OnNats {
    prefix: String,
    client: Client,
}

impl OnNats {
    async fn new() -> Self {
        let url = &Servers::get().await.nats;
        Self::on(async_nats::connect(url).await.unwrap())
    }

    fn on(client: Client) -> Self {
        let prefix = format!("t_{}", id().simple());
        Self { prefix, client }
    }

    fn jetstream(&self) -> async_nats::jetstream::Context {
        async_nats::jetstream::new(self.client.clone())
    }

    fn spec(&self) -> StreamSpec {
        StreamSpec::new(format!("{}-s", self.prefix), [format!("{}.>", self.prefix)])
    }

    fn message(&self) -> Message {
        Message::new(id(), format!("{}.x", self.prefix), "payload")
    }

    fn messages(&self, count: usize) -> Vec<Message> {
        (0..count).map(|_| self.message()).collect()
    }
}

impl Fixture for OnNats {
    type Bus = NatsBus;

    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn bus(&self, own: Vec<StreamSpec>) -> NatsBus {
        own.into_iter()
            .fold(NatsBus::new(self.client.clone()), NatsBus::with_stream)
    }

    async fn delete_stream(&self, stream: &str) -> Result<(), Error> {
        self.jetstream().delete_stream(stream).await?;
        Ok(())
    }

    async fn delete_message(&self, stream: &str, sequence: u64) -> Result<(), Error> {
        let stream = self.jetstream().get_stream(stream).await?;
        stream.delete_message(sequence).await?;
        Ok(())
    }
}

fn id() -> Uuid {
    uuid_v7(&Clock::system())
}
