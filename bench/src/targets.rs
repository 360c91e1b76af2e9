//! What every scenario must reach, and the names of what its figures are held against.

use crate::figures::{Against, Bound, Metric, Target};

pub(crate) const INSERT: &str = "pgbench INSERT";
pub(crate) const INSERT_IN_TRANSACTION: &str = "pgbench BEGIN; INSERT; COMMIT";
pub(crate) const CLAIM_ONE: &str = "plain SQL, 1 connection";
pub(crate) const CLAIM_FOUR: &str = "plain SQL, 4 connections";
pub(crate) const PUBLISH_SINGLE: &str = "bare publisher, message by message";
pub(crate) const PUBLISH_BATCHES: &str = "bare publisher, atomic batches";
pub(crate) const NO_HISTORY: &str = "tasuki without a history";
pub(crate) const NO_SNAPSHOT: &str = "tasuki without a snapshot";
pub(crate) const LIMIT: &str = "the limit";
pub(crate) const SAME_TRANSACTION: &str = "pgbench, the same transaction";
pub(crate) const SAME_SELECT: &str = "pgbench, the same SELECT";
pub(crate) const GRANTS_ALONE: &str = "tasuki, grants without workers";
pub(crate) const DBOS: &str = "dbos";
pub(crate) const OUTSIDE: &str = "tasuki, steps outside";
pub(crate) const WRITING: &str = "tasuki, each step writes a row";
pub(crate) const COMMIT_EACH: &str = "plain SQL, a commit per transition";
pub(crate) const COMMITS_SHARED: &str = "plain SQL, shared commits";
pub(crate) const REMAINING: &str = "the remaining work, without a kill";
pub(crate) const KILL_TO_END: &str = "from the kill to the last end";
pub(crate) const NOSTR_RS_RELAY: &str = "nostr-rs-relay";
pub(crate) const RNOSTR: &str = "rnostr";
pub(crate) const COPY_AND_INDEX: &str = "COPY of the same rows, and CREATE INDEX";

/// The targets of the scenario `queue`.
pub(crate) const QUEUE: [Target; 13] = [
    (
        Metric::EnqueuePerSecond,
        Against::BestPeer,
        Bound::AtLeast(3.0),
    ),
    (
        Metric::EnqueuePerSecond,
        Against::Named(INSERT_IN_TRANSACTION),
        Bound::AtLeast(0.8),
    ),
    (
        Metric::DrainPerSecond,
        Against::BestPeer,
        Bound::AtLeast(1.3),
    ),
    (
        Metric::DrainPerSecond,
        Against::Named(CLAIM_FOUR),
        Bound::AtLeast(0.75),
    ),
    (Metric::LatencyP50Ms, Against::BestPeer, Bound::Below(1.0)),
    (Metric::LatencyP99Ms, Against::BestPeer, Bound::Below(1.0)),
    (
        Metric::PublishPerSecond,
        Against::Named(PUBLISH_BATCHES),
        Bound::AtLeast(0.5),
    ),
    (
        Metric::HistoryDrainPerSecond,
        Against::Named(NO_HISTORY),
        Bound::AtLeast(0.9),
    ),
    (
        Metric::HistoryLatencyP50Ms,
        Against::Named(NO_HISTORY),
        Bound::AtMost(1.1),
    ),
    (
        Metric::HistoryLatencyP99Ms,
        Against::Named(NO_HISTORY),
        Bound::AtMost(1.1),
    ),
    (
        Metric::SnapshotDrainPerSecond,
        Against::Named(NO_SNAPSHOT),
        Bound::AtLeast(0.7),
    ),
    (
        Metric::IdleStatementsPerPoll,
        Against::Named(LIMIT),
        Bound::AtMost(1.0),
    ),
    (
        Metric::IdleCpuPercent,
        Against::Named(LIMIT),
        Bound::AtMost(1.0),
    ),
];

/// The targets of the scenario `grant`.
pub(crate) const GRANT: [Target; 10] = [
    (
        Metric::GrantPerSecond,
        Against::Named(SAME_TRANSACTION),
        Bound::AtLeast(1.0),
    ),
    (
        Metric::GrantAloneP50Ms,
        Against::Named(SAME_TRANSACTION),
        Bound::AtMost(1.3),
    ),
    (
        Metric::ReadPerSecond,
        Against::Named(SAME_SELECT),
        Bound::AtLeastOr(0.5, 10_000.0),
    ),
    (
        Metric::SentPerSecond,
        Against::Named(GRANTS_ALONE),
        Bound::AtLeast(0.5),
    ),
    (Metric::SentP99Ms, Against::Named(LIMIT), Bound::Below(1.0)),
    (
        Metric::HistoryGrantPerSecond,
        Against::Named(NO_HISTORY),
        Bound::AtLeast(0.85),
    ),
    (
        Metric::HistoryGrantAloneP50Ms,
        Against::Named(NO_HISTORY),
        Bound::AtMost(1.15),
    ),
    (
        Metric::HistoryReadPerSecond,
        Against::Named(NO_HISTORY),
        Bound::AtLeast(0.85),
    ),
    (
        Metric::HistorySentPerSecond,
        Against::Named(NO_HISTORY),
        Bound::AtLeast(0.85),
    ),
    (
        Metric::HistorySentP99Ms,
        Against::Named(NO_HISTORY),
        Bound::AtMost(1.15),
    ),
];

/// The targets of the scenario `saga`.
pub(crate) const SAGA: [Target; 5] = [
    (
        Metric::SagaPerSecond,
        Against::BestPeer,
        Bound::AtLeast(8.0),
    ),
    (
        Metric::SagaAloneP50Ms,
        Against::Named(DBOS),
        Bound::AtMost(1.0),
    ),
    (
        Metric::SagaRestartSeconds,
        Against::Named(LIMIT),
        Bound::AtMost(1.0),
    ),
    (
        Metric::SagaTakeoverLastSeconds,
        Against::Named(LIMIT),
        Bound::AtMost(1.0),
    ),
    (Metric::SagaReruns, Against::Named(LIMIT), Bound::Below(1.0)),
];

/// The targets of the scenario `relay`.
pub(crate) const RELAY: [Target; 10] = [
    (
        Metric::RelayIngestPerSecond,
        Against::Named(NOSTR_RS_RELAY),
        Bound::AtLeast(5.0),
    ),
    (
        Metric::RelayIngestPerSecond,
        Against::Named(RNOSTR),
        Bound::AtLeast(1.2),
    ),
    (
        Metric::RelayAlonePerSecond,
        Against::Named(NOSTR_RS_RELAY),
        Bound::AtLeast(1.0),
    ),
    (
        Metric::RelayQueryPerSecond,
        Against::Named(NOSTR_RS_RELAY),
        Bound::AtLeast(10.0),
    ),
    (
        Metric::RelaySlowP99Ms,
        Against::Named(LIMIT),
        Bound::Below(1.0),
    ),
    (
        Metric::RelayFastP99Ms,
        Against::Named(LIMIT),
        Bound::Below(1.0),
    ),
    (Metric::RelayLost, Against::Named(LIMIT), Bound::Below(1.0)),
    (
        Metric::RelayVisibleP99Ms,
        Against::Named(LIMIT),
        Bound::Below(1.0),
    ),
    (
        Metric::RelaySearchP95Ms,
        Against::Named(LIMIT),
        Bound::Below(1.0),
    ),
    (
        Metric::RelayRebuildPerSecond,
        Against::Named(COPY_AND_INDEX),
        Bound::AtLeast(0.7),
    ),
];
