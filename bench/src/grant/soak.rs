//! Full load for a long time, with an eye on memory: what each process holds in the first third of
//! the time, and in the last. A leak shows as a last third that is above the first.

use std::{pin::pin, time::Duration};

use anyhow::ensure;
use tokio::time::{MissedTickBehavior, interval};

use super::{ENTITLEMENT, NOTIFICATION, Scenario};
use crate::{
    figures::{Metric, Side},
    load::{Load, Told},
    site::Process,
};

/// How often memory is looked at.
const EVERY: Duration = Duration::from_secs(10);

/// Runs both processes under full load for `time`.
pub(super) async fn run(scenario: &mut Scenario<'_>, time: Duration) -> anyhow::Result<()> {
    ensure!(
        time >= EVERY * 3,
        "a soak takes at least {:?}: memory is looked at every {EVERY:?}",
        EVERY * 3
    );
    eprintln!("full load for {time:?}");
    let options = scenario.options;
    let site = scenario.site(&scenario.database, options.users).await?;
    // A line for every notification would fill the disk before the time is over.
    let site = site.quiet();
    let processes = [
        site.serve(ENTITLEMENT, &[]).await?,
        site.serve(NOTIFICATION, &[]).await?,
    ];
    let load = options.full_load(u32::try_from(time.as_secs())?);
    let (told, seen) = watch(&processes, load).await?;
    eprintln!("{} grants, {:.0}/s", told.answered, told.per_second);
    for (process, seen) in processes.iter().zip(&seen) {
        for (third, memory) in thirds(seen) {
            let who = format!("{}, {third}", process.service);
            for mib in memory {
                let metric = Metric::ResidentMib;
                scenario.runs.add(metric, Side::Ours, &who, *mib);
            }
        }
    }
    for process in processes.into_iter().rev() {
        process.stop().await?;
    }
    Ok(())
}

/// Puts `load` on the first of two processes, and says how it went and what each of them held in
/// memory meanwhile, in MiB.
async fn watch(processes: &[Process; 2], load: Load) -> anyhow::Result<(Told, [Vec<f64>; 2])> {
    let [first, _] = processes;
    let mut running = pin!(load.on(first));
    let mut beat = interval(EVERY);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen: [Vec<f64>; 2] = Default::default();
    loop {
        tokio::select! {
            told = &mut running => return Ok((told?, seen)),
            _ = beat.tick() => {
                for (process, seen) in processes.iter().zip(&mut seen) {
                    seen.push(process.resident()?);
                }
            }
        }
    }
}

/// The first and the last third of what was seen, in its order.
fn thirds(seen: &[f64]) -> [(&'static str, &[f64]); 2] {
    let third = seen.len() / 3;
    let first = seen.get(..third).unwrap_or_default();
    let last = seen.get(seen.len() - third..).unwrap_or_default();
    [("first third", first), ("last third", last)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_third_is_left_out() {
        let [(_, first), (_, last)] = thirds(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!((first, last), (&[1.0, 2.0][..], &[6.0, 7.0][..]));
        assert!(thirds(&[1.0]).iter().all(|(_, third)| third.is_empty()));
    }
}
