//! An axum service whose `POST` can be sent again: one layer around the router.
//!
//! `cargo run -p tasuki --example idempotency_layer -- postgres://localhost/example`

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use sqlx::PgPool;
use tasuki::Schema;
use tasuki::idempotency::{Keys, Layer, Tx};
use tasuki::worker::Error;
use tower::ServiceExt;
use uuid::Uuid;

/// Works in the transaction of the layer, which commits it with the answer.
async fn grant(mut tx: Tx, sku: String) -> Result<(StatusCode, String), StatusCode> {
    let id = Uuid::now_v7();
    sqlx::query("INSERT INTO idempotency_layer_example.grants (grant_id, sku) VALUES ($1, $2)")
        .bind(id)
        .bind(sku)
        .execute(&mut *tx)
        .await
        // Not kept: the client may try again with the same key.
        .map_err(|_away| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok((StatusCode::CREATED, id.to_string()))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).ok_or("give a database URL")?;
    let pool = PgPool::connect(&url).await?;
    let schema = Schema::new("idempotency_layer_example")?;
    tasuki::migrate(&pool, schema.as_str()).await?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS idempotency_layer_example.grants (grant_id uuid, sku text)",
    )
    .execute(&pool)
    .await?;

    // Whose key it is. A real service takes it from what its authentication found out.
    let caller = |_: &http::request::Parts| Some("shop".to_owned());
    let router = Router::new()
        .route("/grants", post(grant))
        .route_layer(Layer::new(Keys::new(&schema), pool, caller));

    let key = Uuid::now_v7().to_string();
    let first = send(&router, Some(&key), "sword").await?;
    let again = send(&router, Some(&key), "sword").await?;
    assert_eq!(first, again);

    let other = send(&router, Some(&key), "shield").await?;
    assert_eq!(other.0, StatusCode::CONFLICT);
    let keyless = send(&router, None, "sword").await?;
    assert_eq!(keyless.0, StatusCode::BAD_REQUEST);
    Ok(())
}

/// Calls the router in this process, as a client would over the network.
async fn send(
    router: &Router,
    key: Option<&str>,
    sku: &'static str,
) -> Result<(StatusCode, String), Error> {
    let mut request = Request::post("/grants");
    if let Some(key) = key {
        request = request.header("Idempotency-Key", key);
    }
    let response = router
        .clone()
        .oneshot(request.body(Body::from(sku))?)
        .await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    let body = String::from_utf8(body.to_vec())?;
    println!("{sku:6} {status}: {body}");
    Ok((status, body))
}
