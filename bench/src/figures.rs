//! The figures of a run, and what they are held against.
//!
//! A figure is the median of the runs, with the lowest and the highest beside it. A target
//! compares a figure of ours with the best peer's or with a baseline of the same run; where a
//! side is missing there is no verdict.

use std::collections::BTreeMap;

use serde::Serialize;

/// The library's name among the contestants.
pub(crate) const OURS: &str = "tasuki";

/// What a number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    /// One job per transaction.
    EnqueuePerSecond,
    /// Jobs that were worked off.
    DrainPerSecond,
    /// Enqueue to handler start, the middle.
    LatencyP50Ms,
    /// Enqueue to handler start, the slowest hundredth.
    LatencyP99Ms,
    /// Messages that the broker acknowledged.
    PublishPerSecond,
    /// Jobs that were worked off with a long history beside them.
    HistoryDrainPerSecond,
    /// The same of enqueue to handler start.
    HistoryLatencyP50Ms,
    /// The same of the slowest hundredth.
    HistoryLatencyP99Ms,
    /// Jobs that were worked off while a snapshot was held.
    SnapshotDrainPerSecond,
    /// Statements of a worker without work.
    IdleStatementsPerPoll,
    /// Its time on a processor.
    IdleCpuPercent,
    /// Grants that were acknowledged.
    GrantPerSecond,
    /// A grant while nobody else asks for one.
    GrantAloneP50Ms,
    /// What a user has, read.
    ReadPerSecond,
    /// Grants that were acknowledged while events went out and notifications were sent.
    GrantBesideWorkersPerSecond,
    /// Notifications that were sent, from the first grant until the last of them.
    SentPerSecond,
    /// Grant to SENT at a steady rate, the middle.
    SentP50Ms,
    /// Grant to SENT at a steady rate, the slowest hundredth.
    SentP99Ms,
    /// Grants with millions of entitlements beside them.
    HistoryGrantPerSecond,
    /// A lone grant with millions of entitlements beside it.
    HistoryGrantAloneP50Ms,
    /// Reads among millions of entitlements.
    HistoryReadPerSecond,
    /// Notifications that were sent, with millions of entitlements beside them.
    HistorySentPerSecond,
    /// The same at a steady rate, the middle.
    HistorySentP50Ms,
    /// The same of the slowest hundredth.
    HistorySentP99Ms,
    /// What a process holds in memory.
    ResidentMib,
    /// Sagas that were begun and have ended.
    SagaPerSecond,
    /// A saga while there is no other, from its start to its end: the middle.
    SagaAloneP50Ms,
    /// The same of the slowest hundredth.
    SagaAloneP99Ms,
    /// After `kill -9`: what the sagas of a process that is started again take longer than without.
    SagaRestartSeconds,
    /// After `kill -9`: until the first saga has moved in another process.
    SagaTakeoverFirstSeconds,
    /// After `kill -9`: until the last saga has moved in another process.
    SagaTakeoverLastSeconds,
    /// Local steps whose effect is there more than once.
    SagaReruns,
    /// Events that a relay has accepted, with many on their way.
    RelayIngestPerSecond,
    /// The same with one on its way on each connection.
    RelayAlonePerSecond,
    /// Questions about what a relay has stored.
    RelayQueryPerSecond,
    /// What a question found: as much everywhere, or the questions were not the same.
    RelayQueryFound,
    /// From when an event was due until a listener has it, at 50 events per second.
    RelaySlowP99Ms,
    /// The same at 500 events per second.
    RelayFastP99Ms,
    /// Events that a listener was not told.
    RelayLost,
    /// From when an event was stored until a search finds it: the middle.
    RelayVisibleP50Ms,
    /// The same of the slowest hundredth.
    RelayVisibleP99Ms,
    /// A search: the middle.
    RelaySearchP50Ms,
    /// The same of the slowest twentieth.
    RelaySearchP95Ms,
    /// Events of an index that is made anew.
    RelayRebuildPerSecond,
}

