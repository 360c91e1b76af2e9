//! Money and goods, compared. Each statement reads what has changed, or a page: none reads all that
//! ever was.

use std::time::Duration;

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::interval;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) kind: String,
    pub(crate) order_id: Option<Uuid>,
    pub(crate) subject: String,
}

/// The place of a row in the order in which rows are read.
#[derive(Clone, Debug)]
pub(crate) struct Place<K> {
    pub(crate) at: Option<OffsetDateTime>,
    pub(crate) key: K,
}

/// How far it has been compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// The time by the database's clock.
    pub(crate) now: OffsetDateTime,
    /// What ended before is compared.
    pub(crate) up_to: Option<OffsetDateTime>,
    pub(crate) compared_at: Option<OffsetDateTime>,
}

/// A charge of the provider.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) key: String,
    pub(crate) created_at: OffsetDateTime,
    /// Whether the provider has money that no payment knows of.
    pub(crate) is_stray: bool,
}

/// What a transfer has done to a SKU in one warehouse.
#[derive(Clone, Debug)]
pub(crate) struct Half {
    pub(crate) transfer: Uuid,
    pub(crate) sku: String,
    pub(crate) quantity: i64,
}

/// Lets the statements of this transaction take their time, up to `limit` or for as long as it takes, and
/// lets it wait for so long between them: another database may be read meanwhile.
pub(crate) async fn take_time(tx: &mut PgConnection, limit: Option<Duration>) -> sqlx::Result<()> {
    let millis = limit.map_or(0, |limit| limit.as_millis()).to_string();
    sqlx::query!(
        r#"
        SELECT
            set_config('statement_timeout', $1, TRUE) AS "statement!",
            set_config('idle_in_transaction_session_timeout', $1, TRUE) AS "idle!"
        "#,
        millis,
    )
    .fetch_one(tx)
    .await?;
    Ok(())
}

/// How far it has been compared.
pub(crate) async fn standing(connection: &mut PgConnection) -> sqlx::Result<Standing> {
    sqlx::query_as!(
        Standing,
        r#"
        SELECT clock_timestamp() AS "now!", up_to, compared_at
        FROM shop.reconciliation
        "#,
    )
    .fetch_one(connection)
    .await
}

/// The same, if it is `every` since the last time and nobody else is at it; and nobody else will be
/// until the transaction ends.
pub(crate) async fn hold(tx: &mut PgConnection, every: Duration) -> sqlx::Result<Option<Standing>> {
    sqlx::query_as!(
        Standing,
        r#"
        SELECT clock_timestamp() AS "now!", up_to, compared_at
        FROM shop.reconciliation
        WHERE compared_at IS NULL OR compared_at <= clock_timestamp() - $1::interval
        FOR UPDATE SKIP LOCKED
        "#,
        interval(every),
    )
    .fetch_optional(tx)
    .await
}

