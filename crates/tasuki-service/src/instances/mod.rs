//! Which processes run a service, and how their workers are.
//!
//! Every process writes a row into its service's schema every few seconds and removes it
//! when it stops; a row that is not renewed belongs to a process that died. Readers ask the
//! database, so that one page can show all pods without knowing their addresses.

mod store;

use std::time::Duration;

use sqlx::PgPool;
use tasuki::migrate::Step;
use tasuki::worker::{self, State, Supervisor, Tick};
use tasuki::{Clock, Schema};
use tasuki_contract::ids::InstanceId;
use tasuki_contract::status;
use time::OffsetDateTime;

use crate::service::Tables;

/// How often a process reports.
const PERIOD: Duration = Duration::from_secs(5);

/// The table of instances.
pub(crate) const STEP: Step = Step {
    version: 2,
    description: "instances",
    sql: include_str!("../../migrations/0002_instances.sql"),
};

/// This process, as its services report it.
#[derive(Clone, Debug)]
pub struct Instance {
    id: InstanceId,
    process: String,
    started_at: OffsetDateTime,
}

impl Instance {
    /// This process, started now.
    #[must_use]
    pub fn of_this_process(clock: &Clock) -> Self {
        Self {
            id: InstanceId::new(clock),
            process: format!("{}/{}", host_name(), std::process::id()),
            started_at: clock.now(),
        }
    }
}

/// The processes that reported to `schema` lately, oldest first.
///
/// # Errors
/// When the database does not answer.
pub async fn list(
    pool: &PgPool,
    service: &str,
    schema: &Schema,
) -> sqlx::Result<Vec<status::Instance>> {
    store::list(pool, service, schema).await
}

/// Reports one process to one service's schema.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    name: String,
    tables: Tables,
    instance: Instance,
    supervisors: [Supervisor; 2],
    /// Whose workers are told: the first part of their names.
    owners: Vec<&'static str>,
}

impl Heartbeat {
    /// Reports to the schema of `tables` the workers of `owners`, out of all in this process.
    pub(crate) fn new(
        tables: &Tables,
        instance: &Instance,
        supervisors: [Supervisor; 2],
        owners: Vec<&'static str>,
    ) -> Self {
        Self {
            name: format!("{}.heartbeat", tables.service),
            tables: tables.clone(),
            instance: instance.clone(),
            supervisors,
            owners,
        }
    }

    fn workers(&self) -> Vec<status::Worker> {
        let health = self.supervisors.iter().flat_map(Supervisor::health);
        health
            .filter(|worker| {
                let owner = worker.name.split('.').next().unwrap_or_default();
                self.owners.contains(&owner)
            })
            .map(|mut worker| {
                if worker.name == self.name {
                    // It runs while it reports, which is not what anybody wants to know.
                    worker.state = State::Waiting;
                }
                worker_status(worker)
            })
            .collect()
    }
}

impl worker::Worker for Heartbeat {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll_interval(&self) -> Duration {
        PERIOD
    }

    async fn tick(&self) -> Result<Tick, worker::Error> {
        let Tables {
            database,
            schema,
            service,
            ..
        } = &self.tables;
        database.report(service);
        store::report(&database.workers, schema, &self.instance, &self.workers()).await?;
        Ok(Tick::Idle)
    }

    async fn release(&self) {
        let Tables {
            database, schema, ..
        } = &self.tables;
        let removed = store::remove(&database.workers, schema, &self.instance).await;
        if let Err(error) = removed {
            tracing::debug!(error = %error, "instance could not be removed, it will age out");
        }
    }
}

fn worker_status(health: worker::Health) -> status::Worker {
    status::Worker {
        name: health.name,
        state: health.state.as_str().to_owned(),
        ticks: health.ticks,
        failures: health.failures,
        panics: health.panics,
        last_tick_at: health.last_tick_at,
        last_tick_ms: health.last_tick_took.map(|took| took.as_secs_f64() * 1e3),
        last_error: health.last_error,
    }
}

/// The name of this machine: what Kubernetes calls the pod.
fn host_name() -> String {
    let file = std::fs::read_to_string("/proc/sys/kernel/hostname");
    file.map_or_else(|_error| "unknown".to_owned(), |name| name.trim().to_owned())
}
