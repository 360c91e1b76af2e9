//! Child processes that never outlive us.
//!
//! Each child asks the kernel for SIGKILL when its parent dies (`setpriv
//! --pdeathsig`). "Parent" means the *thread* that started the child, and tokio may
//! end any of its threads, so a [`Spawner`] owns one thread that does nothing but
//! start children and that lives as long as any handle to them.
//!
//! One race remains: we may die after the fork and before the child has asked. So
//! the child looks, after asking, whether its parent is still us; if we died before
//! the question nobody will ever tell it, and it ends by itself.

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tokio::time::sleep;

use crate::{Error, procfs, user::User};

/// How often a child is asked whether it has ended.
const POLL: Duration = Duration::from_millis(5);

/// How long a dropped child may take to end after a signal, before we go on without it.
const FAREWELL: Duration = Duration::from_secs(2);

/// Replaced by the program when the parent is still the process named by `$0`.
const GUARD: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

/// What to run, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) dir: PathBuf,
    pub(crate) user: Option<User>,
}

/// The thread that starts children. It ends when its last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Spawner {
    jobs: mpsc::Sender<Job>,
}

#[derive(Debug)]
struct Job {
    command: Command,
    reply: mpsc::SyncSender<io::Result<Child>>,
}

/// A running child with all its descendants; dropping it kills them.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// Sent before SIGKILL on drop, for servers that have something to clean up.
    farewell: Option<Signal>,
}

/// The command that becomes `program` under a guard: it dies when the calling thread does.
pub(crate) fn guarded(program: &Path, user: Option<&User>) -> Command {
    let mut command = Command::new("setpriv");
    command
        .arg("--pdeathsig=KILL")
        .args(user.map(User::arguments).unwrap_or_default())
        .args(["--", "sh", "-c", GUARD])
        .arg(std::process::id().to_string())
        .arg(program);
    command
}

impl Launch {
    /// The command in a group of its own, with a clean environment, logging to `log`.
    fn command(&self, log: &Path) -> Result<Command, Error> {
        let open = || {
            File::options()
                .append(true)
                .create(true)
                .open(log)
                .map_err(Error::folder(log))
        };
        let mut command = guarded(&self.program, self.user.as_ref());
        command
            .args(&self.arguments)
            .current_dir(&self.dir)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs([("LC_ALL", "C.UTF-8"), ("TZ", "UTC")])
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(open()?)
            .stderr(open()?)
            // Ctrl-C in the terminal is for us alone; we stop the servers in order.
            .process_group(0);
        Ok(command)
    }
}

impl Spawner {
    /// Starts the thread.
    pub(crate) fn start() -> Result<Self, Error> {
        let (jobs, queue) = mpsc::channel::<Job>();
        thread::Builder::new()
            .name("tasuki-spawner".to_owned())
            .spawn(move || {
                for mut job in queue {
                    // The asker always waits; if it has gone, its child is dropped unseen.
                    if let Err(mpsc::SendError(Ok(child))) = job.reply.send(job.command.spawn()) {
                        drop(Process::new(child, None));
                    }
                }
            })
            .map_err(|source| Error::Spawn {
                program: "the thread that starts servers".to_owned(),
                source,
            })?;
        Ok(Self { jobs })
    }

    /// Starts a child that logs to `log`.
    pub(crate) fn spawn(
        &self,
        launch: &Launch,
        log: &Path,
        farewell: Option<Signal>,
    ) -> Result<Process, Error> {
        let (reply, answer) = mpsc::sync_channel(1);
        let command = launch.command(log)?;
        let lost = || io::Error::other("the thread that starts servers has ended");
        let child = self
            .jobs
            .send(Job { command, reply })
            .map_err(|_ended| lost())
            .and_then(|()| answer.recv().map_err(|_ended| lost())?);
        match child {
            Ok(child) => Ok(Process::new(child, farewell)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Missing {
                binary: "setpriv (package util-linux)",
                needed: "2.33".to_owned(),
            }),
            Err(source) => Err(Error::Spawn {
                program: launch.program.display().to_string(),
                source,
            }),
        }
    }
}

impl Process {
    fn new(child: Child, farewell: Option<Signal>) -> Self {
        Self { child, farewell }
    }

    /// The process id; it stays the same while `setpriv` and `sh` become the program.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, once it has ended.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until it ends by itself; `None` when it is still running at the deadline.
    pub(crate) async fn ended(&mut self, within: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            let status = self.exited();
            if status.is_some() || Instant::now() >= deadline {
                return status;
            }
            sleep(POLL).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exited().is_some() {
            return;
        }
        // A paused one would not hear it.
        if let Some(signal) = self.farewell
            && !procfs::is_stopped(self.pid())
        {
            procfs::signal(self.pid(), signal);
            if block_until(FAREWELL, || self.exited().is_some()) {
                return;
            }
        }
        let family = procfs::family(self.pid());
        for pid in &family {
            procfs::signal(*pid, Signal::KILL);
        }
        // What they held (memory, ports, files) is free only when all of them have gone.
        let gone = block_until(FAREWELL, || {
            self.exited().is_some() && !family.iter().any(|pid| procfs::is_alive(*pid))
        });
        if !gone {
            tracing::warn!(pid = self.pid(), "a killed process has not gone");
        }
    }
}

/// The same as [`until`] where nothing can be awaited.
fn block_until(within: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + within;
    while !condition() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(POLL);
    }
    true
}

/// Waits until `condition` holds; `false` when it does not before the deadline.
pub(crate) async fn until(within: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + within;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        sleep(POLL).await;
    }
}
