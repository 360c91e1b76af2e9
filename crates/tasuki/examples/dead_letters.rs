//! Something dies, somebody is told, looks at it, and sends it on its way again.
//!
//! `cargo run -p tasuki --example dead_letters -- postgres://localhost/app`

use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use tasuki::Schema;
use tasuki::dlq::{Deaths, Filter, Letters, Page, Watch};
use tasuki::lease::{Claim, Leases, Letter, Outcome, Owner, Table};
use tasuki::worker::{Error, Worker};

/// The jobs, as the lease engine sees them: enough to let one die.
const JOBS: Table = Table {
    name: "jobs",
    key: "job_id",
    claimed: "PROCESSING",
    columns: "t.kind",
    with: "",
    pick: "SELECT t.ctid FROM {table} AS t WHERE {claimable} LIMIT $1 FOR UPDATE SKIP LOCKED",
    letter: Letter {
        queue: "queue",
        kind: "kind",
        payload: "convert_to(payload::text, 'UTF8')",
    },
    lost: None,
};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).ok_or("give a database URL")?;
    let pool = PgPool::connect(&url).await?;
    let schema = Schema::new("dead_letters_example")?;
    tasuki::migrate(&pool, schema.as_str()).await?;
    let letters = Letters::new(&schema, &[]);

    // Under a supervisor the watch ticks by itself. Here it tells the terminal.
    let tell = async |deaths: Deaths| {
        for death in &deaths.groups {
            println!("told:     {} {}", death.kind, death.error);
        }
        Ok(())
    };
    let watch = Watch::new("example.dead_letters", pool.clone(), &letters, tell);
    watch.tick().await?;
    let mut db = pool.acquire().await?;
    die(&mut db, &schema).await?;
    watch.tick().await?;

    // Somebody looks at what is open, and at what redriving it would mean.
    let (open, page) = (Filter::open(), Page::first(10));
    for letter in letters.list(&mut db, &open, &page).await?.letters {
        println!("open:     {} {}", letter.id, letter.kind);
    }
    let preview = letters.preview(&mut db, &open).await?;
    println!("preview:  {} letter(s)", preview.count);

    // Rows, letters and audit change in one transaction. Twice is harmless.
    for reason in ["route is back", "to be sure"] {
        let acted = letters.redrive_all(&pool, &open, "ann", Some(reason));
        println!("redriven: {}", acted.await?.letters);
    }
    Ok(())
}

/// A job is claimed, and can't be done.
async fn die(db: &mut PgConnection, schema: &Schema) -> Result<(), Error> {
    let sql = "INSERT INTO dead_letters_example.jobs (job_id, queue, kind, payload)
        VALUES (gen_random_uuid(), 'mail', 'Welcome', '{}')";
    sqlx::query(sql).execute(&mut *db).await?;
    let claim = Claim {
        owner: &Owner::here(),
        lease: Duration::from_secs(30),
        limit: 1,
    };
    let leases = Leases::new(schema, &JOBS);
    for row in leases.claim::<()>(db, &claim, |_| Ok(())).await? {
        let error = "no route to host".to_owned();
        let dead = Outcome::<()>::Dead { error };
        leases.put_back(db, &[(row.fence, dead)]).await?;
    }
    Ok(())
}
