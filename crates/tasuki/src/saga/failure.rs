//! How a step may fail, as types: what can abort a saga can't stand behind its pivot.
//!
//! [`Fail`] knows four ends of an attempt beside success; [`Again`] knows no abort. `?` turns any
//! error into either: tried again. Nobody can say of an error that just came along whether the
//! effect happened, so for an outside effect it counts as *unknown*. A database that can't be reached
//! ([`is_away`]) is nobody's fault: such an attempt is not counted, as it is not for a job.

use std::time::Duration;

use crate::is_away;
use crate::jobs::BoxError;
use crate::lease::{stored_error, told};

/// How long a step waits whose database can't be reached.
const UNREACHABLE: Duration = Duration::from_secs(5);

/// Why an action of a step that may abort did not succeed.
#[derive(Debug)]
pub struct Fail<E> {
    how: How,
    error: E,
}

/// Why an action that must succeed in the end, or a compensation, did not succeed yet.
#[derive(Debug)]
pub struct Again<E = BoxError> {
    how: How,
    error: E,
}

/// What an attempt says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Abort,
    Retry(Option<Duration>),
    Unknown,
    Stuck,
}

impl<E> Fail<E> {
    /// It did not happen and never will: the saga is unwound.
    pub fn abort(error: impl Into<E>) -> Self {
        Self::new(How::Abort, error)
    }

    /// It did not happen, and may the next time.
    pub fn retry(error: impl Into<E>) -> Self {
        Self::new(How::Retry(None), error)
    }

    /// It did not happen, and may after this long.
    pub fn retry_after(after: Duration, error: impl Into<E>) -> Self {
        Self::new(How::Retry(Some(after)), error)
    }

    /// It may have happened: tried again with the same key. If the saga is unwound instead, this
    /// step is compensated, too.
    pub fn unknown(error: impl Into<E>) -> Self {
        Self::new(How::Unknown, error)
    }

    fn new(how: How, error: impl Into<E>) -> Self {
        let error = error.into();
        Self { how, error }
    }
}

impl<E> Again<E> {
    /// May succeed the next time.
    pub fn retry(error: impl Into<E>) -> Self {
        Self::new(How::Retry(None), error)
    }

    /// May succeed after this long.
    pub fn retry_after(after: Duration, error: impl Into<E>) -> Self {
        Self::new(How::Retry(Some(after)), error)
    }

    /// Will not succeed by itself: the saga needs a person now, however many attempts are left.
    pub fn stuck(error: impl Into<E>) -> Self {
        Self::new(How::Stuck, error)
    }

    fn new(how: How, error: impl Into<E>) -> Self {
        let error = error.into();
        Self { how, error }
    }
}

impl<T, E> From<T> for Fail<E>
where
    T: std::error::Error + Into<E>,
{
    fn from(error: T) -> Self {
        Self::unknown(error)
    }
}

impl<T, E> From<T> for Again<E>
where
    T: std::error::Error + Into<E>,
{
    fn from(error: T) -> Self {
        Self::new(How::Unknown, error)
    }
}

/// [`Fail`] or [`Again`].
pub trait Failure: sealed::Failure {}

impl<E: Into<BoxError> + Send + 'static> Failure for Fail<E> {}
impl<E: Into<BoxError> + Send + 'static> Failure for Again<E> {}

pub(super) mod sealed {
    use super::{Again, BoxError, Fail, Failed};

    /// Only the two of this module.
    pub trait Failure: Send + 'static {
        /// What the executor needs to know of it.
        fn told(self) -> Failed;
    }

    impl<E: Into<BoxError> + Send + 'static> Failure for Fail<E> {
        fn told(self) -> Failed {
            Failed::of(self.how, self.error)
        }
    }

    impl<E: Into<BoxError> + Send + 'static> Failure for Again<E> {
        fn told(self) -> Failed {
            Failed::of(self.how, self.error)
        }
    }
}

/// An attempt that did not succeed, without its types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub(super) verdict: Verdict,
    pub(super) error: String,
    /// Why it may go better in a transaction of its own.
    pub(super) hindrance: Option<Hindrance>,
}

