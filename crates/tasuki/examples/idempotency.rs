//! A request that is sent twice is done once and answered twice, with the same bytes.
//!
//! `cargo run -p tasuki --example idempotency -- postgres://localhost/example`

use sqlx::{PgConnection, PgPool};
use tasuki::Schema;
use tasuki::idempotency::{self, Answer, Keys, Outcome, Reply, Request, RequestHash};
use tasuki::worker::Error;
use uuid::Uuid;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).ok_or("give a database URL")?;
    let pool = PgPool::connect(&url).await?;
    let schema = Schema::new("idempotency_example")?;
    tasuki::migrate(&pool, schema.as_str()).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS idempotency_example.grants (grant_id uuid, sku text)")
        .execute(&pool)
        .await?;
    let keys = Keys::new(&schema);
    let key = Uuid::now_v7().to_string();
    let before = grants(&pool).await?;

    // Our own trouble is nobody's decision: rolled back, and the key stays free.
    let sword = request(&key, r#"{"sku": "sword", "user": "ada"}"#)?;
    let busy = Reply::new(503, "try again");
    let outcome = keys
        .once(&pool, &sword, async |tx| {
            grant(tx, "sword").await?;
            Ok::<_, Error>(Answer::Undecided(busy))
        })
        .await?;
    println!("undecided: {}", outcome.reply().status());

    // The same key succeeds: the grant and its answer commit together.
    let first = once(&keys, &pool, &sword).await?;
    println!("executed:  {}", text(&first));
    assert!(matches!(first, Outcome::Executed(_)));

    // The client never saw the answer and asks again. Other spacing is the same request.
    let again = request(&key, r#"{ "user": "ada", "sku": "sword" }"#)?;
    let second = once(&keys, &pool, &again).await?;
    println!("replayed:  {}", text(&second));
    assert_eq!(second, Outcome::Replayed(first.into_reply()));

    // Another request must not hide behind a used key.
    let shield = request(&key, r#"{"sku": "shield", "user": "ada"}"#)?;
    let refused = once(&keys, &pool, &shield).await;
    let conflict = refused.err().ok_or("the key was used")?;
    println!("refused:   {conflict}");
    let conflict = conflict.downcast_ref::<idempotency::Error>();
    assert!(matches!(conflict, Some(idempotency::Error::Conflict)));

    let grants = grants(&pool).await? - before;
    println!("granted:   {grants} time");
    assert_eq!(grants, 1);
    Ok(())
}

/// Keys belong to their caller; method, path and canonical body tell requests apart.
fn request(key: &str, body: &str) -> Result<Request, idempotency::Error> {
    let hash = RequestHash::of("POST", "/v1/grants", body.as_bytes());
    Request::new("shop", key, hash)
}

async fn once(keys: &Keys, pool: &PgPool, request: &Request) -> Result<Outcome, Error> {
    keys.once(pool, request, async |tx| {
        let id = grant(tx, "sword").await?;
        let body = format!(r#"{{"grant": "{id}"}}"#);
        Ok(Answer::Decided(Reply::new(201, body)))
    })
    .await
}

/// The effect. It has a new id each time it happens, so a second one would show.
async fn grant(tx: &mut PgConnection, sku: &str) -> Result<Uuid, Error> {
    let id = Uuid::now_v7();
    sqlx::query("INSERT INTO idempotency_example.grants (grant_id, sku) VALUES ($1, $2)")
        .bind(id)
        .bind(sku)
        .execute(tx)
        .await?;
    Ok(id)
}

async fn grants(pool: &PgPool) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT count(*) FROM idempotency_example.grants")
        .fetch_one(pool)
        .await
}

fn text(outcome: &Outcome) -> String {
    String::from_utf8_lossy(outcome.reply().body()).into_owned()
}
