//! The command line of the relay: topics, bans, limits.

use std::time::Duration;

use clap::Subcommand;
use tasuki_community::rules::Subject;

use super::conduct::Why;

#[derive(Debug, Subcommand)]
pub(crate) enum Relay {
    /// The topics of which something was said; all others are enabled.
    Topics,
    /// Take events and subscriptions of a topic again.
    Enable {
        /// The topic, in lower case.
        topic: String,
        #[command(flatten)]
        why: Why,
    },
    /// Take no more events and subscriptions of a topic. What is stored stays.
    Disable {
        /// The topic, in lower case.
        topic: String,
        #[command(flatten)]
        why: Why,
    },
    /// Who is banned.
    Bans,
    /// Take nothing more of a key or an address. What is stored stays.
    Ban {
        /// A public key, as 64 digits of lower-case hexadecimal, or an IP address.
        subject: Subject,
        /// For this long, e.g. 7d; for good without it.
        #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
        time: Option<Duration>,
        #[command(flatten)]
        why: Why,
    },
    /// Let a key or an address in again.
    Unban {
        /// As `bans` shows it.
        subject: Subject,
        #[command(flatten)]
        why: Why,
    },
    /// The limits that clients have, as they are configured here.
    Limits,
}
