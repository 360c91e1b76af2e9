//! Background work: one trait, one loop, one supervisor.
//!
//! A [`Worker`] does one unit of work per [`tick`](Worker::tick) and says whether there was
//! any. A tick takes no input, may run twice, and reads what to do from the database; so a
//! [`Wake`] only shortens the wait, a lost one costs at most one poll, and a test can
//! [`drain`] the very tick that production runs.
//!
//! The [`Supervisor`] runs the loop of every worker, contains panics, backs off after
//! failures, knows how each worker is ([`Health`]), and stops them in order: no new tick,
//! wait for the running ones and for what they left running ([`finish`](Worker::finish)), cut
//! what is left after the grace time, let every worker [`release`](Worker::release) what it
//! still holds.
//!
//! Not promised: that a tick runs at an exact time, or that two processes don't run the
//! same worker at once. What must happen once is decided by the database.

mod bell;
mod health;
mod listen;
mod pace;
mod run;
mod store;
mod supervisor;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

pub use bell::{Bell, Ringer};
pub use health::{Health, Outcome, State};
pub use listen::Listener;
pub(crate) use run::panic_message;
pub(crate) use store::notify;
pub use supervisor::{Stopped, Supervisor};

/// Any error that a tick can end with. The supervisor logs it with its sources.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// What a tick found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tick {
    /// There was work, and there may be more: tick again at once.
    Worked,
    /// Nothing to do: wait for a wake or the poll interval.
    Idle,
}

/// Background work, one unit at a time.
pub trait Worker: Send + Sync + 'static {
    /// `<service>.<noun>`: names the worker in logs, metrics and on the status page.
    fn name(&self) -> &str;

    /// How long an idle worker waits before it looks again by itself.
    fn poll_interval(&self) -> Duration;

    /// What wakes it. Asked for once, as it is started; a worker that is to be woken by others
    /// answers with a clone of the wake that they have.
    fn wake(&self) -> Wake {
        Wake::default()
    }

    /// A tick that runs for longer counts as stalled and is shown as such.
    fn stall_after(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// A tick that runs for longer is cut and counts as failed: whatever it waits for, a
    /// connection that died unseen say, another one may find well.
    fn tick_limit(&self) -> Duration {
        Duration::from_secs(300)
    }

    /// Does one unit of work.
    ///
    /// Dropping the future at any await must be safe: that is what happens at the tick limit
    /// and when the grace time of a shutdown ends, and it is no worse than a crash.
    fn tick(&self) -> impl Future<Output = Result<Tick, Error>> + Send;

    /// Waits for what the ticks have left running. Called once, after the last tick; cut, like a
    /// tick, when the grace time ends.
    fn finish(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Gives back what is still claimed, so that nobody has to wait for a lease to expire.
    /// Called once, after [`finish`](Self::finish).
    fn release(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Tells one worker that there may be work. Cheap, never blocks, remembers one call.
#[derive(Clone, Debug, Default)]
pub struct Wake(Arc<Notify>);

impl Wake {
    /// Wakes the worker now, or as soon as its running tick ends.
    pub fn wake(&self) {
        self.0.notify_one();
    }

    async fn woken(&self) {
        self.0.notified().await;
    }
}

/// Runs the production tick until it is idle and says how many ticks had work. For tests.
///
/// # Errors
/// The first error of a tick; or, after 10,000 ticks, that the worker never becomes idle.
pub async fn drain(worker: &impl Worker) -> Result<usize, Error> {
    const ENOUGH: usize = 10_000;
    for worked in 0..ENOUGH {
        match worker.tick().await? {
            Tick::Worked => {}
            Tick::Idle => return Ok(worked),
        }
    }
    Err(format!(
        "{} still has work after {ENOUGH} ticks: does its tick finish what it takes?",
        worker.name()
    )
    .into())
}
