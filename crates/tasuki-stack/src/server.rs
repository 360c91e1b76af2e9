//! One server process: started, asked whether it is ready, stopped, and broken on purpose.
//!
//! [`Postgres`](crate::Postgres), [`Nats`](crate::Nats) and [`Redis`](crate::Redis) deref
//! to [`Server`], so every server is killed, paused and restarted by the same words.
//!
//! Invariant: while a handle exists, the process id it signals is not reused, because
//! the child is reaped only by its handle.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use crate::{
    Error, Proxy,
    home::Home,
    log, nats, pgbouncer,
    port::{self, Owner, Port, loopback},
    postgres,
    process::{self, Launch, Process},
    procfs, redis,
};

/// How long a server may take to become ready; recovery on a loaded machine is slow.
const START_DEADLINE: Duration = Duration::from_secs(90);
/// How long one question whether it is ready may take.
const ASK_DEADLINE: Duration = Duration::from_secs(5);
/// How often that is asked.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// How long an orderly stop may take before it becomes a kill.
const STOP_DEADLINE: Duration = Duration::from_secs(20);
/// How long signals may take to have their effect.
const SIGNAL_DEADLINE: Duration = Duration::from_secs(10);
/// How long the port of a predecessor may take to become free.
const PORT_GRACE: Duration = Duration::from_secs(2);
/// How many fresh ports may be lost to other programs.
const PORT_TRIES: usize = 5;

/// A private server. It runs until [`Server::stop`], [`Server::kill`] or the drop of its handle.
#[derive(Debug)]
pub struct Server {
    // Dropped first: the home may remove the folder when the last server lets go of it.
    process: Mutex<Option<Process>>,
    pid: AtomicU32,
    plan: Plan,
    home: Arc<Home>,
}

/// What a kind of server brings along.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) port: u16,
    pub(crate) log: PathBuf,
    pub(crate) launch: Launch,
    pub(crate) probe: Probe,
    /// Asks for an orderly stop.
    pub(crate) stop: Signal,
    /// Asks for a quick end that leaves nothing behind in the system.
    pub(crate) farewell: Option<Signal>,
}

/// How to ask a server over its own protocol whether it is ready.
#[derive(Debug)]
pub(crate) enum Probe {
    Postgres(postgres::Probe),
    Nats(nats::Probe),
    Redis(redis::Probe),
    PgBouncer(pgbouncer::Probe),
}

