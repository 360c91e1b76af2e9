//! The books of the simulated payment provider.

use sqlx::PgConnection;

/// What the provider has under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Booked {
    pub(crate) outcome: Outcome,
    pub(crate) amount: i64,
    pub(crate) refunded: i64,
    pub(crate) refuses_refund: bool,
    /// Nobody had asked under this key before.
    pub(crate) is_new: bool,
}

/// What the provider decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Approved,
    Declined,
    /// Undone before it was ever done.
    Voided,
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "APPROVED",
            Self::Declined => "DECLINED",
            Self::Voided => "VOIDED",
        }
    }

    fn parse(text: &str) -> sqlx::Result<Self> {
        let mut all = [Self::Approved, Self::Declined, Self::Voided].into_iter();
        all.find(|outcome| outcome.as_str() == text)
            .ok_or_else(|| super::unknown("outcome"))
    }
}

/// A charge that somebody asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) key: &'a str,
    pub(crate) amount: i64,
    pub(crate) currency: &'a str,
    pub(crate) method: &'a str,
}

/// Books `asked` as `outcome`, unless there is something under its key: then that stands.
pub(crate) async fn book(
    connection: &mut PgConnection,
    asked: Asked<'_>,
    outcome: Outcome,
    refuses_refund: bool,
) -> sqlx::Result<Booked> {
    let row = sqlx::query!(
        r#"
        INSERT INTO shop.simulated_charges AS charge (
            idem_key, outcome, amount, currency, payment_method, refuses_refund
        )
        VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT (idem_key) DO UPDATE
        SET calls = charge.calls + 1
        RETURNING outcome, amount, refunded, refuses_refund, calls = 1 AS "is_new!"
        "#,
        asked.key,
        outcome.as_str(),
        asked.amount,
        asked.currency,
        asked.method,
        refuses_refund,
    )
    .fetch_one(connection)
    .await?;
    Ok(Booked {
        outcome: Outcome::parse(&row.outcome)?,
        amount: row.amount,
        refunded: row.refunded,
        refuses_refund: row.refuses_refund,
        is_new: row.is_new,
    })
}

/// Gives the money back, all of it. Refused while `refuses_refund`.
pub(crate) async fn refund(connection: &mut PgConnection, key: &str) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        UPDATE shop.simulated_charges
        SET refunded = amount
        WHERE idem_key = $1 AND NOT refuses_refund
        "#,
        key,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}
