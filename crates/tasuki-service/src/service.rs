//! What a service is made of.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection;
use sqlx::migrate::Migrator;
use tasuki::Schema;
use tasuki::migrate::{self, Plan};
use tasuki::worker::{Supervisor, Worker};
use utoipa_axum::router::OpenApiRouter;

use crate::config::{self, Common};
use crate::database::{self, Database};
use crate::http::Check;
use crate::{auth, instances};

/// Why tables could not be brought up to date.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database can't be used.
    #[error(transparent)]
    Database(#[from] database::Error),
    /// A migration failed.
    #[error(transparent)]
    Migrate(#[from] migrate::Error),
}

/// The tables of one service: what `tasuki migrate` runs and the status page compares.
#[derive(Clone, Debug)]
pub struct Tables {
    /// The service's name.
    pub service: &'static str,
    /// The schema that it owns.
    pub schema: Schema,
    /// Where that schema is.
    pub database: Database,
    /// Its migrations: those that every service has, then its own.
    pub plans: Arc<[Plan]>,
}

/// What a service has besides the tables that every service has.
#[derive(Debug)]
pub enum Own {
    /// Nothing.
    Nothing,
    /// The library's tables, and these migrations after them.
    BesideLibrary(Migrator),
}

impl Tables {
    /// The tables of `service`: the shared ones, and those of `own`. The schema has the
    /// service's name.
    ///
    /// # Errors
    /// When the database's address is missing.
    pub fn new(
        service: &'static str,
        common: &Common,
        own_database: &config::ServiceDatabase,
        own: Own,
    ) -> Result<Self, config::Error> {
        Self::in_schema(service, service, common, own_database, own)
    }

    /// As [`new`](Self::new), for a service whose schema has another name.
    ///
    /// # Errors
    /// When the database's address is missing.
    pub fn in_schema(
        service: &'static str,
        schema: &str,
        common: &Common,
        own_database: &config::ServiceDatabase,
        own: Own,
    ) -> Result<Self, config::Error> {
        let schema = Schema::new(schema).map_err(|error| config::Error::Invalid {
            key: service.to_owned(),
            origin: "the code".to_owned(),
            reason: error.to_string(),
        })?;
        let shared = Plan::rendered("service", &schema, &[auth::STEP, instances::STEP]);
        let own = match own {
            Own::Nothing => Vec::new(),
            // The library's first: a service's own may refer to them.
            Own::BesideLibrary(migrator) => {
                vec![migrate::library(&schema), Plan::fixed(&schema, migrator)]
            }
        };
        Ok(Self {
            service,
            database: Database::new(service, &common.database, own_database)?,
            plans: [shared].into_iter().chain(own).collect(),
            schema,
        })
    }

    /// Applies what is missing, once the database answers.
    ///
    /// # Errors
    /// When a migration fails, or the database does not answer within `limit`.
    pub async fn migrate(&self, limit: Duration) -> Result<(), Error> {
        let mut connection = self.database.connect(limit).await?;
        for plan in &*self.plans {
            plan.run(&mut connection).await?;
        }
        // The work is done and committed, however this goes.
        connection.close().await.unwrap_or_default();
        Ok(())
    }
}

type Start = Box<dyn FnOnce(&Supervisor) + Send>;

/// One service, ready to be hosted.
pub struct Service {
    pub(crate) tables: Tables,
    pub(crate) about: &'static str,
    pub(crate) server: config::ServiceServer,
    pub(crate) routes: OpenApiRouter,
    pub(crate) checks: Vec<Check>,
    pub(crate) serving: Vec<Start>,
    pub(crate) everywhere: Vec<Start>,
    pub(crate) workers: Vec<Start>,
}

impl Service {
    /// A service with tables and nothing else yet. `about` opens its API description.
    #[must_use]
    pub fn new(tables: Tables, about: &'static str, server: config::ServiceServer) -> Self {
        let database = tables.database.clone();
        let database = Check::new("database", move || {
            let database = database.clone();
            async move { database.probe().await.map_err(|error| error.to_string()) }
        });
        Self {
            tables,
            about,
            server,
            routes: OpenApiRouter::new(),
            checks: vec![database],
            serving: Vec::new(),
            everywhere: Vec::new(),
            workers: Vec::new(),
        }
    }

    /// What it answers.
    #[must_use]
    pub fn routes(mut self, routes: OpenApiRouter) -> Self {
        self.routes = self.routes.merge(routes);
        self
    }

    /// What it needs besides its database to be ready.
    #[must_use]
    pub fn needs(mut self, check: Check) -> Self {
        self.checks.push(check);
        self
    }

    /// What its requests wait for: a batcher, say. It runs where HTTP is served, and stops when
    /// the last request has been answered.
    #[must_use]
    pub fn serving(mut self, start: impl FnOnce(&Supervisor) + Send + 'static) -> Self {
        self.serving.push(Box::new(start));
        self
    }

    /// What requests and workers both need: it runs in every process of the service, and stops when
    /// the last request has been answered.
    #[must_use]
    pub fn everywhere(mut self, start: impl FnOnce(&Supervisor) + Send + 'static) -> Self {
        self.everywhere.push(Box::new(start));
        self
    }

    /// What it does in the background.
    #[must_use]
    pub fn worker(self, worker: impl Worker) -> Self {
        self.background(|supervisor| {
            supervisor.start(worker);
        })
    }

    /// What it does in the background, as something that starts its workers by itself.
    #[must_use]
    pub fn background(mut self, start: impl FnOnce(&Supervisor) + Send + 'static) -> Self {
        self.workers.push(Box::new(start));
        self
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service({})", self.tables.service)
    }
}