/// Writes down what did not match, and how far it was compared; nothing of the latter if it could not
/// all be.
pub(crate) async fn put(
    tx: &mut PgConnection,
    wrong: &[Wrong],
    up_to: Option<OffsetDateTime>,
) -> sqlx::Result<()> {
    let kinds: Vec<_> = wrong.iter().map(|it| it.kind.clone()).collect();
    let subjects: Vec<_> = wrong.iter().map(|it| it.subject.clone()).collect();
    let orders: Vec<_> = wrong.iter().map(|it| it.order_id).collect();
    sqlx::query!(
        r#"
        WITH found AS (
            SELECT kind, subject, order_id
            FROM unnest($1::text[], $2::text[], $3::uuid[]) AS found (kind, subject, order_id)
        ), gone AS (
            DELETE FROM shop.mismatches AS old
            WHERE NOT EXISTS (
                SELECT FROM found
                WHERE found.kind = old.kind AND found.subject = old.subject
            )
        )
        INSERT INTO shop.mismatches (kind, subject, order_id, found_at)
        SELECT DISTINCT ON (kind, subject) kind, subject, order_id, clock_timestamp()
        FROM found
        ON CONFLICT DO NOTHING
        "#,
        &kinds,
        &subjects,
        &orders as &[Option<Uuid>],
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        r#"
        UPDATE shop.reconciliation
        SET up_to = $1, compared_at = clock_timestamp()
        WHERE $1::timestamptz IS NOT NULL
        "#,
        up_to,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// What did not match the last time.
pub(crate) async fn open(connection: &mut PgConnection) -> sqlx::Result<Vec<Wrong>> {
    sqlx::query_as!(
        Wrong,
        "SELECT kind, order_id, subject FROM shop.mismatches ORDER BY kind, subject",
    )
    .fetch_all(connection)
    .await
}

/// Orders that have ended behind `after`, in the order of their ends.
pub(crate) async fn ended(
    connection: &mut PgConnection,
    after: &Place<Uuid>,
    limit: i64,
) -> sqlx::Result<Vec<Place<Uuid>>> {
    let rows = sqlx::query!(
        r#"
        SELECT order_id, ended_at
        FROM shop.orders
        WHERE (ended_at, order_id) > (coalesce($1::timestamptz, '-infinity'), $2)
        ORDER BY ended_at, order_id
        LIMIT $3
        "#,
        after.at,
        after.key,
        limit,
    )
    .fetch_all(connection)
    .await?;
    let places = rows.into_iter().map(|row| Place {
        at: row.ended_at,
        key: row.order_id,
    });
    Ok(places.collect())
}

/// What must not be of these orders.
pub(crate) async fn of_orders(
    connection: &mut PgConnection,
    orders: &[Uuid],
) -> sqlx::Result<Vec<Wrong>> {
    sqlx::query_file_as!(Wrong, "src/store/reconcile/orders.sql", orders)
        .fetch_all(connection)
        .await
}

/// What must not be of orders that are on their way: one that has not moved for `quiet` may have
/// been forgotten.
pub(crate) async fn of_unfinished(
    connection: &mut PgConnection,
    quiet: Duration,
) -> sqlx::Result<Vec<Wrong>> {
    sqlx::query_file_as!(Wrong, "src/store/reconcile/unfinished.sql", interval(quiet))
        .fetch_all(connection)
        .await
}

/// What must not be of the stock in this database; `all` of its moves are added up if somebody has
/// the time.
pub(crate) async fn of_stock(connection: &mut PgConnection, all: bool) -> sqlx::Result<Vec<Wrong>> {
    sqlx::query_file_as!(Wrong, "src/store/reconcile/stock.sql", all)
        .fetch_all(connection)
        .await
}

/// SKUs behind `after` of which moves that are older than `age` are in no sum yet, in the order of their
/// names; but none whose row somebody holds. Those of the others are held until the transaction ends.
pub(crate) async fn settled(
    tx: &mut PgConnection,
    age: Duration,
    after: &str,
    limit: i64,
) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar!(
        r#"
        SELECT held.stock_keeping_unit
        FROM shop.stock AS held
        LEFT JOIN shop.stock_sums AS sums ON held.stock_keeping_unit = sums.stock_keeping_unit
        WHERE held.stock_keeping_unit > $2
            AND EXISTS (
                SELECT FROM shop.stock_moves AS moves
                WHERE moves.stock_keeping_unit = held.stock_keeping_unit
                    AND moves.moved_at >= coalesce(sums.up_to, '-infinity')
                    AND moves.moved_at < clock_timestamp() - $1::interval
            )
        ORDER BY held.stock_keeping_unit
        LIMIT $3
        FOR NO KEY UPDATE OF held SKIP LOCKED
        "#,
        interval(age),
        after,
        limit,
    )
    .fetch_all(tx)
    .await
}

/// Adds up moves of these SKUs that are older than `age`, so that nobody has to again.
pub(crate) async fn fold(
    tx: &mut PgConnection,
    age: Duration,
    skus: &[String],
) -> sqlx::Result<()> {
    sqlx::query_file!("src/store/reconcile/fold.sql", interval(age), skus)
        .execute(tx)
        .await?;
    Ok(())
}

/// Charges of the provider behind `after` and until `until`, in the order of time.
pub(crate) async fn charges(
    connection: &mut PgConnection,
    after: &Place<String>,
    until: OffsetDateTime,
    limit: i64,
) -> sqlx::Result<Vec<Charge>> {
    sqlx::query_as!(
        Charge,
        r#"
        SELECT
            charges.idem_key AS key, charges.created_at,
            charges.refunded < charges.amount AND NOT EXISTS (
                SELECT FROM shop.payments AS payments
                WHERE payments.payment_id::text || ':charge' = charges.idem_key
            ) AS "is_stray!"
        FROM shop.simulated_charges AS charges
        WHERE (charges.created_at, charges.idem_key) > (coalesce($1::timestamptz, '-infinity'), $2)
            AND charges.created_at <= $3
        ORDER BY charges.created_at, charges.idem_key
        LIMIT $4
        "#,
        after.at,
        after.key,
        until,
        limit,
    )
    .fetch_all(connection)
    .await
}

/// Those of these charges for which the provider has money that no payment knows of.
pub(crate) async fn still_stray(
    connection: &mut PgConnection,
    keys: &[String],
) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar!(
        r#"
        SELECT charges.idem_key
        FROM shop.simulated_charges AS charges
        WHERE charges.idem_key = ANY ($1)
            AND charges.refunded < charges.amount
            AND NOT EXISTS (
                SELECT FROM shop.payments AS payments
                WHERE payments.payment_id::text || ':charge' = charges.idem_key
            )
        "#,
        keys,
    )
    .fetch_all(connection)
    .await
}

