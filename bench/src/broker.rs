//! What the broker takes without a database: a bare publisher that awaits its acknowledgements.
//!
//! Two ways, with the same messages: one by one with a number of them in flight, and in atomic
//! batches (server 2.12 or newer) with a number of batches in flight. The stream has the settings
//! that matter here: files, one replica, atomic batches allowed. Whether an acknowledgement waits
//! for the disk is the server's setting (`sync_interval: always` on a durable stack).

use std::{num::NonZeroU32, time::Instant};

use anyhow::{Context as _, bail};
use async_nats::{
    Client, ConnectOptions, HeaderMap, ServerAddr,
    jetstream::{self, Context, stream},
};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream as futures};
use serde::Deserialize;
use uuid::Uuid;

const STREAM: &str = "bench-publisher";
const SUBJECT: &str = "bench.publisher";

/// As large as a small event.
pub(crate) const BYTES: usize = 220;

/// How messages are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sending {
    /// Each by itself.
    Single,
    /// So many in one atomic batch.
    Batches(NonZeroU32),
}

/// An acknowledgement, of a message or of a whole batch.
#[derive(Debug, Deserialize)]
struct Answer {
    error: Option<serde_json::Value>,
    seq: Option<u64>,
}

/// Publishes `total` messages with `in_flight` messages or batches at a time, and says how many
/// were acknowledged per second.
pub(crate) async fn publish(
    url: &str,
    total: u32,
    sending: Sending,
    in_flight: NonZeroU32,
) -> anyhow::Result<f64> {
    let context = jetstream::new(connect(url).await.context("no broker")?);
    prepare(&context).await?;
    let payload = Bytes::from(vec![b'x'; BYTES]);
    let size = match sending {
        Sending::Single => 1,
        Sending::Batches(size) => usize::try_from(size.get())?,
    };
    let in_flight = usize::try_from(in_flight.get())?;
    let mut left = usize::try_from(total)?;
    let sizes = std::iter::from_fn(move || {
        let next = left.min(size);
        left -= next;
        (next > 0).then_some(next)
    });
    let started = Instant::now();
    futures::iter(sizes)
        .map(|count| send(&context, &payload, count, sending))
        .buffer_unordered(in_flight)
        .try_collect::<()>()
        .await?;
    let seconds = started.elapsed().as_secs_f64();
    check(&context, total).await?;
    context.delete_stream(STREAM).await?;
    Ok(f64::from(total) / seconds)
}

/// The client does not read user and password from the address by itself.
pub(crate) async fn connect(url: &str) -> anyhow::Result<Client> {
    let address: ServerAddr = url.parse()?;
    let options = match (address.username(), address.password()) {
        (Some(user), Some(password)) => {
            ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned())
        }
        _ => ConnectOptions::new(),
    };
    Ok(options.connect(address).await?)
}

/// Removes every stream, and with them what consumers have left to do.
pub(crate) async fn forget(url: &str) -> anyhow::Result<()> {
    let context = jetstream::new(connect(url).await.context("no broker")?);
    let names: Vec<String> = context.stream_names().try_collect().await?;
    for name in names {
        context.delete_stream(name).await?;
    }
    Ok(())
}

async fn prepare(context: &Context) -> anyhow::Result<()> {
    // It is there only if an earlier run was killed.
    let left_behind = context.get_stream(STREAM).await.is_ok();
    if left_behind {
        context.delete_stream(STREAM).await?;
    }
    let config = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec![SUBJECT.to_owned()],
        storage: stream::StorageType::File,
        allow_atomic_publish: true,
        ..stream::Config::default()
    };
    context.create_stream(config).await?;
    Ok(())
}

/// Sends `count` messages and waits until all of them are acknowledged.
async fn send(
    context: &Context,
    payload: &Bytes,
    count: usize,
    sending: Sending,
) -> anyhow::Result<()> {
    let batch = Uuid::now_v7().to_string();
    for number in 1..=count {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", Uuid::now_v7().to_string());
        if let Sending::Batches(_) = sending {
            headers.insert("Nats-Batch-Id", batch.as_str());
            headers.insert("Nats-Batch-Sequence", number.to_string());
        }
        if number < count {
            // Within a batch only the last message is answered.
            let client = context.client();
            client
                .publish_with_headers(SUBJECT, headers, payload.clone())
                .await?;
            continue;
        }
        if let Sending::Batches(_) = sending {
            headers.insert("Nats-Batch-Commit", "1");
        }
        let client = context.client();
        let answer = client
            .request_with_headers(SUBJECT, headers, payload.clone())
            .await?;
        let answer: Answer = serde_json::from_slice(&answer.payload)?;
        if answer.error.is_some() || answer.seq.is_none() {
            bail!("the broker refused a message: {answer:?}");
        }
    }
    Ok(())
}

/// A figure counts only if the stream holds what was sent.
async fn check(context: &Context, total: u32) -> anyhow::Result<()> {
    let mut stream = context.get_stream(STREAM).await?;
    let held = stream.info().await?.state.messages;
    if held != u64::from(total) {
        bail!("{total} messages were acknowledged, and the stream holds {held}");
    }
    Ok(())
}
