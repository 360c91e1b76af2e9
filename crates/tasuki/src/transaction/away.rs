//! Whether an error is the fault of what was asked, or of a database that can't answer now.
//!
//! One place for it: a job that is not blamed, a request that is told to come again and a message
//! that goes back must agree on what an outage is.

/// Whether `error` says that the database can't be reached or has no room, rather than that
/// it refused what we asked: then trying again can help, and nobody is to blame.
#[must_use]
pub fn is_away(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::BeginFailed
        | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(database) => database.code().is_some_and(|code| {
            // Connection exceptions; no disk, memory or connection left; shutting down, crashed,
            // starting, dropped; a standby that is not promoted yet; the disk can't be read.
            let classes = ["08", "53", "57P0"];
            classes.iter().any(|class| code.starts_with(class))
                || matches!(&*code, "25006" | "58030")
        }),
        _ => false,
    }
}

/// Whether `error` is about others who wanted the same at the same time, or took too long: the
/// next try may well succeed.
#[must_use]
pub fn is_passing(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    // Serialization failure, deadlock, lock not available, statement timeout.
    matches!(code.as_deref(), Some("40001" | "40P01" | "55P03" | "57014"))
}
