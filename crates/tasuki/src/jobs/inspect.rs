//! What people and dashboards see of jobs.

use time::OffsetDateTime;

use super::JobId;

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// For its time, for another attempt, or for a free slot.
    Waiting,
    /// Claimed by a worker.
    Running,
    /// It failed for good; its dead letter says more.
    Dead,
    /// Done, and kept by its queue.
    Finished,
}

/// One job.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct View {
    /// Which one.
    pub id: JobId,
    /// The queue it is in.
    pub queue: String,
    /// What it is.
    pub kind: String,
    /// Where it is.
    pub state: State,
    /// Its data.
    pub payload: serde_json::Value,
    /// Attempts that failed.
    pub failed_attempts: u32,
    /// When its transaction began.
    pub created_at: OffsetDateTime,
    /// When it is due, or was; `None` for one that is dead or finished.
    pub due_at: Option<OffsetDateTime>,
    /// When it was finished.
    pub finished_at: Option<OffsetDateTime>,
    /// Who has it, or had it last.
    pub locked_by: Option<String>,
    /// What the last attempt failed with.
    pub last_error: Option<String>,
    /// The trace of whoever enqueued it.
    pub traceparent: Option<String>,
}
