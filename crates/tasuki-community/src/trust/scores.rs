//! The scores of somebody, from what is stored.

use std::collections::{BTreeSet, HashMap};

use sqlx::PgConnection;

use super::score::{Contact, Fading, Reporter, Score, density, risk};
use crate::config;
use crate::nostr::{Key, Target};
use crate::store::trust::scores as store;

/// How they are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scores {
    pub(crate) risk: Fading,
    pub(crate) density: Fading,
}

impl Scores {
    pub(crate) fn new(own: &config::Trust) -> Self {
        Self {
            risk: Fading::new(own.risk_window, own.risk_half_life),
            density: Fading::new(own.density_window, own.density_half_life),
        }
    }

    /// How densely `keys` talk with others, in their order.
    pub(crate) async fn densities(
        &self,
        connection: &mut PgConnection,
        keys: &[Key],
        now: i64,
    ) -> sqlx::Result<Vec<Score>> {
        let mut contacts: HashMap<Key, Vec<Contact>> = HashMap::new();
        if !keys.is_empty() {
            let since = self.density.since(now);
            for (key, contact) in store::contacts(connection, keys, since).await? {
                contacts.entry(key).or_default().push(contact);
            }
        }
        let of = |key| contacts.get(key).map_or(&[][..], Vec::as_slice);
        let scores = keys.iter().map(|key| density(of(key), now, &self.density));
        Ok(scores.collect())
    }

    /// How risky `subjects` are, in their order.
    pub(crate) async fn risks(
        &self,
        connection: &mut PgConnection,
        subjects: &[Target],
        now: i64,
    ) -> sqlx::Result<Vec<Score>> {
        if subjects.is_empty() {
            return Ok(Vec::new());
        }
        let since = self.risk.since(now);
        let reported = store::reporters(connection, subjects, since).await?;
        let keys = reported.iter().filter_map(|it| Key::parse(&it.reporter));
        let keys: BTreeSet<_> = keys.collect();
        let keys: Vec<_> = keys.into_iter().collect();
        let densities = self.densities(connection, &keys, now).await?;
        let densities: HashMap<_, _> = keys.into_iter().zip(densities).collect();
        let mut reporters = vec![Vec::new(); subjects.len()];
        for report in &reported {
            // One who is no key is known to nobody.
            let density = Key::parse(&report.reporter).and_then(|key| densities.get(&key));
            if let Some(reporters) = reporters.get_mut(report.place) {
                reporters.push(Reporter {
                    reported_at: report.at,
                    density: density.map_or(0.0, Score::exact),
                });
            }
        }
        let scores = reporters.iter().map(|it| risk(it, now, &self.risk));
        Ok(scores.collect())
    }
}
