//! What the same statements cost without a library: `pgbench` on the library's own tables.
//!
//! The scripts are in `bench/queue/` and `bench/saga/`, written for any schema, and in `bench/grant/`,
//! for that of entitlement. Every one runs prepared.

use std::{fs, path::Path, process::Stdio};

use anyhow::{Context as _, bail};
use sqlx::{Connection as _, PgConnection};
use tasuki::Schema;
use tokio::process::Command;

use crate::{figures, store};

const INSERT: &str = include_str!("../queue/insert.sql");
const INSERT_IN_TRANSACTION: &str = include_str!("../queue/insert_in_transaction.sql");
const FILL: &str = include_str!("../queue/fill.sql");
const CLAIM_AND_FINALIZE: &str = include_str!("../queue/claim_and_finalize.sql");
const GRANT: &str = include_str!("../grant/grant.sql");
const READ: &str = include_str!("../grant/read.sql");
const SAGA: &str = include_str!("../saga/saga.sql");
const SAGAS_TOGETHER: &str = include_str!("../saga/together.sql");

/// Rows that one round of the claim script takes.
const CLAIMED: u32 = 100;

/// How a script is run.
#[derive(Clone, Copy, Debug)]
enum Until {
    Seconds(u32),
    /// Transactions per client.
    Rounds(u32),
}

/// A database with the library's tables, and a folder for rendered scripts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pgbench<'a> {
    pub(crate) url: &'a str,
    pub(crate) schema: &'a Schema,
    pub(crate) folder: &'a Path,
}

