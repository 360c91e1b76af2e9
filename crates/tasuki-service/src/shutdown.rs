//! Stopping is an operation with an order.
//!
//! Signal → *draining*: `/readyz` fails, answers ask clients to leave → after the drain delay
//! *closing*: listeners close, workers claim nothing more, what runs is finished → after the
//! grace time *cutting*: the rest is cut, leases go back. A second signal exits at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::config;

/// How far a stop has come. Clones share it; nothing here is global, so that two platforms
/// fit into one test.
#[derive(Clone, Debug, Default)]
pub struct Phases {
    draining: CancellationToken,
    closing: CancellationToken,
    cutting: CancellationToken,
    failed: CancellationToken,
}

impl Phases {
    /// Nobody has said stop.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether somebody has said stop.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Says stop. What follows is the business of [`walk`](Self::walk).
    pub fn stop(&self) {
        self.draining.cancel();
    }

    /// Says stop because something broke that this process can't do without.
    pub fn fail(&self) {
        self.failed.cancel();
        self.stop();
    }

    /// Whether the stop is because something broke.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.is_cancelled()
    }

    /// Waits until somebody says stop.
    pub fn draining(&self) -> WaitForCancellationFuture<'_> {
        self.draining.cancelled()
    }

    /// Waits until nothing new is to be taken on.
    pub fn closing(&self) -> WaitForCancellationFuture<'_> {
        self.closing.cancelled()
    }

    /// Waits until what still runs is to be cut.
    pub fn cutting(&self) -> WaitForCancellationFuture<'_> {
        self.cutting.cancelled()
    }

    /// Goes through the phases once somebody has said stop, with `finish` as what has to end
    /// within the grace time; when it does, nothing is cut.
    pub async fn walk(&self, times: config::Shutdown, finish: impl Future<Output = ()>) {
        self.draining().await;
        tokio::time::sleep(times.drain_delay).await;
        self.closing.cancel();
        let mut finish = std::pin::pin!(finish);
        if tokio::time::timeout(times.grace, finish.as_mut())
            .await
            .is_err()
        {
            tracing::warn!(
                grace_s = times.grace.as_secs(),
                "grace time is over, cutting"
            );
            self.cutting.cancel();
            finish.await;
        }
    }
}

/// The signals that ask a process to stop.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From now on SIGINT and SIGTERM arrive here and don't end the process by themselves.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