/// What keeps a local step from a transaction that others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hindrance {
    /// Another transaction is in the way.
    HeldUp,
    /// It takes longer than a shared one may, or says so.
    Slow,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It did not happen and never will.
    Abort,
    /// Again, after this long or as the policy says.
    Again {
        after: Option<Duration>,
        /// It may have happened.
        unsure: bool,
        /// It costs an attempt.
        counts: bool,
    },
    /// A person must look.
    Stuck,
}

impl Verdict {
    /// Again, at the cost of an attempt.
    pub(super) const fn again(after: Option<Duration>, unsure: bool) -> Self {
        Self::Again {
            after,
            unsure,
            counts: true,
        }
    }
}

impl Failed {
    fn of(how: How, error: impl Into<BoxError>) -> Self {
        let error = error.into();
        let verdict = match how {
            How::Abort => Verdict::Abort,
            How::Retry(after) => Verdict::again(after, false),
            How::Unknown if is_unreachable(&*error) => Verdict::Again {
                after: Some(UNREACHABLE),
                unsure: true,
                counts: false,
            },
            How::Unknown => Verdict::again(None, true),
            How::Stuck => Verdict::Stuck,
        };
        Self {
            verdict,
            hindrance: hindrance(&*error),
            error: stored_error(&told(&*error)),
        }
    }

    /// Whether it costs an attempt.
    pub(super) const fn counts(&self) -> bool {
        !matches!(self.verdict, Verdict::Again { counts: false, .. })
    }

    /// An attempt of which nobody knows how it ended.
    pub(super) fn unsure(error: impl Into<String>) -> Self {
        Self::with(Verdict::again(None, true), error)
    }

    /// What can't be read or made: no attempt would change that.
    pub(super) fn broken(error: impl Into<String>) -> Self {
        Self::with(Verdict::Abort, error)
    }

    /// What a script says.
    pub(super) fn scripted(verdict: Verdict) -> Self {
        Self::with(verdict, "as the script says")
    }

    fn with(verdict: Verdict, error: impl Into<String>) -> Self {
        Self {
            verdict,
            error: stored_error(&error.into()),
            hindrance: None,
        }
    }
}

/// Whether this is a database that can't be reached, as opposed to one that answered.
fn is_unreachable(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut levels = std::iter::successors(Some(error), |error| error.source());
    levels.any(|level| level.downcast_ref().is_some_and(is_away))
}

/// Whether the database gave up waiting for others, or on a statement that took long.
fn hindrance(error: &(dyn std::error::Error + 'static)) -> Option<Hindrance> {
    let levels = std::iter::successors(Some(error), |error| error.source());
    let mut codes = levels
        .filter_map(|level| level.downcast_ref::<sqlx::Error>())
        .filter_map(|error| error.as_database_error())
        .filter_map(|answer| answer.code());
    codes.find_map(|code| match &*code {
        "55P03" | "40P01" | "40001" => Some(Hindrance::HeldUp),
        "57014" => Some(Hindrance::Slow),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::sealed::Failure as _;
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the stock could not be read")]
    struct Stock(#[from] sqlx::Error);

    fn reads() -> Result<(), Fail<Stock>> {
        Err(sqlx::Error::RowNotFound)?;
        Ok(())
    }

    fn asks(answer: sqlx::Result<()>) -> Result<(), Fail<Stock>> {
        answer.map_err(Fail::retry)?;
        Ok(())
    }

    #[test]
    fn an_error_that_comes_along_may_have_happened() {
        let failed = reads().unwrap_err().told();
        assert_eq!(failed.verdict, Verdict::again(None, true));
        assert!(failed.error.contains("no rows returned"), "{failed:?}");
    }

    #[test]
    fn a_database_that_can_not_be_reached_costs_no_attempt() {
        let away = || -> Result<(), Fail<Stock>> { Ok(Err(sqlx::Error::PoolTimedOut)?) };
        let unreachable = Verdict::Again {
            after: Some(UNREACHABLE),
            unsure: true,
            counts: false,
        };
        assert_eq!(away().unwrap_err().told().verdict, unreachable);
        let away = || -> Result<(), Again> { Ok(Err(sqlx::Error::PoolTimedOut)?) };
        assert_eq!(away().unwrap_err().told().verdict, unreachable);
    }

    #[test]
    fn what_is_known_not_to_have_happened_is_sure() {
        let failed = asks(Err(sqlx::Error::RowNotFound)).unwrap_err().told();
        assert_eq!(failed.verdict, Verdict::again(None, false));
    }
}