impl Server {
    /// Starts a server on the port of `owner`. When a port that was chosen just now is
    /// lost to another program, another one is chosen.
    pub(crate) async fn launch(
        home: &Arc<Home>,
        owner: Owner,
        mut plan: impl FnMut(u16) -> Result<Plan, Error>,
    ) -> Result<Self, Error> {
        let mut tries = 0;
        loop {
            let port = home.port(owner)?;
            let server = Self::new(home, plan(port.number())?);
            tries += 1;
            match (server.start().await, port) {
                (Ok(()), _) => return Ok(server),
                (Err(Error::PortTaken { .. }), Port::Fresh(_)) if tries < PORT_TRIES => {
                    home.forget_port(owner);
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// A server that is not running yet.
    pub(crate) fn new(home: &Arc<Home>, plan: Plan) -> Self {
        Self {
            process: Mutex::new(None),
            pid: AtomicU32::new(0),
            plan,
            home: Arc::clone(home),
        }
    }

    /// What people call it: `PostgreSQL`, `NATS`, `Redis` or `PgBouncer`.
    pub fn name(&self) -> &'static str {
        self.plan.name
    }

    /// The loopback port that it listens on, the same in every start.
    pub fn port(&self) -> u16 {
        self.plan.port
    }

    /// The version of its program, such as `15.13`.
    pub fn version(&self) -> &str {
        &self.plan.version
    }

    /// The process id; after its end, the last one it had.
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Its log file.
    pub fn log(&self) -> &Path {
        &self.plan.log
    }

    /// Whether the process exists (a paused one does).
    pub fn is_running(&self) -> bool {
        self.locked()
            .as_mut()
            .is_some_and(|process| process.exited().is_none())
    }

    /// Starts it on its port and its data, and waits until it is ready.
    /// One that is running is left alone.
    pub async fn start(&self) -> Result<(), Error> {
        if self.is_running() {
            return Ok(());
        }
        self.plan.probe.prepare().await?;
        // A predecessor that is being killed vanishes from our sight (it has no command line
        // any more) a moment before the kernel closes its sockets.
        if !process::until(PORT_GRACE, || port::is_free(self.port())).await {
            return Err(self.port_taken());
        }
        let written = log::prepare(&self.plan.log);
        let process =
            self.home
                .spawner
                .spawn(&self.plan.launch, &self.plan.log, self.plan.farewell)?;
        self.pid.store(process.pid(), Ordering::Relaxed);
        *self.locked() = Some(process);
        let ready = self.wait_until_ready(written).await;
        if ready.is_err() {
            self.locked().take();
        }
        ready
    }

    /// Stops it in an orderly way, waits until it is gone, and kills it if that takes too long.
    pub async fn stop(&self) -> Result<(), Error> {
        if !self.is_running() {
            return Ok(());
        }
        let signal = match self.plan.farewell {
            Some(farewell) if self.home.is_throwaway() => farewell,
            _ => self.plan.stop,
        };
        procfs::signal(self.pid(), signal);
        // A paused server takes the signal when it continues.
        for pid in procfs::family(self.pid()) {
            procfs::signal(pid, Signal::CONT);
        }
        if process::until(STOP_DEADLINE, || !self.is_running()).await {
            return Ok(());
        }
        tracing::warn!(server = self.plan.name, "server did not stop, killing it");
        self.kill().await
    }

    /// Stops it in an orderly way and starts it again.
    pub async fn restart(&self) -> Result<(), Error> {
        self.stop().await?;
        self.start().await
    }

    /// Kills it and all its processes with SIGKILL, as a crash would, and waits until they are gone.
    pub async fn kill(&self) -> Result<(), Error> {
        let pid = self.running()?;
        // A stopped parent makes no more children, so that the list is complete.
        procfs::signal(pid, Signal::STOP);
        process::until(SIGNAL_DEADLINE, || {
            procfs::is_stopped(pid) || !procfs::is_alive(pid)
        })
        .await;
        let family = procfs::family(pid);
        for pid in &family {
            procfs::signal(*pid, Signal::KILL);
        }
        let gone = process::until(SIGNAL_DEADLINE, || {
            !self.is_running() && !family.iter().any(|pid| procfs::is_alive(*pid))
        });
        self.judge(gone.await, "killed")
    }

    /// Stops the clock for it and all its processes (SIGSTOP): connections stay open and
    /// new ones are even accepted by the kernel, but nobody answers. Waits until all stand still.
    pub async fn pause(&self) -> Result<(), Error> {
        let pid = self.running()?;
        let still = process::until(SIGNAL_DEADLINE, || {
            // Parents first, again and again: a child may be born while we look.
            let family = procfs::family(pid);
            let moving: Vec<_> = family
                .into_iter()
                .filter(|pid| !procfs::is_stopped(*pid))
                .collect();
            for pid in &moving {
                procfs::signal(*pid, Signal::STOP);
            }
            moving.is_empty()
        });
        self.judge(still.await, "paused")
    }

    /// Lets a paused server continue, and waits until all its processes do.
    pub async fn resume(&self) -> Result<(), Error> {
        let pid = self.running()?;
        let moving = process::until(SIGNAL_DEADLINE, || {
            let family = procfs::family(pid);
            let still: Vec<_> = family
                .into_iter()
                .filter(|pid| procfs::is_stopped(*pid))
                .collect();
            for pid in still.iter().rev() {
                procfs::signal(*pid, Signal::CONT);
            }
            still.is_empty()
        });
        self.judge(moving.await, "resumed")
    }

    /// A proxy in front of it, to cut and slow connections.
    pub async fn proxy(&self) -> Result<Proxy, Error> {
        Proxy::start(loopback(self.port())).await
    }

    pub(crate) fn home(&self) -> &Arc<Home> {
        &self.home
    }

    fn running(&self) -> Result<u32, Error> {
        if self.is_running() {
            return Ok(self.pid());
        }
        Err(Error::NotRunning {
            server: self.plan.name,
        })
    }

    fn judge(&self, reached: bool, done: &'static str) -> Result<(), Error> {
        if reached {
            return Ok(());
        }
        Err(Error::Signal {
            server: self.plan.name,
            done,
            waited: SIGNAL_DEADLINE,
        })
    }

    async fn wait_until_ready(&self, written: u64) -> Result<(), Error> {
        let deadline = Instant::now() + START_DEADLINE;
        let mut why = "it did not answer".to_owned();
        loop {
            if !self.is_running() {
                return Err(self.died(written));
            }
            match timeout(ASK_DEADLINE, self.plan.probe.ask(self.port(), self.pid())).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(answer)) => why = answer,
                Err(_elapsed) => {}
            }
            if Instant::now() >= deadline {
                return Err(Error::NotReady {
                    server: self.plan.name,
                    waited: START_DEADLINE,
                    why,
                    log: self.plan.log.clone(),
                });
            }
            sleep(ASK_EVERY).await;
        }
    }

    /// Why it ended by itself: it lost its port, or its log knows.
    fn died(&self, written: u64) -> Error {
        let status = self.locked().as_mut().and_then(Process::exited);
        if !port::is_free(self.port()) {
            return self.port_taken();
        }
        Error::Died {
            server: self.plan.name,
            status: status.map_or_else(|| "unknown".to_owned(), |status| status.to_string()),
            log: self.plan.log.clone(),
            tail: log::tail(&self.plan.log, written),
        }
    }

    fn port_taken(&self) -> Error {
        Error::PortTaken {
            server: self.plan.name,
            port: self.port(),
        }
    }

    fn locked(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Probe {
    /// Clears what a killed predecessor left in the way.
    async fn prepare(&self) -> Result<(), Error> {
        match self {
            Self::Postgres(probe) => probe.prepare().await,
            Self::Nats(_) | Self::Redis(_) | Self::PgBouncer(_) => Ok(()),
        }
    }

    /// Asks over the server's protocol; an answer from a stranger on its port does not count.
    async fn ask(&self, port: u16, pid: u32) -> Result<(), String> {
        match self {
            Self::Postgres(probe) => probe.ask(port).await,
            Self::Nats(probe) => probe.ask(port).await,
            Self::Redis(probe) => probe.ask(port, pid).await,
            Self::PgBouncer(probe) => probe.ask(port).await,
        }
    }
}
