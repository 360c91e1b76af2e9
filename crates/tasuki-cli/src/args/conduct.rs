//! The command line of what is conducted: sagas and two-phase commits.

use clap::Subcommand;
use serde_json::Value;
use tasuki::saga::SagaId;
use tasuki::twopc::TransactionId;

use crate::platform::Name;

/// Whose sagas and two-phase commits are meant.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Conductor {
    /// Of this service.
    #[arg(long, global = true, value_enum, default_value_t = Name::Shop)]
    pub(crate) service: Name,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Sagas {
    #[command(flatten)]
    pub(crate) conductor: Conductor,
    #[command(subcommand)]
    pub(crate) command: Saga,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Twopcs {
    #[command(flatten)]
    pub(crate) conductor: Conductor,
    #[command(subcommand)]
    pub(crate) command: Twopc,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Saga {
    /// Those that need attention first, then those under way, then those that have ended; the
    /// newest first in each.
    List {
        /// Of this definition only.
        #[arg(long = "saga", value_name = "NAME")]
        definition: Option<String>,
        /// In this state only: `NEEDS_ATTENTION`, `COMPENSATING`, `COMPLETED`, `COMPENSATED`, `STARTED`
        /// (all that go forward), or the name of a step that they have come to.
        #[arg(long)]
        state: Option<String>,
        /// At most this many.
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// One of them, whole: every step, also those still before it, and what people did about it. Of
    /// an order that no saga moves, the story of its events.
    Show {
        /// Its id, as `list` shows it.
        id: SagaId,
    },
    /// Try again what they are stuck at, with all its attempts.
    Resume {
        /// These, by the ids that `list` shows.
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        ids: Vec<SagaId>,
        /// All that need attention.
        #[arg(long)]
        all: bool,
        /// Of this definition only.
        #[arg(long = "saga", value_name = "NAME", requires = "all")]
        definition: Option<String>,
        /// Only say which are meant.
        #[arg(long)]
        preview: bool,
        #[command(flatten)]
        why: Why,
    },
    /// Send one forward again that is stuck, from a step on.
    Retry {
        /// Its id, as `list` shows it.
        id: SagaId,
        /// From this step on. What is before it must be done; it, and what is behind it, must not
        /// be, or be undone.
        #[arg(long, value_name = "STEP")]
        from: String,
        #[command(flatten)]
        why: Why,
    },
    /// Let one go on as if the step that it is stuck at, or its compensation, were done.
    Skip {
        /// Its id, as `list` shows it.
        id: SagaId,
        /// The step that it is stuck at.
        #[arg(long)]
        step: String,
        /// What the step would have given, as JSON; null without it. A compensation gives nothing.
        #[arg(long, value_name = "JSON", value_parser = json)]
        output: Option<Value>,
        #[command(flatten)]
        why: Why,
    },
    /// End one. Nothing more is done or undone.
    Close {
        /// Its id, as `list` shows it.
        id: SagaId,
        #[command(flatten)]
        ended: Ended,
        #[command(flatten)]
        why: Why,
    },
}

/// How a person ends a saga.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(id = "ended", required = true, multiple = false)]
pub(crate) struct Ended {
    /// What was left was done by hand.
    #[arg(long)]
    pub(crate) completed: bool,
    /// What was left was undone by hand.
    #[arg(long)]
    pub(crate) compensated: bool,
}

/// Why somebody acts.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Why {
    /// Why. It is kept.
    #[arg(long)]
    pub(crate) reason: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Twopc {
    /// Those that some participant has not confirmed, the latest first.
    List {
        /// Those that have ended instead.
        #[arg(long)]
        finished: bool,
        /// At most this many.
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// One of them, whole, with what people did about it.
    Show {
        /// Its id, as `list` shows it.
        id: TransactionId,
    },
    /// Help open ones to end. A decision stands: it can be told again, and not be changed.
    Resolve {
        /// These, by the ids that `list` shows.
        #[arg(required = true)]
        ids: Vec<TransactionId>,
        #[command(flatten)]
        how: Resolve,
        #[command(flatten)]
        why: Why,
    },
}

/// What a person decides about a two-phase commit.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "how", required = true, multiple = false)]
pub(crate) struct Resolve {
    /// Tell everybody of the commit again, now. Only of one that is decided so.
    #[arg(long)]
    pub(crate) commit: bool,
    /// Abort one that is not decided, now; or tell everybody of the abort again.
    #[arg(long)]
    pub(crate) abort: bool,
    /// This participant will never answer: wait for it no longer. Only of one that is decided.
    #[arg(long, value_name = "PARTICIPANT")]
    pub(crate) write_off: Option<String>,
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))
}