impl Metric {
    /// How the table calls it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::EnqueuePerSecond => "enqueue, tx/s",
            Self::DrainPerSecond => "drain, jobs/s",
            Self::LatencyP50Ms => "enqueue → start, p50 ms",
            Self::LatencyP99Ms => "enqueue → start, p99 ms",
            Self::PublishPerSecond => "publish, messages/s",
            Self::HistoryDrainPerSecond => "drain beside a history, jobs/s",
            Self::HistoryLatencyP50Ms => "enqueue → start beside a history, p50 ms",
            Self::HistoryLatencyP99Ms => "enqueue → start beside a history, p99 ms",
            Self::SnapshotDrainPerSecond => "drain under a held snapshot, jobs/s",
            Self::IdleStatementsPerPoll => "idle, statements per poll",
            Self::IdleCpuPercent => "idle, % of a core",
            Self::GrantPerSecond => "grants/s",
            Self::GrantAloneP50Ms => "a lone grant, p50 ms",
            Self::ReadPerSecond => "reads of five entitlements/s",
            Self::GrantBesideWorkersPerSecond => "grants/s, with all workers",
            Self::SentPerSecond => "grant → SENT, with the time to drain, /s",
            Self::SentP50Ms => "grant → SENT, p50 ms",
            Self::SentP99Ms => "grant → SENT, p99 ms",
            Self::HistoryGrantPerSecond => "grants/s beside a history",
            Self::HistoryGrantAloneP50Ms => "a lone grant beside a history, p50 ms",
            Self::HistoryReadPerSecond => "reads/s beside a history",
            Self::HistorySentPerSecond => "grant → SENT beside a history, /s",
            Self::HistorySentP50Ms => "grant → SENT beside a history, p50 ms",
            Self::HistorySentP99Ms => "grant → SENT beside a history, p99 ms",
            Self::ResidentMib => "resident memory, MiB",
            Self::SagaPerSecond => "sagas/s",
            Self::SagaAloneP50Ms => "a lone saga, p50 ms",
            Self::SagaAloneP99Ms => "a lone saga, p99 ms",
            Self::SagaRestartSeconds => "kill -9 and restart, beyond the remaining work, s",
            Self::SagaTakeoverFirstSeconds => "kill -9, first saga taken over, s",
            Self::SagaTakeoverLastSeconds => "kill -9, last saga taken over, s",
            Self::SagaReruns => "kill -9, local steps that were run twice",
            Self::RelayIngestPerSecond => "events accepted/s, 8 × 64 in flight",
            Self::RelayAlonePerSecond => "events accepted/s, 8 × 1 in flight",
            Self::RelayQueryPerSecond => "questions about what is stored/s",
            Self::RelayQueryFound => "events found by a question",
            Self::RelaySlowP99Ms => "100 listeners at 50/s, p99 ms",
            Self::RelayFastP99Ms => "100 listeners at 500/s, p99 ms",
            Self::RelayLost => "events lost on the way to listeners",
            Self::RelayVisibleP50Ms => "stored → found, p50 ms",
            Self::RelayVisibleP99Ms => "stored → found, p99 ms",
            Self::RelaySearchP50Ms => "search, p50 ms",
            Self::RelaySearchP95Ms => "search, p95 ms",
            Self::RelayRebuildPerSecond => "index made anew, events/s",
        }
    }

    fn less_is_better(self) -> bool {
        matches!(
            self,
            Self::LatencyP50Ms
                | Self::LatencyP99Ms
                | Self::HistoryLatencyP50Ms
                | Self::HistoryLatencyP99Ms
                | Self::IdleStatementsPerPoll
                | Self::IdleCpuPercent
                | Self::GrantAloneP50Ms
                | Self::SentP50Ms
                | Self::SentP99Ms
                | Self::HistoryGrantAloneP50Ms
                | Self::HistorySentP50Ms
                | Self::HistorySentP99Ms
                | Self::ResidentMib
                | Self::SagaAloneP50Ms
                | Self::SagaAloneP99Ms
                | Self::SagaRestartSeconds
                | Self::SagaTakeoverFirstSeconds
                | Self::SagaTakeoverLastSeconds
                | Self::SagaReruns
                | Self::RelaySlowP99Ms
                | Self::RelayFastP99Ms
                | Self::RelayLost
                | Self::RelayVisibleP50Ms
                | Self::RelayVisibleP99Ms
                | Self::RelaySearchP50Ms
                | Self::RelaySearchP95Ms
        )
    }
}

