//! How a step may fail, as types: what can abort a saga can't stand behind its pivot.
//!
//! [`Fail`] knows four ends of an attempt beside success; [`Again`] knows no abort. `?` turns any
//! error into either: tried again. Nobody can say of an error that just came along whether the
//! effect happened, so for an outside effect it counts as *unknown*.

use std::time::Duration;

use crate::jobs::BoxError;
use crate::lease::told;

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
    /// Another transaction was in the way, or it took longer than a shared one may.
    pub(super) contended: bool,
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
    },
    /// A person must look.
    Stuck,
}

impl Failed {
    fn of(how: How, error: impl Into<BoxError>) -> Self {
        let error = error.into();
        let verdict = match how {
            How::Abort => Verdict::Abort,
            How::Retry(after) => Verdict::Again {
                after,
                unsure: false,
            },
            How::Unknown => Verdict::Again {
                after: None,
                unsure: true,
            },
            How::Stuck => Verdict::Stuck,
        };
        Self {
            verdict,
            contended: is_contended(&*error),
            error: told(&*error),
        }
    }

    /// An attempt of which nobody knows how it ended.
    pub(super) fn unsure(error: impl Into<String>) -> Self {
        Self::with(
            Verdict::Again {
                after: None,
                unsure: true,
            },
            error,
        )
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
            error: error.into(),
            contended: false,
        }
    }
}

/// Whether the database gave up waiting for others, or on a statement that took long.
fn is_contended(error: &(dyn std::error::Error + 'static)) -> bool {
    let levels = std::iter::successors(Some(error), |error| error.source());
    let mut codes = levels
        .filter_map(|level| level.downcast_ref::<sqlx::Error>())
        .filter_map(|error| error.as_database_error())
        .filter_map(|answer| answer.code());
    codes.any(|code| matches!(&*code, "55P03" | "57014" | "40P01" | "40001"))
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
        assert_eq!(
            failed.verdict,
            Verdict::Again {
                after: None,
                unsure: true
            }
        );
        assert!(failed.error.contains("no rows returned"), "{failed:?}");
    }

    #[test]
    fn what_is_known_not_to_have_happened_is_sure() {
        let failed = asks(Err(sqlx::Error::RowNotFound)).unwrap_err().told();
        assert_eq!(
            failed.verdict,
            Verdict::Again {
                after: None,
                unsure: false
            }
        );
    }
}
