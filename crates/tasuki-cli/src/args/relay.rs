//! The command line of the relay: topics, bans, limits.

use std::time::Duration;

use clap::Subcommand;
use tasuki_community::rules::{PolicyChange, Priority, Subject};

use super::conduct::Why;

#[derive(Debug, Subcommand)]
pub(crate) enum Relay {
    /// The topics of which something was said, and how much of each is taken; all others are enabled.
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
    /// Say how much of a topic is taken, and what goes first. What is not said stays as it is.
    Policy {
        /// The topic, in lower case.
        topic: String,
        #[command(flatten)]
        policy: Intake,
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

/// How much of a topic is taken.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Intake {
    /// normal, or low: held back before others when consumers are behind.
    #[arg(long)]
    priority: Option<Priority>,
    /// on, or off: no events from longer ago than community.pressure.backfill-age.
    #[arg(long, value_name = "on|off", value_parser = switch)]
    backfill: Option<bool>,
    /// Events per minute, in each process; 0 is no limit.
    #[arg(long, value_name = "EVENTS", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    rate: Option<u32>,
    /// Events of it that may wait for the slowest consumer; 0 is no limit.
    #[arg(long, value_name = "EVENTS", value_parser = clap::value_parser!(u32).range(..=100_000))]
    capacity: Option<u32>,
}

impl Intake {
    pub(crate) const fn change(self) -> PolicyChange {
        PolicyChange {
            priority: self.priority,
            takes_backfill: self.backfill,
            events_per_minute: self.rate,
            capacity: self.capacity,
        }
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("neither on nor off".to_owned()),
    }
}