/// Who a number belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    Ours,
    Peer,
    /// The same work without a library.
    Baseline,
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) metric: Metric,
    pub(crate) side: Side,
    pub(crate) who: String,
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
    pub(crate) runs: Vec<f64>,
}

/// The numbers of all runs so far.
#[derive(Debug, Default)]
pub(crate) struct Runs(BTreeMap<(Metric, Side, String), Vec<f64>>);

impl Runs {
    /// Adds the number of one run.
    pub(crate) fn add(&mut self, metric: Metric, side: Side, who: &str, number: f64) {
        let key = (metric, side, who.to_owned());
        self.0.entry(key).or_default().push(number);
    }

    /// The figures, grouped by metric.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let figures = self.0.iter().filter_map(|((metric, side, who), runs)| {
            let mut sorted = runs.clone();
            sorted.sort_by(f64::total_cmp);
            Some(Figure {
                metric: *metric,
                side: *side,
                who: who.clone(),
                median: median(&sorted)?,
                lowest: *sorted.first()?,
                highest: *sorted.last()?,
                runs: runs.clone(),
            })
        });
        figures.collect()
    }
}

/// The middle of sorted numbers.
fn median(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(*sorted.get(half.checked_sub(1)?)?, upper))
}

/// The number that so many hundredths of sorted numbers are below.
pub(crate) fn percentile<T: Copy>(sorted: &[T], share: usize) -> Option<T> {
    sorted.get(sorted.len() * share / 100).copied()
}

/// What a figure of ours is held against.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Against {
    BestPeer,
    /// A baseline, or one of the peers.
    Named(&'static str),
}

/// A bound on the ratio of ours to the other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    AtLeast(f64),
    /// At least the first, or the figure itself at least the second.
    AtLeastOr(f64, f64),
    AtMost(f64),
    Below(f64),
}

/// One figure, what it is held against, and how it must come out.
pub(crate) type Target = (Metric, Against, Bound);

/// One line of the table of targets.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) metric: Metric,
    pub(crate) against: String,
    pub(crate) other: Option<f64>,
    pub(crate) ours: Option<f64>,
    pub(crate) ratio: Option<f64>,
    pub(crate) wanted: String,
    /// Nothing: a side is missing.
    pub(crate) met: Option<bool>,
}

/// Holds the figures against the targets.
pub(crate) fn verdicts(figures: &[Figure], targets: &[Target]) -> Vec<Verdict> {
    targets
        .iter()
        .map(|&(metric, against, bound)| {
            let ours = figures
                .iter()
                .find(|f| f.metric == metric && f.side == Side::Ours);
            let other = match against {
                Against::BestPeer => best_peer(figures, metric),
                Against::Named(name) => {
                    figures.iter().find(|f| f.metric == metric && f.who == name)
                }
            };
            let ratio = ours
                .zip(other)
                .map(|(ours, other)| ours.median / other.median);
            let (wanted, met) = match bound {
                Bound::AtLeast(least) => (format!("≥ {least}"), ratio.map(|ratio| ratio >= least)),
                Bound::AtLeastOr(least, itself) => {
                    let enough = ours.is_some_and(|ours| ours.median >= itself);
                    let met = ratio.map(|ratio| ratio >= least || enough);
                    (format!("≥ {least}, or {itself} itself"), met)
                }
                Bound::AtMost(most) => (format!("≤ {most}"), ratio.map(|ratio| ratio <= most)),
                Bound::Below(limit) => (format!("< {limit}"), ratio.map(|ratio| ratio < limit)),
            };
            let against = match against {
                Against::BestPeer => {
                    other.map_or("best peer".to_owned(), |f| format!("best peer ({})", f.who))
                }
                Against::Named(name) => name.to_owned(),
            };
            Verdict {
                metric,
                against,
                other: other.map(|f| f.median),
                ours: ours.map(|f| f.median),
                ratio,
                wanted,
                met,
            }
        })
        .collect()
}

