//! What comes next in a saga, and what its story becomes by what happened: rules without I/O.
//!
//! The executor, the journal, the operators' commands and the simulation all go by these.

use std::time::Duration;

use super::define::{Declared, Kind, Part, Role};
use super::failure::{Failed, Verdict};
use super::json::Json;
use super::story::{Direction, End, Entry, Failure, Millis, Progress, Story, whole_millis};

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Run this local step.
    Local(usize),
    /// Call these, side by side.
    Remote(Vec<usize>),
    /// Wait for this signal or timer.
    Wait(usize),
    /// Undo this step.
    Undo(usize),
    /// Nothing: it has ended this way.
    End(End),
    /// Nothing, until a person has looked.
    Stuck,
}

impl Story {
    /// Whether it can go on by the steps with this `fingerprint`. By other steps than those that it began
    /// with it would leave some out, on the way back, too.
    pub(super) fn fits(&self, name: &str, version: u32, fingerprint: &str) -> Result<(), String> {
        if self.shape == fingerprint {
            return Ok(());
        }
        Err(format!(
            "version {version} of `{name}` has other steps here than those that it began with: \
             a definition that changes gets the next version"
        ))
    }

    /// What comes next by `declared`.
    pub(super) fn next(&self, declared: &Declared) -> Next {
        if let Some(end) = self.end {
            return Next::End(end);
        }
        if self.stuck.is_some() {
            return Next::Stuck;
        }
        match self.direction {
            Direction::Forward => self.forward(declared),
            Direction::Back => self.back(declared),
        }
    }

    fn forward(&self, declared: &Declared) -> Next {
        let mut open = declared.parts().filter(|(_, part)| !self.is_done(part));
        let Some((first, part)) = open.next() else {
            return Next::End(End::Completed);
        };
        let stage = part.stage;
        let members: Vec<(usize, Kind)> = std::iter::once((first, part.kind()))
            .chain(open.map_while(|(ix, part)| (part.stage == stage).then_some((ix, part.kind()))))
            .collect();
        // The quick ones first: what they refuse need not be undone elsewhere.
        if let Some((local, _)) = members.iter().find(|(_, kind)| *kind == Kind::Local) {
            return Next::Local(*local);
        }
        if matches!(part.kind(), Kind::Signal | Kind::Timer) {
            return Next::Wait(first);
        }
        Next::Remote(members.into_iter().map(|(ix, _)| ix).collect())
    }

    fn back(&self, declared: &Declared) -> Next {
        let last = self
            .steps
            .iter()
            .rev()
            .filter_map(|entry| Some((entry, declared.part(&entry.name)?)))
            .find(|(entry, (_, part))| is_to_be_undone(entry, part));
        match last {
            Some((_, (ix, _))) => Next::Undo(ix),
            None => Next::End(End::Compensated),
        }
    }

    fn is_done(&self, part: &Part) -> bool {
        self.entry(part.name)
            .is_some_and(|entry| entry.state == Progress::Done)
    }

    /// Whether it may still turn back: its pivot has neither happened nor may be about to.
    pub(super) fn may_turn_back(&self, declared: &Declared) -> bool {
        if self.direction == Direction::Back || self.end.is_some() || self.stuck.is_some() {
            return false;
        }
        let pivot = declared.parts().find(|(_, part)| part.role == Role::Pivot);
        let Some((_, pivot)) = pivot else {
            return true;
        };
        let Some(entry) = self.entry(pivot.name) else {
            return true;
        };
        match entry.state {
            Progress::Failed | Progress::Undone => true,
            Progress::Resting => !entry.unsure,
            Progress::Begun => pivot.kind() != Kind::Remote,
            Progress::Done => false,
        }
    }

    /// Turns back, because of `reason`.
    pub(super) fn turn_back(&mut self, step: Option<&str>, reason: impl Into<String>) {
        self.direction = Direction::Back;
        self.failure = Some(Failure {
            step: step.map(str::to_owned),
            reason: reason.into(),
        });
    }

    /// Stops until a person has looked.
    pub(super) fn park(&mut self, step: &str, reason: impl Into<String>) {
        self.stuck = Some(Failure {
            step: Some(step.to_owned()),
            reason: reason.into(),
        });
    }

