//! A job dies, somebody is told, looks at it, and sends it on its way again.
//!
//! `cargo run -p tasuki --example dead_letters -- postgres://localhost/app`

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tasuki::Schema;
use tasuki::dlq::{Deaths, Filter, Letters, Page, Watch};
use tasuki::jobs::{Context, Failure, Job, Jobs, Queue, Registry};
use tasuki::worker::{Error, Worker};

#[derive(Serialize, Deserialize)]
struct Welcome {
    user: String,
}

impl Job for Welcome {
    const KIND: &'static str = "welcome";
}

/// Before the route was mended: no further attempt would help.
async fn broken(_job: Welcome, _context: Context) -> Result<(), Failure> {
    Err(Failure::reject("no route to host"))
}

/// And after.
async fn mended(job: Welcome, _context: Context) -> Result<(), Failure> {
    println!("welcomed: {}", job.user);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).ok_or("give a database URL")?;
    let pool = PgPool::connect(&url).await?;
    let schema = Schema::new("dead_letters_example")?;
    tasuki::migrate(&pool, schema.as_str()).await?;
    let (jobs, letters) = (Jobs::new(&schema), Letters::new(&schema, &[]));

    // Under a supervisor the watch ticks by itself. Here it tells the terminal.
    let tell = async |deaths: Deaths| {
        for death in &deaths.groups {
            println!("told:     {} {}", death.kind, death.error);
        }
        Ok(())
    };
    let watch = Watch::new("example.dead_letters", pool.clone(), &letters, tell);
    watch.tick().await?;
    let user = "ada".to_owned();
    jobs.push(&pool, &Welcome { user }).await?;
    let registry = Registry::new().on::<Welcome, _>(broken);
    let worker = Queue::new("default").worker(&jobs, &pool, &registry)?;
    worker.drain().await?;
    watch.tick().await?;

    // Somebody looks at what is open, and at what redriving it would mean.
    let mut db = pool.acquire().await?;
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
    let registry = Registry::new().on::<Welcome, _>(mended);
    let worker = Queue::new("default").worker(&jobs, &pool, &registry)?;
    worker.drain().await?;
    Ok(())
}
