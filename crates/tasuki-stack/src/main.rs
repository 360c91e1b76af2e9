//! `tasuki-stack exec -- <command>`: runs a command beside a private stack.
//!
//! The command finds the servers in its environment. It shares our process group, so
//! Ctrl-C reaches it from the terminal; SIGTERM and SIGHUP are passed on. The stack ends
//! after the command, and both end when we are killed.

use std::{
    ffi::OsString,
    io,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{ExitCode, ExitStatus},
};

use clap::{Args, Parser, Subcommand};
use rustix::process::{Pid, Signal, kill_process};
use tasuki_stack::{Error, Options, Stack};
use tokio::{
    process::{Child, Command},
    signal::unix::{self, SignalKind},
};

/// Private PostgreSQL, NATS JetStream and Redis.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Runs a command beside a private stack, and passes its exit code on.
    ///
    /// The command finds `TASUKI_TEST_DATABASE_URL`, `TASUKI_TEST_NATS_URL`,
    /// `TASUKI_TEST_REDIS_URL` and the variables of `psql` in its environment.
    Exec(Exec),
}

#[derive(Debug, Args)]
struct Exec {
    /// The folder for the stack's data; wiped first unless --keep is given.
    #[arg(long, default_value = ".tasuki/test")]
    dir: PathBuf,
    /// Survive a crash of the machine: slower, as in production.
    #[arg(long)]
    durable: bool,
    /// Use the data that is there, and keep it.
    #[arg(long)]
    keep: bool,
    /// The command and its arguments, after `--`.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// The signals that we pass on or sit out.
#[derive(Debug)]
struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hangup: unix::Signal,
}

// On the main thread, which lives as long as the process: the command dies with its thread.
#[tokio::main]
async fn main() -> ExitCode {
    let Cli {
        verb: Verb::Exec(exec),
    } = Cli::parse();
    match exec.run().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tasuki-stack: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Exec {
    async fn run(&self) -> Result<ExitCode, Error> {
        let mut signals = Signals::listen().map_err(|source| Error::Spawn {
            program: "the listener for signals".to_owned(),
            source,
        })?;
        let stack = tokio::select! {
            stack = Stack::start(self.options()) => stack?,
            signal = signals.any() => return Ok(code(128 + signal.as_raw())),
        };
        let status = match self.spawn(&stack) {
            Ok(child) => signals.wait(child).await,
            Err(error) => Err(error),
        };
        let status = status.map_err(|source| Error::Spawn {
            program: self.name(),
            source,
        });
        let success = status.as_ref().is_ok_and(ExitStatus::success);
        if success && !self.keep {
            stack.remove().await?;
        } else {
            stack.stop().await?;
        }
        if !success && !self.keep {
            self.say_where();
        }
        let status = status?;
        let signal = status.signal().map(|signal| 128 + signal);
        Ok(code(status.code().or(signal).unwrap_or(1)))
    }

    fn options(&self) -> Options {
        let options = Options::new(&self.dir);
        let options = if self.durable {
            options.durable()
        } else {
            options
        };
        if self.keep { options } else { options.wiped() }
    }

    fn spawn(&self, stack: &Stack) -> io::Result<Child> {
        let postgres = &stack.postgres;
        Command::from(tasuki_stack::mortal(Path::new(&self.name())))
            .args(self.command.iter().skip(1))
            .env("TASUKI_TEST_DATABASE_URL", postgres.url("postgres"))
            .env("TASUKI_TEST_NATS_URL", stack.nats.url())
            .env("TASUKI_TEST_REDIS_URL", stack.redis.url())
            .env("PGHOST", "127.0.0.1")
            .env("PGPORT", postgres.port().to_string())
            .env("PGUSER", postgres.user())
            .env("PGPASSWORD", postgres.password())
            .env("PGDATABASE", "postgres")
            .kill_on_drop(true)
            .spawn()
    }

    fn name(&self) -> String {
        let name = self.command.first();
        name.map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    fn say_where(&self) {
        let durable = if self.durable { " --durable" } else { "" };
        let dir = self.dir.display();
        eprintln!(
            "tasuki-stack: the data is kept, look into it with `tasuki-stack exec --keep{durable} --dir {dir} -- psql -l`"
        );
    }
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
            hangup: unix::signal(SignalKind::hangup())?,
        })
    }

    async fn any(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hangup.recv() => Signal::HUP,
        }
    }

    /// Waits for the command, and passes on what the terminal does not send to it anyway.
    async fn wait(&mut self, mut child: Child) -> io::Result<ExitStatus> {
        loop {
            tokio::select! {
                status = child.wait() => return status,
                signal = self.any() => {
                    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
                    if let Some(pid) = pid.and_then(Pid::from_raw)
                        && signal != Signal::INT
                    {
                        kill_process(pid, signal)?;
                    }
                }
            }
        }
    }
}

fn code(number: i32) -> ExitCode {
    u8::try_from(number).map_or(ExitCode::FAILURE, ExitCode::from)
}
