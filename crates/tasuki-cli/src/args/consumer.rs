//! The command line of consumers of sequenced logs.

use clap::Subcommand;

use super::conduct::Why;
use crate::platform::Name;

#[derive(Debug, clap::Args)]
pub(crate) struct Consumers {
    /// Of this service.
    #[arg(long, global = true, value_enum, default_value_t = Name::Community)]
    pub(crate) service: Name,
    #[command(subcommand)]
    pub(crate) command: Consumer,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Consumer {
    /// The consumers, and how far each is behind.
    List,
    /// One of them, with the rows that it has set aside, and what people did about it.
    Show {
        /// Its name, as `list` shows it.
        name: String,
    },
    /// Move it to a number: what comes after it is handled, again or for the first time. It takes effect
    /// while it runs.
    Replay {
        /// Its name, as `list` shows it.
        name: String,
        /// The number. `show` says how far back the log goes.
        #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(i64).range(0..))]
        to: i64,
        /// Only say what would be handled again, or skipped.
        #[arg(long)]
        preview: bool,
        #[command(flatten)]
        why: Why,
    },
    /// Have it make its store anew, from the source. The old one is used until then.
    Rebuild {
        /// Its name, as `list` shows it.
        name: String,
        #[command(flatten)]
        why: Why,
    },
}
