//! The whole platform at one moment.

use std::sync::Arc;

use futures_util::future::join_all;
use tasuki::Clock;
use tasuki::worker::State;
use tasuki_contract::status::{Instance, Migration, Overall, Status};
use tasuki_service::instances;
use tasuki_service::service::Tables;

use crate::servers::Servers;

/// Puts the status together.
#[derive(Clone)]
pub(crate) struct Overview {
    servers: Servers,
    watched: Arc<[Tables]>,
    clock: Clock,
}

impl Overview {
    pub(crate) fn new(servers: Servers, watched: Vec<Tables>, clock: Clock) -> Self {
        Self {
            servers,
            watched: watched.into(),
            clock,
        }
    }

    /// Answers also when servers are away: that is when people ask.
    pub(crate) async fn status(&self) -> Status {
        let schemas = join_all(self.watched.iter().map(schema));
        let (servers, schemas) = tokio::join!(self.servers.report(), schemas);
        let complete = schemas.iter().all(Option::is_some);
        let (migrations, instances): (Vec<_>, Vec<_>) = schemas.into_iter().flatten().unzip();
        let (migrations, instances) = (migrations.concat(), instances.concat());
        let well = complete
            && servers.iter().all(|server| server.reachable)
            && migrations.iter().all(|migration| migration.pending == 0)
            && instances.iter().all(is_well);
        Status {
            overall: if well { Overall::Ok } else { Overall::Degraded },
            version: env!("CARGO_PKG_VERSION").to_owned(),
            at: self.clock.now(),
            servers,
            migrations,
            instances,
        }
    }
}

/// Migrations and instances of one service; `None` when its database does not answer, which
/// the report of the servers explains.
async fn schema(tables: &Tables) -> Option<(Vec<Migration>, Vec<Instance>)> {
    let pool = &tables.database.requests;
    let mut migrations = Vec::new();
    for plan in &*tables.plans {
        let progress = plan.progress(pool).await.ok()?;
        migrations.push(Migration {
            name: plan.name().to_owned(),
            applied: progress.applied,
            needed: progress.needed,
            pending: progress.pending,
        });
    }
    let instances = instances::list(pool, tables.service, &tables.schema).await;
    Some((migrations, instances.ok()?))
}

fn is_well(instance: &Instance) -> bool {
    let ill = [State::Stalled.as_str(), State::BackingOff.as_str()];
    let mut workers = instance.workers.iter();
    !workers.any(|worker| ill.contains(&worker.state.as_str()))
}
