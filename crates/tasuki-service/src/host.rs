//! Runs services in one process: listeners, workers, readiness, and the way to stop.

use std::net::{SocketAddr, TcpListener};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::{Extension, Router};
use futures_util::FutureExt;
use futures_util::future::join_all;
use sqlx::PgPool;
use tasuki::Clock;
use tasuki::migrate::{self, Plan, Progress};
use tasuki::worker::{Stopped, Supervisor};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::field;

use crate::auth::Authenticator;
use crate::auth::tokens::{self, KeyRing, jwks_routes};
use crate::config::{self, Common};
use crate::database::{self, Database, is_away};
use crate::http::{Envelope, Health, described, serve};
use crate::instances::{Heartbeat, Instance};
use crate::service::{Service, Tables};
use crate::shutdown::{Phases, Signals};
use crate::telemetry::Meter;

/// The pause before a database that is away at the start is asked again.
const AGAIN: Duration = Duration::from_millis(200);

/// Why services could not start. Each is one sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A port is taken, or an address is not ours.
    #[error("{service} can't listen on {address}: {reason} (set {service}.server.{key})")]
    Listen {
        /// The service.
        service: &'static str,
        /// The key of the address.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system said.
        reason: String,
    },
    /// The database is older than this binary.
    #[error(
        "schema {plan} is at migration {applied} and this binary needs {needed}: run `tasuki migrate`"
    )]
    SchemaTooOld {
        /// The plan.
        plan: String,
        /// The newest migration of the database.
        applied: i64,
        /// The newest of this binary.
        needed: i64,
    },
    /// The database can't be used.
    #[error(transparent)]
    Database(#[from] database::Error),
    /// The migrations could not be compared.
    #[error(transparent)]
    Migrate(#[from] migrate::Error),
    /// The keys for service tokens can't be used.
    #[error(transparent)]
    Keys(#[from] tokens::Error),
}

/// What of a service runs in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// HTTP and workers.
    Everything,
    /// HTTP alone.
    Http,
    /// Workers alone; health and metrics are on the internal listener.
    Workers,
}

/// Where a service can be reached.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// The service.
    pub service: &'static str,
    /// Its API, where it serves one.
    pub api: Option<SocketAddr>,
    /// Its internal listener: health, metrics, public keys.
    pub internal: SocketAddr,
}

/// How a stop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Ended {
    /// In order.
    InOrder,
    /// In order, but because something broke.
    Failed,
    /// A second signal came: leave at once.
    Forced,
}

/// A process that can run services.
#[derive(Debug)]
pub struct Host {
    common: Common,
    clock: Clock,
    meter: Meter,
    role: Role,
    phases: Phases,
}

/// Services that run.
#[derive(Debug)]
pub struct Running {
    addresses: Vec<Address>,
    health: Vec<(&'static str, Health)>,
    times: config::Shutdown,
    phases: Phases,
    supervisor: Supervisor,
    serving: Supervisor,
    servers: TaskTracker,
    databases: Vec<Database>,
}

/// A service whose listeners are bound.
struct Bound {
    service: Service,
    api: Option<TcpListener>,
    internal: TcpListener,
    address: Address,
}

impl Host {
    /// A host without services.
    #[must_use]
    pub fn new(common: Common, clock: Clock, meter: Meter, role: Role) -> Self {
        Self {
            common,
            clock,
            meter,
            role,
            phases: Phases::new(),
        }
    }

    /// Starts `services`: binds, waits for the databases, compares the schemas, then serves
    /// and works. Nothing is served when anything is wrong.
    ///
    /// # Errors
    /// One sentence that says what is wrong.
    pub async fn start(self, services: Vec<Service>) -> Result<Running, Error> {
        let bound = services
            .into_iter()
            .map(|service| bind(service, self.role))
            .collect::<Result<Vec<_>, _>>()?;
        for each in &bound {
            check(&each.service.tables, self.common.database.start_timeout).await?;
        }
        let instance = Instance::of_this_process(&self.clock);
        let mut running = Running {
            addresses: bound.iter().map(|each| each.address).collect(),
            health: Vec::new(),
            times: self.common.shutdown,
            phases: self.phases.clone(),
            supervisor: Supervisor::new(self.clock.clone()),
            serving: Supervisor::new(self.clock.clone()),
            servers: TaskTracker::new(),
            databases: Vec::new(),
        };
        for each in bound {
            self.start_one(each, &instance, &mut running)?;
        }
        if running.addresses.is_empty() {
            tracing::warn!("no service was asked for");
        }
        running.supervisor.start(self.meter.upkeep());
        Ok(running)
    }