/// Transfers that this database has a half of, begun since `since` and longer than `age` ago.
pub(crate) async fn transfers(
    connection: &mut PgConnection,
    since: Option<OffsetDateTime>,
    age: Duration,
) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!(
        r#"
        SELECT DISTINCT cause AS "cause!"
        FROM shop.stock_moves
        WHERE kind = 'TRANSFER'
            AND moved_at >= coalesce($1::timestamptz, '-infinity')
            AND moved_at < clock_timestamp() - $2::interval
            AND cause IS NOT NULL
        "#,
        since,
        interval(age),
    )
    .fetch_all(connection)
    .await
}

/// What these transfers have done in this database.
pub(crate) async fn halves(
    connection: &mut PgConnection,
    transfers: &[Uuid],
) -> sqlx::Result<Vec<Half>> {
    sqlx::query_as!(
        Half,
        r#"
        SELECT
            cause AS "transfer!", stock_keeping_unit AS sku, sum(quantity)::bigint AS "quantity!"
        FROM shop.stock_moves
        WHERE kind = 'TRANSFER' AND cause = ANY ($1)
        GROUP BY cause, stock_keeping_unit
        "#,
        transfers,
    )
    .fetch_all(connection)
    .await
}

/// Those of these transfers that somebody is at: one database may know more than the other.
pub(crate) async fn under_way(
    connection: &mut PgConnection,
    transfers: &[Uuid],
) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!(
        "SELECT transaction_id FROM shop.twopc_transactions WHERE transaction_id = ANY ($1)",
        transfers,
    )
    .fetch_all(connection)
    .await
}

/// Transactions that were prepared in this database longer than `age` ago, and are still: nobody ends
/// them.
pub(crate) async fn of_prepared(
    connection: &mut PgConnection,
    age: Duration,
) -> sqlx::Result<Vec<Wrong>> {
    sqlx::query_as!(
        Wrong,
        r#"
        SELECT
            'prepared_and_left_behind' AS "kind!", NULL::uuid AS "order_id?", gid AS "subject!"
        FROM pg_prepared_xacts
        WHERE database = current_database()
            AND gid LIKE 'tasuki:shop:%'
            AND prepared < clock_timestamp() - $1::interval
        "#,
        interval(age),
    )
    .fetch_all(connection)
    .await
}

/// How many orders have not ended.
pub(crate) async fn unfinished(connection: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar!(r#"SELECT count(*) AS "count!" FROM shop.orders WHERE ended_at IS NULL"#,)
        .fetch_one(connection)
        .await
}
