//! The log as a test hears it.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Once;

thread_local! {
    static HEARD: Heard = Heard::default();
}

/// What this thread, which is this test, has said in its log: how many statements it sent, how
/// many claims it lost, and the library's own lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    statements: Rc<Cell<usize>>,
    lost: Rc<Cell<usize>>,
    lines: Rc<RefCell<Vec<String>>>,
}

impl Heard {
    /// Counts from now on.
    pub(crate) fn listen() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::subscriber::set_global_default(Ears).unwrap());
        let heard = HEARD.with(Self::clone);
        heard.statements.set(0);
        heard.lost.set(0);
        heard.lines.take();
        heard
    }

    pub(crate) fn statements(&self) -> usize {
        self.statements.get()
    }

    pub(crate) fn lost(&self) -> usize {
        self.lost.get()
    }

    /// The lines of the module `target`, each as `LEVEL field=value ...`.
    pub(crate) fn lines(&self, target: &str) -> Vec<String> {
        let lines = self.lines.borrow();
        let found = lines.iter().filter_map(|line| line.strip_prefix(target));
        found.map(|line| line.trim_start().to_owned()).collect()
    }
}

/// Hears every thread. One for all: a subscriber of one thread alone may be left out when another
/// thread is the first to pass a log line.
struct Ears;

impl tracing::Subscriber for Ears {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        // Without a thread-local any more, the thread is about to end.
        let Ok(heard) = HEARD.try_with(Heard::clone) else {
            return;
        };
        if event.metadata().target() == "sqlx::query" {
            heard.statements.set(heard.statements() + 1);
        }
        let (target, level) = (event.metadata().target(), event.metadata().level());
        let mut line = format!("{target} {level}");
        event.record(
            &mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                if field.name() == "message" && format!("{value:?}") == "lock lost" {
                    heard.lost.set(heard.lost() + 1);
                }
                write!(line, " {}={value:?}", field.name()).unwrap();
            },
        );
        if target.starts_with("tasuki") {
            heard.lines.borrow_mut().push(line);
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
