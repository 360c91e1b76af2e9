//! Counters as a test sees them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// Remembers every counter by its last label's value. Install it with
/// `metrics::set_default_local_recorder`, in a test with one thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(Arc<Mutex<HashMap<(String, String), u64>>>);

struct Cell {
    counts: Counts,
    name: (String, String),
}

impl Counts {
    /// The counter `name` where its last label has this value.
    pub(crate) fn get(&self, name: &str, label: &str) -> u64 {
        let name = (name.to_owned(), label.to_owned());
        self.0.lock().unwrap().get(&name).copied().unwrap_or(0)
    }
}

impl CounterFn for Cell {
    fn increment(&self, by: u64) {
        let mut counts = self.counts.0.lock().unwrap();
        *counts.entry(self.name.clone()).or_default() += by;
    }

    fn absolute(&self, _value: u64) {}
}

impl Recorder for Counts {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let label = key.labels().last().map(|label| label.value().to_owned());
        Counter::from_arc(Arc::new(Cell {
            counts: self.clone(),
            name: (key.name().to_owned(), label.unwrap_or_default()),
        }))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