    fn start_one(&self, bound: Bound, instance: &Instance, to: &mut Running) -> Result<(), Error> {
        let Bound {
            service,
            api,
            internal,
            address,
        } = bound;
        let tables = service.tables;
        let name = tables.service;
        let health = Health::new(service.checks, &self.phases, &self.meter);
        let authenticator = Authenticator::new(
            name,
            &tables.schema,
            tables.database.requests.clone(),
            &self.common.auth,
            &self.clock,
        )?;

        let mut private = health.clone().routes();
        if let Some(dir) = &self.common.auth.key_dir {
            private = private.merge(jwks_routes(KeyRing::open(dir, name, &self.clock)?));
        }
        self.listen(name, internal, private, to);
        for start in service.everywhere {
            start(&to.serving);
        }
        if self.role != Role::Workers {
            for start in service.serving {
                start(&to.serving);
            }
        }
        if let Some(api) = api {
            let public = described(name, service.about, service.routes)
                .merge(health.clone().routes())
                .layer(Extension(authenticator));
            self.listen(name, api, public, to);
        }
        if self.role != Role::Http {
            for start in service.workers {
                start(&to.supervisor);
            }
        }
        let mut owners = vec![name];
        if to.health.is_empty() {
            // What belongs to no service is told by the first one.
            owners.push("process");
        }
        let supervisors = [to.supervisor.clone(), to.serving.clone()];
        let heartbeat = Heartbeat::new(&tables, instance, supervisors, owners);
        to.supervisor.start(heartbeat);
        to.health.push((name, health));
        to.databases.push(tables.database);
        tracing::info!(service = name, api = address.api.map(field::display), internal = %address.internal, "serving");
        Ok(())
    }

    fn listen(&self, name: &'static str, listener: TcpListener, routes: Router, to: &Running) {
        let routes = Envelope::new(name, &self.common.http, &self.phases).around(routes);
        let serving = serve(
            listener,
            routes,
            self.common.http.clone(),
            self.phases.clone(),
        );
        let phases = self.phases.clone();
        to.servers.spawn(async move {
            let problem = match AssertUnwindSafe(serving).catch_unwind().await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_panic) => "it panicked".to_owned(),
            };
            tracing::error!(service = name, error = problem, "listener failed, stopping");
            phases.fail();
        });
    }
}

impl Running {
    /// Where everything is.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What is missing until all services are ready.
    pub async fn missing(&self) -> Vec<String> {
        let asked = self.health.iter().map(async |(service, health)| {
            let missing = health.missing().await.into_iter();
            missing
                .map(|what| format!("{service}: {what}"))
                .collect::<Vec<_>>()
        });
        join_all(asked).await.concat()
    }

    /// The way to say stop, and to see how far it is.
    #[must_use]
    pub fn phases(&self) -> &Phases {
        &self.phases
    }

    /// The workers of this process.
    #[must_use]
    pub fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Serves until somebody says stop, then stops in order.
    pub async fn run(self) {
        let finish = async {
            self.servers.close();
            let workers = self.supervisor.stop(self.times.grace);
            // Requests are answered by what serves them, so that goes last; it has nothing left
            // to do then.
            let served = async {
                self.servers.wait().await;
                self.serving.stop(self.times.grace).await
            };
            let (served, stopped) = tokio::join!(served, workers);
            if Stopped::Cut == stopped || Stopped::Cut == served {
                tracing::warn!("some ticks outlived the grace time and were cut");
            }
        };
        self.phases.walk(self.times, finish).await;
        join_all(self.databases.iter().map(Database::close)).await;
        tracing::info!("stopped");
    }

    /// As [`run`](Self::run), told to stop by a signal; a second one ends the waiting.
    pub async fn run_until_signal(self, signals: &mut Signals) -> Ended {
        let phases = self.phases.clone();
        let mut run = std::pin::pin!(self.run());
        tokio::select! {
            () = phases.draining() => {}
            () = &mut run => {}
            signal = signals.next() => {
                tracing::info!(signal, "stopping");
                phases.stop();
            }
        }
        tokio::select! {
            () = run => if phases.has_failed() { Ended::Failed } else { Ended::InOrder },
            _second = signals.next() => Ended::Forced,
        }
    }
}

fn bind(service: Service, role: Role) -> Result<Bound, Error> {
    let (name, server) = (service.tables.service, service.server);
    let bind = |key, address| {
        TcpListener::bind(address).map_err(|error| Error::Listen {
            service: name,
            key,
            address,
            reason: match error.kind() {
                std::io::ErrorKind::AddrInUse => "the port is taken".to_owned(),
                _ => error.to_string(),
            },
        })
    };
    let api = match role {
        Role::Everything | Role::Http => Some(bind("listen", server.listen)?),
        Role::Workers => None,
    };
    let internal = bind("internal-listen", server.internal_listen)?;
    let local = |listener: &TcpListener| listener.local_addr().ok();
    let address = Address {
        service: name,
        api: api.as_ref().and_then(local),
        internal: local(&internal).unwrap_or(server.internal_listen),
    };
    Ok(Bound {
        service,
        api,
        internal,
        address,
    })
}

/// How far a plan is. A database that is slow while everybody starts is no reason to give up.
async fn progress(
    plan: &Plan,
    pool: &PgPool,
    deadline: Instant,
) -> Result<Progress, migrate::Error> {
    loop {
        match plan.progress(pool).await {
            Err(migrate::Error::Read { source, .. })
                if is_away(&source) && Instant::now() < deadline =>
            {
                tracing::info!(error = %source, "waiting for the database");
                tokio::time::sleep(AGAIN).await;
            }
            other => return other,
        }
    }
}

/// Waits for the database and refuses one that is older than this binary.
async fn check(tables: &Tables, limit: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + limit;
    tables.database.wait(limit).await?;
    for plan in &*tables.plans {
        let progress = progress(plan, &tables.database.workers, deadline).await?;
        if progress.pending > 0 {
            return Err(Error::SchemaTooOld {
                plan: plan.name().to_owned(),
                applied: progress.applied,
                needed: progress.needed,
            });
        }
    }
    Ok(())
}
