//! Steps elsewhere: the intent is durable before the call, and what it gave before anything else happens.
//!
//! Those of a group are called side by side, and each again when its own pause is over.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;
use tracing::Instrument;

use super::define::{Declared, Part, Run};
use super::drive::{Left, Live};
use super::engine::Inner;
use super::erased::{Acted, Undone};
use super::failure::Failed;
use super::fault::{TURNED, What};
use super::journal::{SHORT, Then};
use super::json::Json;
use super::step::{At, Phase};
use super::story::Progress;
use crate::testing::crash_point;

impl Live {
    /// Those whose pause is over; if there are none, how long until there is one.
    fn due(&self, ixs: &[usize]) -> Result<Vec<usize>, Duration> {
        let pause = |ix: &usize| {
            let part = self.declared.at(*ix);
            part.map_or(Duration::ZERO, |part| self.story.pause(part.name))
        };
        let due: Vec<usize> = ixs
            .iter()
            .copied()
            .filter(|ix| pause(ix).is_zero())
            .collect();
        if due.is_empty() {
            return Err(ixs.iter().map(pause).min().unwrap_or_default());
        }
        Ok(due)
    }

    /// What was about to be called was not.
    fn withdraw(&mut self, ixs: &[usize]) {
        let declared = Arc::clone(&self.declared);
        for part in ixs.iter().filter_map(|ix| declared.at(*ix)) {
            if let Some(entry) = self.story.entry_mut(part.name) {
                entry.state = Progress::Failed;
            }
        }
    }
}

impl Inner {
    /// Calls steps elsewhere, side by side, and writes down what each of them gave.
    pub(super) async fn call(&self, live: &mut Live, ixs: &[usize]) -> Result<(), Left> {
        let ixs = match live.due(ixs) {
            Ok(due) => due,
            Err(pause) => return self.pause(live, pause).await,
        };
        if !self.intend(live, &ixs) {
            return Ok(());
        }
        if live.dirty {
            self.record(live, Then::Go).await?;
        }
        crash_point("saga.begun");
        for part in ixs.iter().filter_map(|ix| live.declared.at(*ix)) {
            self.survives(part, Phase::Act, What::DieBegun)?;
        }
        live.look_around();
        if live.dirty {
            live.withdraw(&ixs);
            return Ok(());
        }
        let mut calls: FuturesUnordered<_> = ixs
            .iter()
            .filter_map(|ix| {
                let part = live.declared.at(*ix)?;
                let input = live.story.entry(part.name)?.input.clone()?;
                let (at, declared) = (live.at(part, Phase::Act), Arc::clone(&live.declared));
                Some(self.called(declared, *ix, input, at))
            })
            .collect();
        while let Some((ix, acted)) = calls.next().await {
            crash_point("saga.called");
            let declared = Arc::clone(&live.declared);
            if let Some(part) = declared.at(ix) {
                self.survives(part, Phase::Act, What::DieActed)?;
                live.age();
                let is_done = acted.is_ok();
                live.story.acted(part, acted, self.now());
                if is_done && self.settings.faults.take(part.name, Phase::Act, What::Turn) {
                    live.story.turn_back(None, TURNED);
                }
                live.dirty = true;
                self.survives_writing(live, part, Phase::Act).await?;
            }
            // A saga that needs a person is let go with its record: not before all that is on its way has
            // ended, or nobody would know how.
            if !calls.is_empty() && live.story.stuck.is_none() {
                self.record(live, Then::Go).await?;
            }
        }
        Ok(())
    }

    /// Nothing is to be called for so long. What is known is durable meanwhile.
    async fn pause(&self, live: &mut Live, pause: Duration) -> Result<(), Left> {
        if pause > SHORT {
            return self.record(live, Then::Rest(pause)).await;
        }
        if live.dirty {
            self.record(live, Then::Go).await?;
        }
        live.pause = Some(pause);
        self.rest(live).await
    }

    /// One call of a step elsewhere.
    async fn called(
        &self,
        declared: Arc<Declared>,
        ix: usize,
        input: Json,
        at: At,
    ) -> (usize, Acted) {
        let Some((part, Run::Remote(act, _))) = declared.at(ix).map(|part| (part, &part.run))
        else {
            return (ix, Err(Failed::broken("there is no such step")));
        };
        let broken = |what| self.settings.faults.take(part.name, Phase::Act, what);
        if broken(What::Abort) || at.attempt() > 1 && broken(What::AbortLater) {
            return (ix, Err(Failed::broken("aborted by a check")));
        }
        if broken(What::Missing) {
            return (
                ix,
                Err(Failed::unsure("not done, which only a check knows")),
            );
        }
        let call = || act.act(&input, &at).instrument(self.sagas.span(&at));
        let mut acted = contained(part.timeout, call()).await;
        if broken(What::Twice) {
            acted = contained(part.timeout, call()).await;
        }
        if broken(What::Unknown) {
            acted = Err(Failed::unsure("unheard, says a check"));
        }
        (ix, acted.and_then(|acted| acted))
    }

    /// Writes into the story what is about to be called. `false`: nothing can be.
    fn intend(&self, live: &mut Live, ixs: &[usize]) -> bool {
        let declared = Arc::clone(&live.declared);
        for part in ixs.iter().filter_map(|ix| declared.at(*ix)) {
            let known = live.story.entry(part.name);
            if known.is_some_and(|entry| entry.state == Progress::Begun) {
                continue;
            }
            match live.input(part) {
                Ok(input) => live.story.begin(part, Some(input), self.now()),
                Err(failed) => {
                    live.fails(part, failed, self.now());
                    return false;
                }
            }
            live.dirty = true;
        }
        true
    }

    /// Has a step elsewhere undone.
    pub(super) async fn undo(&self, live: &mut Live, part: &Part) -> Result<(), Left> {
        self.rest(live).await?;
        let Run::Remote(_, Some(undo)) = &part.run else {
            return Err(Left::GivenUp(None));
        };
        let at = live.at(part, Phase::Undo);
        let entry = live.story.entry(part.name);
        let input = entry.and_then(|entry| entry.input.clone());
        let output = entry.and_then(|entry| entry.output.clone());
        self.survives(part, Phase::Undo, What::DieBegun)?;
        // Without an input it was never called.
        let mut undone: Undone = Ok(());
        if let Some(input) = &input {
            let calls = match self
                .settings
                .faults
                .take(part.name, Phase::Undo, What::Twice)
            {
                true => 2,
                false => 1,
            };
            for _ in 0..calls {
                let undoing = undo.undo(input, output.as_ref(), &at);
                let undoing = undoing.instrument(self.sagas.span(&at));
                undone = contained(part.timeout, undoing)
                    .await
                    .and_then(|undone| undone);
            }
        }
        crash_point("saga.undone");
        self.survives(part, Phase::Undo, What::DieActed)?;
        live.pause = live.story.undone(part, undone, self.now());
        live.dirty = true;
        self.survives_writing(live, part, Phase::Undo).await?;
        if let Some(pause) = live.pause.take_if(|pause| *pause > SHORT) {
            return self.record(live, Then::Rest(pause)).await;
        }
        Ok(())
    }
}

/// Within its time, and without its panic.
async fn contained<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, Failed> {
    use futures_util::FutureExt;
    let work = std::panic::AssertUnwindSafe(work).catch_unwind();
    match timeout(limit, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(panic)) => {
            let why = crate::worker::panic_message(&*panic);
            Err(Failed::unsure(format!("panicked: {why}")))
        }
        Err(_elapsed) => Err(Failed::unsure(format!("timed out after {limit:?}"))),
    }
}
