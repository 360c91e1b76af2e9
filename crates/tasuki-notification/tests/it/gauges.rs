//! How deliveries are, as metrics; and metrics as a test sees them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    Unit,
};
use tasuki_testkit::eventually;

use crate::support::{World, granted};

/// Remembers every gauge by its last label's value, and every counter by the values of all its
/// labels. Install it with `metrics::set_default_local_recorder`, in a test with one thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gauges(Arc<Mutex<HashMap<(String, String), f64>>>);

struct Cell {
    gauges: Gauges,
    name: (String, String),
}

impl Gauges {
    /// The gauge `name` where its last label has this value, empty for one without labels; or the
    /// counter where all of them have these, with spaces between.
    pub(crate) fn get(&self, name: &str, label: &str) -> Option<f64> {
        let name = (name.to_owned(), label.to_owned());
        self.0.lock().unwrap().get(&name).copied()
    }
}

impl Cell {
    fn change(&self, change: impl FnOnce(f64) -> f64) {
        let mut gauges = self.gauges.0.lock().unwrap();
        let value = gauges.entry(self.name.clone()).or_default();
        *value = change(*value);
    }
}

impl GaugeFn for Cell {
    fn increment(&self, by: f64) {
        self.change(|value| value + by);
    }

    fn decrement(&self, by: f64) {
        self.change(|value| value - by);
    }

    fn set(&self, value: f64) {
        self.change(|_| value);
    }
}

impl CounterFn for Cell {
    fn increment(&self, by: u64) {
        let by = u32::try_from(by).map_or(f64::INFINITY, f64::from);
        self.change(|value| value + by);
    }

    fn absolute(&self, to: u64) {
        let to = u32::try_from(to).map_or(f64::INFINITY, f64::from);
        self.change(|_| to);
    }
}

impl Recorder for Gauges {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels: Vec<_> = key.labels().map(metrics::Label::value).collect();
        Counter::from_arc(Arc::new(Cell {
            gauges: self.clone(),
            name: (key.name().to_owned(), labels.join(" ")),
        }))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let label = key.labels().last().map(|label| label.value().to_owned());
        Gauge::from_arc(Arc::new(Cell {
            gauges: self.clone(),
            name: (key.name().to_owned(), label.unwrap_or_default()),
        }))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[tokio::test]
async fn what_is_due_is_counted_with_its_age_and_unknown_when_nobody_can_count() {
    let gauges = Gauges::default();
    let _here = metrics::set_default_local_recorder(&gauges);
    let world = World::with(|config| {
        config
            .with_value("notification.delivery.enabled", false)
            .unwrap()
    })
    .await;
    world.tell(&granted("u", "a", 1)).await;
    world.tell(&granted("u", "b", 1)).await;
    world
        .counts(2, "SELECT count(*) FROM notification.notifications_live")
        .await;
    // A process that has just begun looks at once.
    let (due, age) = (
        "tasuki_notification_due_rows",
        "tasuki_notification_oldest_due_age_seconds",
    );
    let _second = world.another().await;
    eventually("both are counted", async || {
        (gauges.get(due, "inside") == Some(2.0)).then_some(())
    })
    .await;
    assert!(gauges.get(age, "inside").is_some_and(|age| age > 0.0));
    assert_eq!(gauges.get(due, "webhook"), Some(0.0));

    world
        .execute("ALTER TABLE notification.notifications_live RENAME TO notifications_gone")
        .await;
    let _third = world.another().await;
    eventually("nobody knows", async || {
        let unknown = [due, age].map(|name| gauges.get(name, "inside").is_some_and(f64::is_nan));
        (unknown == [true, true]).then_some(())
    })
    .await;
}