    /// It is about to be done: its input, if it is known, is part of the story from now on.
    pub(super) fn begin(&mut self, part: &Part, input: Option<Json>, now: Millis) {
        if let Some(entry) = self.entry_mut(part.name) {
            entry.input = input.or_else(|| entry.input.take());
            entry.state = Progress::Begun;
            entry.pause = 0;
            return;
        }
        self.steps.push(Entry {
            name: part.name.to_owned(),
            state: Progress::Begun,
            input,
            output: None,
            error: None,
            tries: 0,
            undo_tries: 0,
            round: self.round,
            unsure: false,
            pause: part.patience().map_or(0, whole_millis),
            begun_at: now,
            ended_at: None,
        });
    }

    /// A process that died may have left calls behind: nobody knows how they ended.
    pub(super) fn recovered(&mut self, declared: &Declared) {
        for entry in &mut self.steps {
            let part = declared.part(&entry.name).map(|(_, part)| part);
            let is_remote = part.is_some_and(|part| part.kind() == Kind::Remote);
            entry.unsure |= entry.state == Progress::Begun && is_remote;
        }
    }

    /// Its action ended like this. Answers how long to wait before it is tried again.
    pub(super) fn acted(
        &mut self,
        part: &Part,
        outcome: Result<Json, Failed>,
        now: Millis,
    ) -> Option<Duration> {
        let is_remote = part.kind() == Kind::Remote;
        let entry = self.entry_mut(part.name)?;
        let failed = match outcome {
            Ok(output) => {
                entry.state = Progress::Done;
                entry.output = Some(output);
                entry.error = None;
                entry.ended_at = Some(now);
                return None;
            }
            Err(failed) => failed,
        };
        entry.error = Some(failed.error.clone());
        entry.tries += u32::from(failed.counts());
        match failed.verdict {
            Verdict::Again {
                after,
                unsure,
                counts,
            } => {
                // The transaction of a local step took back whatever it did.
                entry.unsure |= unsure && is_remote;
                if !counts || entry.tries < part.retry.max_attempts {
                    let pause = after.unwrap_or_else(|| part.retry.backoff.pick(entry.tries));
                    entry.state = Progress::Resting;
                    entry.pause = whole_millis(pause);
                    return Some(pause);
                }
            }
            Verdict::Abort | Verdict::Stuck => {}
        }
        let can_turn = match part.role {
            Role::Compensable => failed.verdict != Verdict::Stuck,
            Role::Pivot => failed.verdict != Verdict::Stuck && !entry.unsure,
            Role::Forward => false,
        };
        if can_turn {
            entry.state = Progress::Failed;
            entry.ended_at = Some(now);
            if self.direction == Direction::Forward {
                self.turn_back(Some(part.name), failed.error);
            }
        } else {
            // The attempt has ended: nothing is on its way for a later process to be unsure of.
            entry.state = Progress::Resting;
            self.park(part.name, failed.error);
        }
        None
    }

    /// Its compensation ended like this. Answers how long to wait before it is tried again.
    pub(super) fn undone(
        &mut self,
        part: &Part,
        outcome: Result<(), Failed>,
        now: Millis,
    ) -> Option<Duration> {
        let entry = self.entry_mut(part.name)?;
        let failed = match outcome {
            Ok(()) => {
                entry.state = Progress::Undone;
                entry.ended_at = Some(now);
                return None;
            }
            Err(failed) => failed,
        };
        entry.error = Some(failed.error.clone());
        entry.undo_tries += u32::from(failed.counts());
        if let Verdict::Again { after, counts, .. } = failed.verdict
            && (!counts || entry.undo_tries < part.undo_retry.max_attempts)
        {
            let policy = &part.undo_retry.backoff;
            return Some(after.unwrap_or_else(|| policy.pick(entry.undo_tries)));
        }
        self.park(part.name, failed.error);
        None
    }

    /// The wait is over: the signal has come, or the timer.
    pub(super) fn heard(&mut self, part: &Part, payload: Json, now: Millis) {
        if let Some(entry) = self.entry_mut(part.name) {
            entry.state = Progress::Done;
            entry.output = Some(payload);
            entry.ended_at = Some(now);
        }
    }

    /// Ends the story if nothing is left to be done.
    pub(super) fn settle(&mut self, declared: &Declared) {
        if let Next::End(end) = self.next(declared) {
            self.end = Some(end);
        }
    }
}

/// What was done, or may have been, and has a way back.
fn is_to_be_undone(entry: &Entry, part: &Part) -> bool {
    match entry.state {
        Progress::Done => part.has_undo(),
        // An intent without an answer may have been called.
        Progress::Begun => part.kind() == Kind::Remote && part.has_undo(),
        Progress::Resting | Progress::Failed => entry.unsure && part.has_undo(),
        Progress::Undone => false,
    }
}
