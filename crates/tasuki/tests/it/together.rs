//! Writes that travel together: all of them, or none.

use sqlx::postgres::PgArguments;
use sqlx::{Arguments as _, PgPool};
use tasuki::idempotency::{Keys, Opened, Reply, Request, RequestHash};
use tasuki::outbox::{Event, Outbox};
use tasuki::together::{self, Together};
use tasuki::{Clock, Schema};
use tasuki_testkit::TestDb;

const OWN: &str = "
WITH bought AS (
    INSERT INTO app.orders (id)
    SELECT id FROM unnest($1::bigint[]) AS id
    RETURNING 1
)

SELECT count(*) FROM bought
";

struct Shop {
    db: TestDb,
    keys: Keys,
    outbox: Outbox,
}

impl Shop {
    async fn open() -> Self {
        let schema = Schema::new("app").unwrap();
        let db = TestDb::new(&[tasuki::migrate::library(&schema)]).await;
        let orders = "CREATE TABLE app.orders (id bigint PRIMARY KEY)";
        sqlx::query(orders).execute(&db.pool).await.unwrap();
        Self {
            db,
            keys: Keys::new(&schema),
            outbox: Outbox::new(&schema),
        }
    }

    /// Orders, an event for each, and an answer under `key`, committed if all could be written.
    async fn order(&self, orders: &[i64], key: &str) -> Result<(), together::Error> {
        let mut arguments = PgArguments::default();
        arguments.add(orders.to_vec()).unwrap();
        let mut together = Together::new("orders", OWN, arguments, orders.len());
        let events: Vec<Event> = orders.iter().map(|order| event(*order)).collect();
        self.outbox.enqueue_with(&mut together, &events).unwrap();
        let (request, reply) = (request(key), Reply::new(200, key.to_owned()));
        let answered = [(&request, &reply)];
        self.keys.store_with(&mut together, &answered).unwrap();
        let mut tx = tasuki::begin(&self.db.pool).await.unwrap();
        together.run(&mut tx).await?;
        tx.commit().await.unwrap();
        Ok(())
    }

    async fn written(&self) -> (Vec<i64>, Vec<String>, i64) {
        let pool: &PgPool = &self.db.pool;
        let orders = sqlx::query_scalar("SELECT id FROM app.orders ORDER BY id");
        let events = "SELECT aggregate_key FROM app.outbox_events ORDER BY seq";
        let answers = sqlx::query_scalar("SELECT count(*) FROM app.idempotency_keys");
        (
            orders.fetch_all(pool).await.unwrap(),
            sqlx::query_scalar(events).fetch_all(pool).await.unwrap(),
            answers.fetch_one(pool).await.unwrap(),
        )
    }
}

fn event(order: i64) -> Event {
    let id = tasuki::uuid_v7(&Clock::system());
    Event::new(id, "Ordered", format!("order:{order}"), "{}")
}

fn request(key: &str) -> Request {
    let hash = RequestHash::of("POST", "/", key.as_bytes());
    Request::new("shop", key, hash).unwrap()
}

#[tokio::test]
async fn rows_events_and_answers_are_written_by_one_statement_in_their_order() {
    let shop = Shop::open().await;
    shop.order(&[3, 1, 2], "k").await.unwrap();
    let events = ["order:3", "order:1", "order:2"].map(str::to_owned);
    assert_eq!(shop.written().await, (vec![1, 2, 3], events.to_vec(), 1));

    let again = request("k");
    let asked = [(&again, Vec::new())];
    let (_tx, opened) = shop.keys.begin_all(&shop.db.pool, &asked).await.unwrap();
    assert_eq!(opened, [Opened::Stored(Reply::new(200, "k"))]);
}

#[tokio::test]
async fn a_part_that_can_not_write_all_of_its_rows_fails_the_others() {
    let shop = Shop::open().await;
    shop.order(&[1], "k").await.unwrap();
    let before = shop.written().await;

    match shop.order(&[2], "k").await {
        Err(together::Error::Short {
            part,
            expected,
            got,
        }) => {
            assert_eq!((part, expected, got), ("answers", 1, 0));
        }
        other => panic!("an answer is kept under this key: {other:?}"),
    }
    assert_eq!(shop.written().await, before);

    let refused = shop.order(&[1], "other").await;
    assert!(matches!(refused, Err(together::Error::Store(_))));
    assert_eq!(shop.written().await, before);
}
