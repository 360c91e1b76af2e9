//! What breaks this library on purpose, for tests (feature `testing`).
//!
//! A crash point stands at every await that separates two durable effects. A test names one,
//! and the process kills itself there with SIGKILL: no destructor runs, no buffer is flushed,
//! nobody is told. (What the kernel has already, it keeps: that is not a loss of power.)
//! Without the feature a crash point is nothing.

#[cfg(feature = "testing")]
use std::sync::{Mutex, PoisonError};

#[cfg(feature = "testing")]
use rustix::process::{Signal, getpid, kill_process};

/// What happens at which point, and how often that is still to be passed before.
#[cfg(feature = "testing")]
static ARMED: Mutex<Option<(String, u32, Signal)>> = Mutex::new(None);

/// Arms the crash point `name`: the process dies when it is reached for the `nth` time (1 is
/// the first).
#[cfg(feature = "testing")]
pub fn crash_at(name: &str, nth: u32) {
    arm(name, nth, Signal::KILL);
}

/// As [`crash_at`], but the process stops there until somebody lets it continue (SIGCONT), as if its
/// machine had slept.
#[cfg(feature = "testing")]
pub fn pause_at(name: &str, nth: u32) {
    arm(name, nth, Signal::STOP);
}

#[cfg(feature = "testing")]
fn arm(name: &str, nth: u32, signal: Signal) {
    *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = Some((name.to_owned(), nth, signal));
}

/// Dies here if a test has asked for it.
#[cfg(feature = "testing")]
pub fn crash_point(name: &str) {
    let mut armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((at, passes, signal)) = armed.as_mut() else {
        return;
    };
    if at != name || *passes == 0 {
        return;
    }
    *passes -= 1;
    if *passes == 0 {
        let signal = *signal;
        drop(armed);
        if kill_process(getpid(), signal).is_err() {
            std::process::abort();
        }
        if signal == Signal::KILL {
            loop {
                std::thread::park();
            }
        }
        // The stop comes a moment after it was sent, and this thread must not go on until then.
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

/// Nothing, in a build without the feature `testing`.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub const fn crash_point(_name: &str) {}
