//! The command line of the relay: topics, bans, limits, labels and rules.

use std::time::Duration;

use clap::Subcommand;
use tasuki_community::rules::{PolicyChange, Priority, Subject};
use uuid::Uuid;

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
    /// The public keys with which the node speaks.
    Keys {
        /// Make those that are missing first, in `auth.key-dir`.
        #[arg(long)]
        make: bool,
    },
    /// What content is labelled with.
    #[command(subcommand)]
    Label(Label),
    /// What is labelled by itself.
    #[command(subcommand)]
    Rule(Rule),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Label {
    /// Labels that hold, the last first.
    List {
        /// Of this: `event:<id>`, `pubkey:<key>`, `address:<kind:pubkey:d>` or `identifier:<NIP-73>`.
        #[arg(long)]
        target: Option<String>,
        /// Of this author, and of what is by them.
        #[arg(long, value_name = "KEY")]
        author: Option<String>,
        /// Of this word.
        #[arg(long, value_name = "WORD")]
        label: Option<String>,
        /// Also those that have lapsed or were withdrawn.
        #[arg(long)]
        all: bool,
        /// At most so many.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
        limit: u16,
    },
    /// Label something.
    Add {
        /// `event:<id>`, `pubkey:<key>`, `address:<kind:pubkey:d>` or `identifier:<NIP-73>`.
        target: String,
        #[command(flatten)]
        words: Words,
        /// Where it is published; where the target is, unless it is said.
        #[arg(long = "topic", value_name = "TOPIC")]
        topics: Vec<String>,
        #[command(flatten)]
        why: Why,
    },
    /// Take a label back.
    Withdraw {
        /// As `list` shows it.
        label: Uuid,
        #[command(flatten)]
        why: Why,
    },
}

/// What a label says.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Words {
    /// One word, in lower case.
    #[arg(long, value_name = "WORD")]
    pub(crate) label: String,
    /// How sure it is, from 0 to 1.
    #[arg(long, default_value_t = 1.0, value_name = "NUMBER")]
    pub(crate) confidence: f64,
    /// How long it holds, e.g. 30d.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) time: Duration,
    /// The policy that it follows from.
    #[arg(long, value_name = "URL")]
    pub(crate) policy_url: Option<String>,
    /// The place in it.
    #[arg(long, value_name = "PLACE")]
    pub(crate) policy_ref: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Rule {
    /// Rules that are open, the oldest first.
    List {
        /// All versions, also of those that are closed.
        #[arg(long)]
        all: bool,
    },
    /// Label what comes from now on, if it has all that is named here.
    Add(Box<NewRule>),
    /// Close a rule. What it has labelled stays labelled.
    Close {
        /// As `list` shows it.
        rule: Uuid,
        #[command(flatten)]
        why: Why,
    },
}

/// A rule to open.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct NewRule {
    /// Any of these is in the content.
    #[arg(long = "keyword", value_name = "WORDS")]
    pub(crate) keywords: Vec<String>,
    /// The content matches this regular expression.
    #[arg(long)]
    pub(crate) pattern: Option<String>,
    /// It is of any of these kinds.
    #[arg(long = "kind", value_name = "NUMBER")]
    pub(crate) kinds: Vec<u16>,
    /// It has all of these tags: a name, or a name and a value, as `client=bot`.
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<String>,
    /// It is by any of these.
    #[arg(long = "author", value_name = "KEY")]
    pub(crate) authors: Vec<String>,
    /// It is in any of these topics.
    #[arg(long = "topic", value_name = "TOPIC")]
    pub(crate) topics: Vec<String>,
    #[command(flatten)]
    pub(crate) words: Words,
    #[command(flatten)]
    pub(crate) why: Why,
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
