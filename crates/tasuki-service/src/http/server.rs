//! The accept loop: bounded connections, timeouts that a silent client can't outlive, and a
//! stop that loses nothing that was accepted.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;
use tower::ServiceBuilder;

use super::extract::Peer;
use super::protocol::{Guarded, Progress};
use super::proxies::Proxies;
use crate::config;
use crate::shutdown::Phases;

/// How long a connection without a request is kept once we stop: its request may be on its
/// way, and hyper would close the connection under it.
const LAST_CALL: Duration = Duration::from_millis(500);
/// The pause after an accept that failed for want of resources, such as file handles.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `router` on `listener` until `phases` say stop: the listener closes, connections
/// finish the request that they are in, and what is left when the grace time ends is cut.
///
/// # Errors
/// When the listener can't be used.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    settings: config::Http,
    phases: Phases,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = net::TcpListener::from_std(listener)?;
    let max_connections = usize::try_from(settings.max_connections.get()).unwrap_or(usize::MAX);
    let room = Arc::new(Semaphore::new(max_connections));
    let connections = TaskTracker::new();
    let open = |stream, permit| {
        let connection = connection(stream, router.clone(), settings.clone(), phases.clone());
        connections.spawn(hold(permit, connection));
    };
    loop {
        let accepted = tokio::select! {
            biased;
            () = phases.closing() => break,
            accepted = accept(&listener, &room) => accepted,
        };
        match accepted {
            Ok((stream, permit)) => open(stream, Some(permit)),
            Err(error) => {
                tracing::warn!(error = %error, "connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // The kernel has completed the handshake of whoever waits in the queue: closing the
    // listener now would reset them.
    let listener = listener.into_std()?;
    while let Ok((stream, _)) = listener.accept() {
        match adopt(stream) {
            Ok(stream) => open(stream, None),
            Err(error) => tracing::warn!(error = %error, "last connection was lost"),
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
    Ok(())
}

async fn accept(
    listener: &net::TcpListener,
    room: &Arc<Semaphore>,
) -> io::Result<(net::TcpStream, OwnedSemaphorePermit)> {
    // The semaphore is never closed, so this only waits.
    let permit = Arc::clone(room)
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

fn adopt(stream: TcpStream) -> io::Result<net::TcpStream> {
    stream.set_nonblocking(true)?;
    net::TcpStream::from_std(stream)
}

async fn hold(permit: Option<OwnedSemaphorePermit>, connection: impl Future<Output = ()>) {
    connection.await;
    drop(permit);
}

async fn connection(
    stream: net::TcpStream,
    router: Router,
    settings: config::Http,
    phases: Phases,
) {
    // Answers are written whole; waiting to fill a packet only adds delay.
    stream.set_nodelay(true).unwrap_or_default();
    let Ok(peer) = stream.peer_addr() else {
        return; // It has left already.
    };
    let proxies = Proxies::new(&settings.trusted_proxies);
    let progress = Progress::default();
    let stream = Guarded::new(stream, progress.clone(), settings.write_timeout);
    let service = ServiceBuilder::new()
        .map_request(move |mut request: Request<Incoming>| {
            let caller = proxies.caller(peer.ip(), request.headers());
            request.extensions_mut().insert(Peer(caller));
            request
        })
        .map_response(move |response| progress.follow(response))
        .service(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.head_timeout)
        .max_buf_size(settings.max_head.bytes())
        // A client that has said all it has to say still wants its answer.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let last_call = async {
        phases.closing().await;
        tokio::time::sleep(LAST_CALL).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = last_call => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                () = phases.cutting() => return tracing::warn!("connection cut at shutdown"),
            }
        }
    };
    if let Err(error) = ended {
        // Clients hang up, stall and talk nonsense all day: not our fault, not our alarm.
        tracing::debug!(error = %error, "connection ended early");
    }
}
