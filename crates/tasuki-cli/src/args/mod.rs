//! The command line.

mod conduct;
mod consumer;
mod relay;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use tasuki_service::auth::credentials::ScopeName;

use crate::platform::Name;

pub(crate) use conduct::{Conductor, Resolve, Saga, Sagas, Twopc, Twopcs};
pub(crate) use consumer::{Consumer, Consumers};
pub(crate) use relay::{Label, NewRule, Relay, Rule, Words};

/// Where help shows the options that every command has.
const GLOBAL: &str = "Global options";

/// A backend platform on PostgreSQL, NATS JetStream and Redis.
#[derive(Debug, Parser)]
#[command(name = "tasuki", version, max_term_width = 100)]
#[command(after_help = "\
First steps:
  tasuki up                 start everything on this machine
  tasuki status --wait 60s  wait until it is ready, then show how it is
  tasuki config show        every setting in force, and where it came from

Exit codes: 0 done; 1 failed; 2 wrong command line or configuration;
130 ended by a signal before it was ready, or by a second one.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) source: Source,

    /// Answer as JSON.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where settings come from, besides the environment.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Source {
    /// A configuration file in TOML.
    #[arg(long, global = true, env = "TASUKI_CONFIG", value_name = "FILE", help_heading = GLOBAL)]
    pub(crate) config: Option<PathBuf>,

    /// A file of variables, as `tasuki up` writes it; they win over the environment.
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    pub(crate) env_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start private servers and every service in this process, until Ctrl-C.
    Up(Up),
    /// Run services against existing servers, until SIGTERM or Ctrl-C.
    Serve(Serve),
    /// Bring the schemas of all services up to date.
    Migrate(Migrate),
    /// Show or check the configuration.
    #[command(subcommand)]
    Config(Config),
    /// Show what runs and how it is.
    ///
    /// Asks the address in `TASUKI_SYSTEM_URL` with the token in `TASUKI_OPERATOR_TOKEN`; where
    /// these are not set, the `tasuki up` that runs in this folder.
    Status(Status),
    /// Make, list and revoke API keys and operator tokens.
    #[command(subcommand)]
    Apikey(Apikey),
    /// Sign service tokens and rotate the keys that sign them.
    #[command(subcommand)]
    Token(Token),
    /// See and repair the outboxes: what waits, what is dead, what the broker lost.
    #[command(subcommand)]
    Outbox(Outbox),
    /// See what will not be retried by itself, and send it again or give it up.
    #[command(subcommand)]
    Dlq(Dlq),
    /// See the sagas, and help those that can't go on by themselves.
    Saga(Sagas),
    /// See the two-phase commits that have not ended, and help them to end.
    Twopc(Twopcs),
    /// See who follows a log, set one back, have its store made anew.
    Consumer(Consumers),
    /// See and say which topics the relay takes, who is banned, and what is labelled.
    #[command(subcommand)]
    Relay(Relay),
    /// Check that every change that was answered, and every order, has its events and its
    /// notifications, once.
    ///
    /// Walks from entitlement's audit, and from the orders that have ended, over the outbox and the
    /// inbox to the notifications, and compares the shop's books. Reports whatever is missing or
    /// double, with the window that was covered. Exit code 1 when there is anything.
    Verify(Verify),
    /// Watch a grant on its way, with times.
    ///
    /// Needs a running platform: `tasuki up` in this folder, or `--env-file`.
    Demo,
    /// Print the version.
    Version,
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Up {
    /// Log to this terminal instead of the log file.
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// The services to run.
    #[arg(required = true)]
    pub(crate) services: Vec<Name>,

    /// Run only this part of them.
    #[arg(long)]
    pub(crate) only: Option<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The API, without workers.
    Http,
    /// The workers, without the API.
    Workers,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Migrate {
    /// Change nothing; exit 1 when something is missing.
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Every setting in force, secrets hidden, with where it came from.
    Show {
        /// The commented defaults instead: the reference.
        #[arg(long)]
        defaults: bool,
    },
    /// Say whether the configuration is valid; exit 2 when it is not.
    Check,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    /// Wait until everything is ready, at most this long, e.g. 60s; exit 1 when it is not.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Apikey {
    /// Make a credential. It is shown once.
    Create {
        /// The service that accepts it.
        #[arg(long)]
        service: Name,
        /// Who will use it, for the list.
        #[arg(long)]
        name: String,
        /// What an API key allows, as service:verb; needed unless --operator is given, and may
        /// be given several times.
        #[arg(long = "scope", required_unless_present = "operator")]
        scopes: Vec<ScopeName>,
        /// An operator token instead of an API key: it allows everything.
        #[arg(long, conflicts_with = "scopes")]
        operator: bool,
        /// It stops working after this time, e.g. 90d.
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        expires_in: Option<Duration>,
    },
    /// List the credentials of a service, without their secrets.
    List {
        /// The service.
        #[arg(long)]
        service: Name,
    },
    /// Revoke a credential. It stops working within seconds.
    Revoke {
        /// The service.
        #[arg(long)]
        service: Name,
        /// Its id, as `list` shows it.
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Sign a token by which one service calls another.
    Sign {
        /// The calling service, whose key signs.
        #[arg(long)]
        from: Name,
        /// The service that is called.
        #[arg(long)]
        to: Name,
        /// The user on whose behalf.
        #[arg(long)]
        user: Option<String>,
        /// A role of that user; may be given several times.
        #[arg(long = "role")]
        roles: Vec<String>,
    },
    /// Make a new signing key for a service; running processes take it up within a second.
    Rotate {
        /// The service.
        #[arg(long)]
        service: Name,
        /// How many keys to keep, the new one included; 1 drops the old one at once, for a key
        /// that leaked.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..))]
        keep: u8,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Outbox {
    /// How the outboxes are: what waits, for how long, what is dead.
    List {
        /// The events that wait, one by one, the oldest first.
        #[arg(long)]
        waiting: bool,
        /// So many of each outbox at most.
        #[arg(long, requires = "waiting", default_value_t = 20)]
        limit: u32,
    },
    /// Where an event is.
    Show {
        /// The event.
        event: uuid::Uuid,
    },
    /// Send dead events again.
    Retry {
        /// These events.
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        events: Vec<uuid::Uuid>,
        /// All that are dead.
        #[arg(long)]
        all: bool,
    },
    /// Remove published events that are older than this, or than their retention if that is
    /// shorter, from every outbox. What waits or is dead stays.
    Cleanup {
        /// E.g. 7d.
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        older_than: Duration,
    },
    /// Compare what every outbox has published with what the broker holds, now, and send again what
    /// it lost.
    Reconcile,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Dlq {
    /// What is dead or set aside, the latest first: 200 of each service, all with --json.
    List(Dead),
    /// One of them, whole, with what was done about it.
    Show {
        /// Its id, as `list` shows it.
        id: String,
    },
    /// Send back to work.
    Redrive {
        #[command(flatten)]
        dead: Dead,
        #[command(flatten)]
        which: Which,
    },
    /// Give up, for good.
    Discard {
        #[command(flatten)]
        dead: Dead,
        #[command(flatten)]
        which: Which,
        /// Why. It is kept.
        #[arg(long)]
        reason: String,
    },
}

/// Which dead letters are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Dead {
    /// Of this service only.
    #[arg(long)]
    pub(crate) service: Option<Name>,
    /// Of this table only: `outbox_events`, `jobs`, `notifications_live`, or `broker` for messages
    /// that the broker gave up.
    #[arg(long)]
    pub(crate) source: Option<String>,
    /// Of this type of event or kind of job only.
    #[arg(long)]
    pub(crate) kind: Option<String>,
    /// Whose error has this in it.
    #[arg(long)]
    pub(crate) error: Option<String>,
}

/// One, some or all of them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Which {
    /// These, by the ids that `list` shows.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) ids: Vec<String>,
    /// All that are open and fit.
    #[arg(long)]
    pub(crate) all: bool,
    /// Only say which are meant, and how many.
    #[arg(long)]
    pub(crate) preview: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Verify {
    /// Changes of the last while only, e.g. 1h. Without it: as far back as published events are
    /// kept; give it after an `outbox cleanup` that removed more than that.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) since: Option<Duration>,
    /// What is younger than this may still be on its way.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) settle: Duration,
}