fn best_peer(figures: &[Figure], metric: Metric) -> Option<&Figure> {
    let peers = figures
        .iter()
        .filter(|f| f.metric == metric && f.side == Side::Peer);
    let by_median = |a: &&Figure, b: &&Figure| a.median.total_cmp(&b.median);
    if metric.less_is_better() {
        peers.min_by(by_median)
    } else {
        peers.max_by(by_median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::{CLAIM_FOUR, GRANT, QUEUE, SAME_SELECT};

    fn runs(numbers: &[(Metric, Side, &str, f64)]) -> Vec<Figure> {
        let mut runs = Runs::default();
        for (metric, side, who, number) in numbers {
            runs.add(*metric, *side, who, *number);
        }
        runs.figures()
    }

    #[test]
    fn a_figure_is_the_median_of_its_runs() {
        let numbers = [5.0, 1.0, 9.0].map(|n| (Metric::DrainPerSecond, Side::Peer, "a", n));
        let figures = runs(&numbers);
        assert_eq!(figures.len(), 1);
        let figure = &figures[0];
        assert_eq!(
            (figure.lowest, figure.median, figure.highest),
            (1.0, 5.0, 9.0)
        );
        assert_eq!(figure.runs, [5.0, 1.0, 9.0], "in the order of the runs");
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_best_peer_is_the_fastest_one() {
        let figures = runs(&[
            (Metric::DrainPerSecond, Side::Peer, "slow", 10.0),
            (Metric::DrainPerSecond, Side::Peer, "fast", 20.0),
            (Metric::DrainPerSecond, Side::Baseline, CLAIM_FOUR, 99.0),
            (Metric::LatencyP50Ms, Side::Peer, "slow", 20.0),
            (Metric::LatencyP50Ms, Side::Peer, "fast", 10.0),
        ]);
        for metric in [Metric::DrainPerSecond, Metric::LatencyP50Ms] {
            assert_eq!(best_peer(&figures, metric).unwrap().who, "fast");
        }
    }

    #[test]
    fn a_target_is_met_missed_or_open() {
        let figures = runs(&[
            (Metric::EnqueuePerSecond, Side::Ours, OURS, 300.0),
            (Metric::EnqueuePerSecond, Side::Peer, "a", 100.0),
            (Metric::LatencyP99Ms, Side::Ours, OURS, 2.0),
            (Metric::LatencyP99Ms, Side::Peer, "a", 2.0),
        ]);
        let verdicts = verdicts(&figures, &QUEUE);
        let met: Vec<Option<bool>> = verdicts.iter().map(|v| v.met).collect();
        assert_eq!(met.len(), QUEUE.len());
        assert_eq!(met[..6], [Some(true), None, None, None, None, Some(false)]);
        assert!(met[6..].iter().all(Option::is_none));
    }

    #[test]
    fn enough_in_itself_meets_a_target_that_says_so() {
        let reads = |ours| {
            let figures = runs(&[
                (Metric::ReadPerSecond, Side::Ours, OURS, ours),
                (Metric::ReadPerSecond, Side::Baseline, SAME_SELECT, 30_000.0),
            ]);
            verdicts(&figures, &GRANT)[2].met
        };
        assert_eq!(
            [9_000.0, 10_000.0, 15_000.0].map(reads),
            [Some(false), Some(true), Some(true)]
        );
    }

    #[test]
    fn a_percentile_is_one_of_the_numbers() {
        let numbers: Vec<u32> = (0..200).collect();
        assert_eq!(percentile(&numbers, 50), Some(100));
        assert_eq!(percentile(&numbers, 99), Some(198));
        assert_eq!(percentile::<u32>(&[], 50), None);
    }
}
