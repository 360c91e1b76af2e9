//! Three nodes lose nothing when one of them goes.

use std::time::{Duration, Instant};

use async_nats::jetstream::{self, Context, stream};
use tasuki_stack::{Nats, NatsCluster};
use tokio::time::{sleep, timeout};

use crate::support::{DEADLINE, folder, throwaway};

/// The leader, as soon as there is one other than `not`.
async fn leader<'a>(cluster: &'a NatsCluster, stream: &str, not: Option<&str>) -> &'a Nats {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match cluster.leader_of(stream).await {
            Ok(Some(node)) if Some(node.node()) != not => return node,
            other => assert!(Instant::now() < deadline, "no leader: {other:?}"),
        }
        // sleep: the pace of asking, within a deadline.
        sleep(Duration::from_millis(50)).await;
    }
}

/// Publishes until it is acknowledged; the same id again is the same message.
async fn publish(context: &Context, id: usize) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Nats-Msg-Id", id.to_string());
        let sent = context
            .publish_with_headers("kept", headers, id.to_string().into())
            .await;
        let acknowledged = match sent {
            Ok(future) => future.await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match acknowledged {
            Ok(_ack) => return,
            Err(error) => assert!(Instant::now() < deadline, "not acknowledged: {error}"),
        }
        // sleep: the pace of asking, within a deadline.
        sleep(Duration::from_millis(50)).await;
    }
}

async fn context(urls: Vec<String>) -> Context {
    let client = async_nats::connect(urls).await.expect("a connection");
    let mut context = jetstream::new(client);
    context.set_timeout(Duration::from_secs(2));
    context
}

#[tokio::test]
async fn killing_the_stream_leader_keeps_acknowledged_messages() {
    let folder = folder();
    let cluster = NatsCluster::start(&throwaway(&folder)).await.unwrap();
    let all = context(cluster.urls()).await;
    let config = stream::Config {
        name: "kept".to_owned(),
        num_replicas: 3,
        ..stream::Config::default()
    };
    all.create_stream(config).await.unwrap();
    for id in 0..20 {
        publish(&all, id).await;
    }

    let first = leader(&cluster, "kept", None).await;
    first.kill().await.unwrap();
    for id in 20..40 {
        publish(&all, id).await;
    }
    let second = leader(&cluster, "kept", Some(first.node())).await;

    // The killed node comes back, and a paused leader is as good as a dead one, except
    // that its clients do not notice; so this one asks another node.
    first.start().await.unwrap();
    let other = context(vec![first.url()]).await;
    second.pause().await.unwrap();
    for id in 40..60 {
        publish(&other, id).await;
    }
    second.resume().await.unwrap();

    let complete = async {
        loop {
            if let Ok(stream) = other.get_stream("kept").await
                && stream.cached_info().state.messages == 60
            {
                return;
            }
            // sleep: the pace of asking, within a deadline.
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(DEADLINE, complete)
        .await
        .expect("sixty messages, none twice");
}
