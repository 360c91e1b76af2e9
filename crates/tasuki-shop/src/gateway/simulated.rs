//! A payment provider that does what the payment method says, and keeps books of its own.
//!
//! | payment method | what happens |
//! | --- | --- |
//! | `test-decline` | declined |
//! | `test-timeout` | no answer, ever, and no money |
//! | `test-late` | approved, but the first answer comes too late |
//! | `test-late-gone` | approved, and no answer ever tells of it |
//! | `test-duplicate` | approved, and told as a duplicate from the first call on |
//! | `test-refund-refused` | approved; refunds are refused while the books say so |
//! | anything else | approved |
//!
//! The books are rows of their own, written by connections of their own: no transaction of the shop
//! can take them back, as with a real provider.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::PgPool;
use tasuki::testing::crash_point;
use tokio::time::sleep;

use super::{ChargeError, Charged, Gateway, RefundError, Refunded};
use crate::domain::Money;
use crate::store::provider::{self, Asked, Booked, Outcome};

/// The provider.
#[derive(Clone, Debug)]
pub(crate) struct Simulated {
    pool: PgPool,
    /// Longer than anybody waits for an answer.
    too_late: Duration,
}

/// What a payment method stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Script {
    Approve,
    Decline,
    TimeOut,
    Late,
    LateGone,
    Duplicate,
    RefundRefused,
}

impl Script {
    fn of(method: &str) -> Self {
        match method {
            "test-decline" => Self::Decline,
            "test-timeout" => Self::TimeOut,
            "test-late" => Self::Late,
            "test-late-gone" => Self::LateGone,
            "test-duplicate" => Self::Duplicate,
            "test-refund-refused" => Self::RefundRefused,
            _ => Self::Approve,
        }
    }
}

impl Simulated {
    /// The provider whose books are in the database of `pool`, for callers who wait for
    /// `patience`.
    pub(crate) fn new(pool: PgPool, patience: Duration) -> Self {
        Self {
            pool,
            too_late: patience * 2,
        }
    }

    async fn answer(&self, asked: Asked<'_>) -> Result<Charged, ChargeError> {
        let script = Script::of(asked.method);
        if script == Script::TimeOut {
            return self.silence().await;
        }
        let booked = self.book(asked, script).await?;
        match (booked.outcome, script) {
            (Outcome::Voided, _) => Err(ChargeError::Declined("it was given up".to_owned())),
            (Outcome::Declined, _) => Err(ChargeError::Declined("insufficient funds".to_owned())),
            (Outcome::Approved, Script::LateGone) => self.silence().await,
            (Outcome::Approved, Script::Late) if booked.is_new => self.silence().await,
            (Outcome::Approved, Script::Duplicate) => Err(ChargeError::Duplicate {
                reference: reference(asked.key),
            }),
            (Outcome::Approved, _) => Ok(Charged {
                reference: reference(asked.key),
            }),
        }
    }

    async fn book(&self, asked: Asked<'_>, script: Script) -> Result<Booked, ChargeError> {
        let outcome = match script {
            Script::Decline => Outcome::Declined,
            _ => Outcome::Approved,
        };
        let refuses_refund = script == Script::RefundRefused;
        let mut connection = self.pool.acquire().await.map_err(unanswered)?;
        let booked = provider::book(&mut connection, asked, outcome, refuses_refund);
        let booked = booked.await.map_err(unanswered)?;
        crash_point("shop.provider_charged");
        Ok(booked)
    }

    /// Says nothing for longer than anybody listens.
    async fn silence<T>(&self) -> Result<T, ChargeError> {
        sleep(self.too_late).await;
        Err(ChargeError::Unanswered("too late".to_owned()))
    }

    async fn give_back(&self, key: &str) -> Result<Refunded, RefundError> {
        let unanswered = |error: sqlx::Error| RefundError::Unanswered(error.to_string());
        let mut connection = self.pool.acquire().await.map_err(unanswered)?;
        // Whatever comes first takes the key: a charge that comes later finds it taken.
        let void = Asked {
            key,
            amount: 0,
            currency: "",
            method: "",
        };
        let booked = provider::book(&mut connection, void, Outcome::Voided, false);
        let booked = booked.await.map_err(unanswered)?;
        if booked.outcome != Outcome::Approved {
            return Ok(Refunded::Nothing);
        }
        if booked.refunded < booked.amount {
            let refunded = provider::refund(&mut connection, key).await;
            if !refunded.map_err(unanswered)? {
                return Err(RefundError::Refused(key.to_owned()));
            }
        }
        crash_point("shop.provider_refunded");
        Ok(Refunded::Money)
    }
}

impl Gateway for Simulated {
    fn charge<'a>(
        &'a self,
        key: &'a str,
        money: &'a Money,
        method: &'a str,
    ) -> BoxFuture<'a, Result<Charged, ChargeError>> {
        let asked = Asked {
            key,
            amount: money.amount,
            currency: &money.currency,
            method,
        };
        self.answer(asked).boxed()
    }

    fn refund<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Refunded, RefundError>> {
        self.give_back(key).boxed()
    }
}

fn reference(key: &str) -> String {
    format!("sim_{key}")
}

#[expect(clippy::needless_pass_by_value, reason = "it maps an error")]
fn unanswered(error: sqlx::Error) -> ChargeError {
    ChargeError::Unanswered(error.to_string())
}
