//! The code of `docs/start/outbox-in-ten-minutes.md`, in one piece: a bookshop that takes
//! orders, and a consumer that counts what was sold. Neither loses an order, nor counts it twice.
//!
//! `cargo run -p tasuki --example guide -- postgres://localhost/bookshop nats://localhost`

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tasuki::bus::{Consumer, ConsumerSpec, Delivery, Handler, NatsBus, StreamSpec, Verdict};
use tasuki::idempotency::{Keys, Layer, Tx};
use tasuki::inbox::Inbox;
use tasuki::outbox::{self, Event, Outbox, Reconciler, RelaySettings, Routes};
use tasuki::upkeep::Upkeep;
use tasuki::worker::{Error, Supervisor};
use tasuki::{Clock, Schema};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

/// Our own tables. The library's stand beside them, in the same schema.
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS bookshop.orders (
    order_id uuid PRIMARY KEY, title text NOT NULL, copies integer NOT NULL
);
CREATE TABLE IF NOT EXISTS bookshop.sales (title text PRIMARY KEY, sold bigint NOT NULL)";

#[derive(Clone)]
struct Shop {
    pool: PgPool,
    outbox: Outbox,
}

#[derive(Serialize, Deserialize)]
struct Order {
    title: String,
    copies: i32,
}

async fn place(
    State(shop): State<Shop>,
    mut tx: Tx,
    Json(order): Json<Order>,
) -> Result<(StatusCode, String), Failed> {
    let id = Uuid::now_v7();
    sqlx::query("INSERT INTO bookshop.orders (order_id, title, copies) VALUES ($1, $2, $3)")
        .bind(id)
        .bind(&order.title)
        .bind(order.copies)
        .execute(&mut *tx)
        .await?;
    let about = format!("order:{id}");
    let payload = serde_json::to_vec(&order)?;
    let event = Event::new(Uuid::now_v7(), "OrderPlaced", about, payload);
    shop.outbox.enqueue(&mut tx, &event).await?;
    Ok((StatusCode::CREATED, id.to_string()))
}

/// Whatever went wrong on our side. Answered 500, so nothing is kept and the client may repeat.
struct Failed;

impl<E: Into<Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        eprintln!("failed: {}", error.into());
        Self
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

fn router(shop: Shop, schema: &Schema) -> Router {
    // Whose keys they are: yours comes from your authentication.
    let caller = |_: &http::request::Parts| Some("website".to_owned());
    let once = Layer::new(Keys::new(schema), shop.pool.clone(), caller);
    Router::new()
        .route("/orders", post(place))
        .route_layer(once)
        .route_layer(middleware::map_response_with_state(shop.clone(), ring))
        .route("/sales/{title}", get(sold))
        .with_state(shop)
}

/// Outside of the layer, and so after its commit: saves the event the wait for the next poll.
async fn ring(State(shop): State<Shop>, response: Response) -> Response {
    shop.outbox.ring();
    response
}

async fn sold(State(shop): State<Shop>, Path(title): Path<String>) -> Result<String, Failed> {
    let sold: Option<i64> = sqlx::query_scalar("SELECT sold FROM bookshop.sales WHERE title = $1")
        .bind(title)
        .fetch_optional(&shop.pool)
        .await?;
    Ok(sold.unwrap_or(0).to_string())
}

fn stream() -> StreamSpec {
    StreamSpec::new("bookshop-events", ["bookshop.events"])
}

fn start_relay(supervisor: &Supervisor, shop: &Shop, bus: NatsBus) {
    let (bus, pool) = (Arc::new(bus), shop.pool.clone());
    let routes = Routes::to("bookshop.events");
    let settings = RelaySettings::new("bookshop.outbox", pool.clone(), routes);
    let relay = outbox::relay(&shop.outbox, Arc::clone(&bus), settings);
    let streams = vec![stream()];
    let reconciler = Reconciler::new("bookshop.reconcile", &shop.outbox, bus, pool, streams)
        .suspecting(relay.work().suspicion());
    supervisor.start(relay);
    supervisor.start(reconciler);
}

struct Sales {
    pool: PgPool,
    inbox: Inbox,
}

impl Handler for Sales {
    async fn handle(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, Error> {
        let mut verdicts = Vec::with_capacity(batch.len());
        for delivery in batch {
            verdicts.push(self.count(delivery).await?);
        }
        Ok(verdicts)
    }
}

impl Sales {
    async fn count(&self, delivery: &Delivery) -> Result<Verdict, Error> {
        let order = serde_json::from_slice::<Order>(&delivery.payload);
        let (Some(id), Ok(order)) = (delivery.id, order) else {
            let reason = "not an order".to_owned();
            return Ok(Verdict::Reject { reason });
        };
        let count = async |tx: &mut sqlx::PgConnection| {
            sqlx::query(
                "INSERT INTO bookshop.sales AS s (title, sold) VALUES ($1, $2)
                 ON CONFLICT (title) DO UPDATE SET sold = s.sold + EXCLUDED.sold",
            )
            .bind(&order.title)
            .bind(i64::from(order.copies))
            .execute(tx)
            .await?;
            Ok::<_, Error>(())
        };
        match self.inbox.once(&self.pool, "sales", id, count).await? {
            Some(()) => println!("counted {}", order.title),
            None => println!("had {} already", order.title),
        }
        Ok(Verdict::Done)
    }
}

/// Ctrl-C, or what an orchestrator sends.
async fn told_to_stop() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        told = tokio::signal::ctrl_c() => told,
        _ = terminate.recv() => Ok(()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let database = arguments.next().ok_or("give a database URL")?;
    let nats = arguments.next().ok_or("give a NATS URL")?;
    let address = arguments.next().unwrap_or("127.0.0.1:3000".to_owned());

    let pool = PgPool::connect(&database).await?;
    tasuki::migrate(&pool, "bookshop").await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    let schema = Schema::new("bookshop")?;
    let shop = Shop {
        pool: pool.clone(),
        outbox: Outbox::new(&schema),
    };

    let supervisor = Supervisor::new(Clock::system());
    let connecting = async_nats::ConnectOptions::new().retry_on_initial_connect();
    let bus = NatsBus::new(connecting.connect(nats).await?).with_stream(stream());
    start_relay(&supervisor, &shop, bus.clone());

    let sales = Sales {
        pool: pool.clone(),
        inbox: Inbox::new(&schema),
    };
    let spec = ConsumerSpec::new(stream(), "sales");
    let consumer = Consumer::new("bookshop.sales", bus, spec, sales);
    supervisor.start(consumer.remembering(pool.clone(), &schema));

    supervisor.start(Upkeep::new(pool, &schema));

    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, router(shop, &schema))
        .with_graceful_shutdown(async { told_to_stop().await.unwrap_or_default() })
        .await?;
    let stopped = supervisor.stop(Duration::from_secs(10)).await;
    println!("stopped: {stopped:?}");
    Ok(())
}
