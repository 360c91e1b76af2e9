//! Payments: how far each is. It moves as the table of [`crate::payments`] says, and in no other way:
//! every statement names the state that it moves from.

use sqlx::PgConnection;
use tasuki_contract::ids::PaymentId;

use crate::orders::Dossier;

/// How far a payment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PaymentState {
    Pending,
    Completed,
    /// Given up: what was taken goes back.
    Refunding,
    Failed,
    Refunded,
}

impl PaymentState {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Completed => "COMPLETED",
            Self::Refunding => "REFUNDING",
            Self::Failed => "FAILED",
            Self::Refunded => "REFUNDED",
        }
    }
}

/// Writes down that the provider is about to be asked. Says whether that is new.
pub(crate) async fn begin(tx: &mut PgConnection, dossier: &Dossier) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        INSERT INTO shop.payments (
            payment_id, order_id, state, amount, currency, payment_method
        )
        VALUES ($1, $2, 'PENDING', $3, $4, $5)
        ON CONFLICT DO NOTHING
        "#,
        dossier.payment.as_uuid(),
        dossier.order.as_uuid(),
        dossier.money.amount,
        dossier.money.currency,
        dossier.payment_method,
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// How far a payment is; nothing before it was begun.
pub(crate) async fn state(
    connection: &mut PgConnection,
    payment: PaymentId,
) -> sqlx::Result<Option<PaymentState>> {
    let text = sqlx::query_scalar!(
        "SELECT state FROM shop.payments WHERE payment_id = $1",
        payment.as_uuid(),
    )
    .fetch_optional(connection)
    .await?;
    let all = [
        PaymentState::Pending,
        PaymentState::Completed,
        PaymentState::Refunding,
        PaymentState::Failed,
        PaymentState::Refunded,
    ];
    Ok(text.and_then(|text| all.into_iter().find(|state| state.as_str() == text)))
}

/// The provider has the money: says whether this is how it ended. Not if it was given up before.
pub(crate) async fn complete(
    tx: &mut PgConnection,
    payment: PaymentId,
    reference: &str,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        UPDATE shop.payments
        SET state = 'COMPLETED', reference = $2, updated_at = clock_timestamp()
        WHERE payment_id = $1 AND state = 'PENDING'
        "#,
        payment.as_uuid(),
        reference,
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// There will be no money, as is known of a payment that is `from`: says whether that is new.
pub(crate) async fn fail(
    tx: &mut PgConnection,
    payment: PaymentId,
    from: PaymentState,
    reason: &str,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        UPDATE shop.payments
        SET state = 'FAILED', reason = $3, updated_at = clock_timestamp()
        WHERE payment_id = $1 AND state = $2
        "#,
        payment.as_uuid(),
        from.as_str(),
        reason,
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Whatever was taken goes back: says whether that is new, and the payment was `from` until now.
pub(crate) async fn give_up(
    tx: &mut PgConnection,
    payment: PaymentId,
    from: PaymentState,
) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        UPDATE shop.payments
        SET state = 'REFUNDING', updated_at = clock_timestamp()
        WHERE payment_id = $1 AND state = $2
        "#,
        payment.as_uuid(),
        from.as_str(),
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The money is back: says whether that is new. A charge whose answer never came may be refunded
/// without having been completed here.
pub(crate) async fn refund(tx: &mut PgConnection, payment: PaymentId) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        r#"
        UPDATE shop.payments
        SET state = 'REFUNDED', updated_at = clock_timestamp()
        WHERE payment_id = $1 AND state = 'REFUNDING'
        "#,
        payment.as_uuid(),
    )
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}
