//! A table of one's own on the lease engine: parcels that a worker claims, sends and deletes,
//! tries again, or gives up with a dead letter.
//!
//! `cargo run -p tasuki --example lease -- postgres://localhost/example`

use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use tasuki::Schema;
use tasuki::lease::{
    Claim, Claimed, Fence, Leases, Letter, Outcome, Owner, Route, Runner, Settings, Table, Unit,
    Work,
};
use tasuki::retry::{Backoff, Next, Policy, Verdict};
use tasuki::worker::Error;
use uuid::Uuid;

/// Key and recipient are the table's own; the rest is what every table with leases has.
const CREATE: &str = "
CREATE TABLE lease_example.parcels (
    parcel_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    recipient text NOT NULL,
    status text NOT NULL DEFAULT 'PENDING',
    attempt_count integer NOT NULL DEFAULT 0,
    next_retry_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    locked_by text, locked_at timestamptz, lease_until timestamptz, claim_token uuid,
    last_error text, traceparent text
)";

/// How the engine finds the rows, and what a dead letter shows of one.
const PARCELS: Table = Table {
    name: "parcels",
    key: "parcel_id",
    claimed: "PROCESSING",
    columns: "t.recipient",
    with: "",
    pick: "SELECT t.ctid FROM {table} AS t WHERE {claimable}
        ORDER BY t.next_retry_at LIMIT $1 FOR UPDATE SKIP LOCKED",
    letter: Letter {
        queue: "'post'",
        kind: "'parcel'",
        payload: "convert_to(recipient, 'UTF8')",
    },
    lost: None,
};

#[derive(sqlx::FromRow)]
struct Parcel {
    recipient: String,
}

struct Post {
    leases: Leases,
    policy: Policy,
}

impl Post {
    /// What becomes of a parcel that could not be sent: the policy decides.
    fn failed(&self, failed_attempts: u32, verdict: Verdict, error: &str) -> Outcome<()> {
        let error = error.to_owned();
        match self.policy.next(failed_attempts + 1, verdict) {
            Next::Retry(after) => Outcome::Retry { after, error },
            Next::Snooze(after) => Outcome::Snooze { after, error },
            _ => Outcome::Dead { error },
        }
    }
}

impl Work for Post {
    type Row = Parcel;
    type Done = ();

    fn name(&self) -> &'static str {
        "example.post"
    }

    fn leases(&self) -> &Leases {
        &self.leases
    }

    async fn claim(
        &self,
        connection: &mut PgConnection,
        claim: &Claim<'_>,
    ) -> sqlx::Result<Vec<Claimed<Parcel>>> {
        self.leases.claim(connection, claim, |_| Ok(())).await
    }

    /// Outside any transaction: however long it takes, the lease is renewed meanwhile.
    async fn run(&self, unit: Vec<Claimed<Parcel>>) -> Vec<(Fence, Outcome<()>)> {
        let mut ended = Vec::with_capacity(unit.len());
        for parcel in unit {
            let failed = parcel.failed_attempts;
            let outcome = match (parcel.row.recipient.as_str(), failed) {
                ("nobody", _) => self.failed(failed, Verdict::Reject, "no such address"),
                ("bob", 0) => self.failed(failed, Verdict::Retry, "bob is out"),
                _ => Outcome::Done(()),
            };
            println!("{}: {outcome:?}", parcel.row.recipient);
            ended.push((parcel.fence, outcome));
        }
        ended
    }

    /// A claim that was lost meanwhile deletes nothing: its fence does not match.
    async fn settle(
        &self,
        connection: &mut PgConnection,
        done: &[(Fence, ())],
    ) -> sqlx::Result<Vec<Uuid>> {
        let fences: Vec<Fence> = done.iter().map(|(fence, ())| *fence).collect();
        self.leases.delete(connection, &fences).await
    }

    fn panicked(&self, failed_attempts: u32, message: &str) -> Outcome<()> {
        self.failed(failed_attempts, Verdict::Retry, message)
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).ok_or("give a database URL")?;
    let pool = PgPool::connect(&url).await?;
    let schema = Schema::new("lease_example")?;
    tasuki::migrate(&pool, schema.as_str()).await?;
    for sql in [
        "DROP TABLE IF EXISTS lease_example.parcels",
        CREATE,
        "INSERT INTO lease_example.parcels (recipient) VALUES ('ada'), ('bob'), ('nobody')",
    ] {
        sqlx::query(sql).execute(&pool).await?;
    }

    let work = Post {
        leases: Leases::new(&schema, &PARCELS),
        policy: Policy::new(3, Backoff::list([Duration::ZERO])),
    };
    let settings = Settings {
        pool: pool.clone(),
        route: Route::Direct,
        owner: Owner::here(),
        unit: Unit::Row,
        slots: 4,
        batch: 10,
        lease: Duration::from_secs(30),
        poll: Duration::from_millis(500),
    };
    // Under a supervisor the runner ticks by itself. Here it runs until nothing is due.
    let claimed = Runner::new(work, settings).drain().await?;
    assert_eq!(claimed, 4, "bob was tried twice");

    let left: Vec<(String, String)> =
        sqlx::query_as("SELECT recipient, status FROM lease_example.parcels")
            .fetch_all(&pool)
            .await?;
    println!("left: {left:?}");
    assert_eq!(left, [("nobody".to_owned(), "FAILED".to_owned())]);
    Ok(())
}
