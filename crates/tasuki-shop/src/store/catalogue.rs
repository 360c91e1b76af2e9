//! What the shop sells, and for how much.

use sqlx::PgConnection;

use crate::domain::Price;

/// The prices of those of `skus` that are sold.
pub(crate) async fn prices(
    connection: &mut PgConnection,
    skus: &[String],
) -> sqlx::Result<Vec<Price>> {
    sqlx::query_as!(
        Price,
        r#"
        SELECT stock_keeping_unit AS sku, price, currency, consumable
        FROM shop.products
        WHERE stock_keeping_unit = ANY ($1)
        "#,
        skus,
    )
    .fetch_all(connection)
    .await
}

/// Sells a SKU, or sells it otherwise from now on. Orders that were taken keep their prices.
pub(crate) async fn put(connection: &mut PgConnection, price: &Price) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO shop.products (stock_keeping_unit, price, currency, consumable)
        VALUES ($1, $2, $3, $4)
        ON CONFLICT (stock_keeping_unit) DO UPDATE
        SET price = excluded.price,
            currency = excluded.currency,
            consumable = excluded.consumable,
            updated_at = now()
        "#,
        price.sku,
        price.price,
        price.currency,
        price.consumable,
    )
    .execute(connection)
    .await?;
    Ok(())
}
