//! A PostgreSQL that follows another one, and can take its place.

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{DATA, Postgres, Tools, USER, store};
use crate::{Error, home::Home};

/// How long a standby may take to stream, or to become a primary.
const DEADLINE: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Whether a commit on the primary waits for the standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// No: what was acknowledged last may be missing after a promotion.
    Asynchronous,
    /// Yes: every acknowledged commit is on the standby. Without the standby, commits hang.
    Synchronous,
}

/// A running standby; dropping it kills it.
///
/// Its slot stays on the primary, which keeps what the standby has not fetched.
#[derive(Debug)]
pub struct Standby {
    server: Postgres,
}

impl Postgres {
    /// Copies this server into `dir` and starts the copy as a standby. Returns when it streams
    /// and, if asked for, when commits wait for it.
    pub async fn standby(
        &self,
        dir: impl Into<PathBuf>,
        replication: Replication,
    ) -> Result<Standby, Error> {
        let options = self.home().options.elsewhere(dir);
        let home = Arc::new(Home::adopt(&options, Some(&self.home().secrets)).await?);
        let tools = Tools::find(&home).await?;
        self.copy(&home, &tools).await?;
        let server = Self::start_with(&home, tools).await?;

        let refused = refused("replicate");
        let mut connection = store::connect(&self.url("postgres"))
            .await
            .map_err(&refused)?;
        self.wait_for_state(&mut connection, &home, |_state| true)
            .await?;
        if replication == Replication::Synchronous {
            store::wait_for_standby(&mut connection, home.name())
                .await
                .map_err(&refused)?;
            self.wait_for_state(&mut connection, &home, |state| state == "sync")
                .await?;
        }
        store::close(connection).await.map_err(refused)?;
        Ok(Standby { server })
    }

    async fn copy(&self, home: &Home, tools: &Tools) -> Result<(), Error> {
        let new = tools.empty(home)?;
        let slot = home.name().replace('-', "_");
        let primary = format!(
            "host=127.0.0.1 port={} user={USER} password={} application_name={}",
            self.port(),
            self.password(),
            home.name(),
        );
        let arguments = [
            &format!("--pgdata={}", new.display()),
            &format!("--dbname={primary}"),
            &format!("--slot={slot}"),
            "--create-slot",
            "--write-recovery-conf",
            "--wal-method=stream",
            "--checkpoint=fast",
        ];
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        tools.run(home, "pg_basebackup", arguments).await?;
        let data = home.path(DATA);
        fs::rename(&new, &data).map_err(Error::folder(data))
    }

    async fn wait_for_state(
        &self,
        connection: &mut sqlx::PgConnection,
        standby: &Home,
        enough: impl Fn(&str) -> bool,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let state = store::sync_state(connection, standby.name())
                .await
                .map_err(refused("replicate"))?;
            if state.as_deref().is_some_and(&enough) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::NotReady {
                    server: "the standby of PostgreSQL",
                    waited: DEADLINE,
                    why: format!("its state is {state:?}"),
                    log: standby.path("postgres.log"),
                });
            }
            sleep(ASK_EVERY).await;
        }
    }
}

impl Standby {
    /// The server, to read from and to break.
    pub fn server(&self) -> &Postgres {
        &self.server
    }

    /// Makes it a primary, and waits until it accepts writes. The old primary is not told:
    /// stop or kill it first, or there are two.
    pub async fn promote(self) -> Result<Postgres, Error> {
        let refused = refused("become the primary");
        let url = self.server.url("postgres");
        let mut connection = store::connect(&url).await.map_err(&refused)?;
        let seconds = i32::try_from(DEADLINE.as_secs()).unwrap_or(i32::MAX);
        let done = store::promote(&mut connection, seconds)
            .await
            .map_err(&refused)?;
        if !done
            || store::is_in_recovery(&mut connection)
                .await
                .map_err(&refused)?
        {
            return Err(Error::NotReady {
                server: "the standby of PostgreSQL",
                waited: DEADLINE,
                why: "it is still in recovery".to_owned(),
                log: self.server.log().to_owned(),
            });
        }
        store::wait_for_nobody(&mut connection)
            .await
            .map_err(&refused)?;
        store::accepts_writes(&mut connection)
            .await
            .map_err(&refused)?;
        store::close(connection).await.map_err(refused)?;
        Ok(self.server)
    }
}

fn refused(what: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |error| Error::Refused {
        server: "PostgreSQL",
        what,
        why: error.to_string(),
    }
}
