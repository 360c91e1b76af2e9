//! What breaks this library on purpose, for tests (feature `testing`).
//!
//! A crash point stands at every await that separates two durable effects. A test names one,
//! and the process kills itself there with SIGKILL: no destructor runs, no buffer is flushed,
//! nobody is told. (What the kernel has already, it keeps: that is not a loss of power.)
//! Without the feature a crash point is nothing.

#[cfg(feature = "testing")]
use std::sync::{Mutex, PoisonError};

/// The point to die at, and how often it is still to be passed alive.
#[cfg(feature = "testing")]
static ARMED: Mutex<Option<(String, u32)>> = Mutex::new(None);

/// Arms the crash point `name`: the process dies when it is reached for the `nth` time (1 is
/// the first).
#[cfg(feature = "testing")]
pub fn crash_at(name: &str, nth: u32) {
    *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = Some((name.to_owned(), nth));
}

/// Dies here if a test has asked for it.
#[cfg(feature = "testing")]
pub(crate) fn crash_point(name: &str) {
    let mut armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((at, passes)) = armed.as_mut() else {
        return;
    };
    if at != name {
        return;
    }
    *passes = passes.saturating_sub(1);
    if *passes == 0 {
        let me = rustix::process::getpid();
        // The signal ends the process before this returns.
        if rustix::process::kill_process(me, rustix::process::Signal::KILL).is_err() {
            std::process::abort();
        }
        loop {
            std::thread::park();
        }
    }
}

/// Nothing, in a build without the feature `testing`.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub(crate) const fn crash_point(_name: &str) {}