impl Pgbench<'_> {
    /// One-row inserts per second.
    pub(crate) async fn insert(self, clients: u32, seconds: u32) -> anyhow::Result<f64> {
        self.run(INSERT, clients, Until::Seconds(seconds), &[])
            .await
    }

    /// `BEGIN; INSERT; COMMIT` per second.
    pub(crate) async fn insert_in_transaction(
        self,
        clients: u32,
        seconds: u32,
    ) -> anyhow::Result<f64> {
        self.run(INSERT_IN_TRANSACTION, clients, Until::Seconds(seconds), &[])
            .await
    }

    /// Puts `rows` due jobs into the table.
    pub(crate) async fn fill(self, rows: u32) -> anyhow::Result<()> {
        let sql = self.schema.render(FILL).replace(":rows", &rows.to_string());
        Ok(store::run_file(self.url, sql).await?)
    }

    /// Jobs that are claimed by the hundred and deleted, per second. `rows` of them are there.
    pub(crate) async fn claim_and_finalize(
        self,
        connections: u32,
        rows: u32,
    ) -> anyhow::Result<f64> {
        let rounds = rows / CLAIMED / connections;
        if rounds * CLAIMED * connections != rows {
            bail!("{rows} rows can't be shared out to {connections} connections by the hundred");
        }
        let rate = self
            .run(CLAIM_AND_FINALIZE, connections, Until::Rounds(rounds), &[])
            .await?;
        let mut connection = PgConnection::connect(self.url).await?;
        let left = store::left(&mut connection, self.schema, "jobs").await?;
        if left != 0 {
            bail!("{left} of {rows} rows were left: the figure would be too high");
        }
        Ok(rate * f64::from(CLAIMED))
    }

    /// Grants per second, each in a transaction of its own, to neighbours of so many users.
    pub(crate) async fn grant(self, clients: u32, seconds: u32, users: u32) -> anyhow::Result<f64> {
        let until = Until::Seconds(seconds);
        self.run(GRANT, clients, until, &[among(users)]).await
    }

    /// How long such a grant takes while nobody else asks for one: the middle, in milliseconds.
    pub(crate) async fn grant_alone(self, seconds: u32, users: u32) -> anyhow::Result<f64> {
        let logs = self.folder.join("transactions");
        if logs.exists() {
            fs::remove_dir_all(&logs)?;
        }
        fs::create_dir_all(&logs)?;
        let prefix = format!("--log-prefix={}", logs.join("log").display());
        let more = ["--log".to_owned(), prefix, among(users)];
        self.run(GRANT, 1, Until::Seconds(seconds), &more).await?;
        let mut times = Vec::new();
        for file in fs::read_dir(&logs)? {
            times.extend(times_in(&fs::read_to_string(file?.path())?));
        }
        times.sort_by(f64::total_cmp);
        figures::percentile(&times, 50).context("pgbench logged no transaction")
    }

    /// How often per second what one of so many users has can be read.
    pub(crate) async fn read(self, clients: u32, seconds: u32, users: u32) -> anyhow::Result<f64> {
        let until = Until::Seconds(seconds);
        self.run(READ, clients, until, &[among(users)]).await
    }

    /// Sagas per second whose every transition is a transaction of its own.
    pub(crate) async fn sagas(self, clients: u32, seconds: u32) -> anyhow::Result<f64> {
        self.run(SAGA, clients, Until::Seconds(seconds), &[]).await
    }

    /// Sagas per second of which so many share every transaction, on one connection.
    pub(crate) async fn sagas_together(self, sagas: u32, seconds: u32) -> anyhow::Result<f64> {
        let together = format!("--define=sagas={sagas}");
        let until = Until::Seconds(seconds);
        let rate = self.run(SAGAS_TOGETHER, 1, until, &[together]).await?;
        Ok(rate * f64::from(sagas))
    }

    /// Transactions per second, without the time to connect. `more` are further options.
    async fn run(
        self,
        script: &str,
        clients: u32,
        until: Until,
        more: &[String],
    ) -> anyhow::Result<f64> {
        let file = self.folder.join("script.sql");
        fs::write(&file, self.schema.render(script))
            .with_context(|| format!("{} could not be written", file.display()))?;
        let (limit, amount) = match until {
            Until::Seconds(seconds) => ("--time", seconds),
            Until::Rounds(rounds) => ("--transactions", rounds),
        };
        let clients = clients.to_string();
        let done = Command::new("pgbench")
            .args(["--no-vacuum", "--protocol=prepared", "--jobs=2"])
            .args(["--client", &clients, limit, &amount.to_string()])
            .args(more)
            .arg("--file")
            .arg(&file)
            .arg(self.url)
            // As the services connect: a plan that was made while a table was empty must not read
            // all of it later.
            .env("PGOPTIONS", "-c enable_seqscan=off -c jit=off")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .context("pgbench could not be started")?;
        let told = String::from_utf8_lossy(&done.stdout);
        if !done.status.success() {
            let why = String::from_utf8_lossy(&done.stderr);
            bail!("pgbench failed: {}: {why}", done.status);
        }
        rate_in(&told).with_context(|| format!("pgbench told no rate:\n{told}"))
    }
}

/// The option that says how many users there are.
fn among(users: u32) -> String {
    format!("--define=users={users}")
}

/// The third word of every line: the microseconds that a transaction took. Here in milliseconds.
fn times_in(log: &str) -> Vec<f64> {
    let micros = log
        .lines()
        .filter_map(|line| line.split(' ').nth(2)?.parse::<f64>().ok());
    micros.map(|micros| micros / 1000.0).collect()
}

/// The number in `tps = 123.4 (without initial connection time)`.
fn rate_in(told: &str) -> Option<f64> {
    let line = told.lines().find_map(|line| line.strip_prefix("tps = "))?;
    line.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_what_pgbench_says() {
        let told = "latency average = 1.2 ms\ntps = 21034.5 (without initial connection time)\n";
        assert_eq!(rate_in(told), Some(21034.5));
        assert_eq!(rate_in("tps = none"), None);
        assert_eq!(rate_in(""), None);
    }

    #[test]
    fn the_times_of_transactions_are_read_from_the_log() {
        let log = "0 1 6990 0 1794788123 485626\n0 2 959 0 1794788123 486604\n0 3 failed 0 1 2\n";
        assert_eq!(times_in(log), [6.99, 0.959]);
        assert!(times_in("").is_empty());
    }
}
