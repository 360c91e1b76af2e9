//! Who runs what: root lends PostgreSQL a user, everybody else runs it as themselves.
//! These tests can only be made as root; for others the rest of the suite says the same.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::Command,
};

use tasuki_stack::Postgres;

use crate::support::{ask, folder, run, sql, throwaway, tools};

fn is_root() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0);
    if !root {
        eprintln!("SKIPPED: only root can try this");
    }
    root
}

/// The user of a process.
fn owner(pid: u32) -> u32 {
    fs::metadata(format!("/proc/{pid}")).map_or(u32::MAX, |process| process.uid())
}

#[tokio::test]
async fn root_runs_postgres_as_another_user_even_below_a_closed_folder() {
    if !is_root() {
        return;
    }
    let folder = folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();

    let postgres = Postgres::start(&throwaway(&folder).durable())
        .await
        .unwrap();

    assert_ne!(owner(postgres.pid()), 0);
    let mut connection = sql(&postgres.url("postgres")).await;
    run(
        &mut connection,
        "CREATE TABLE written AS SELECT 1; CHECKPOINT",
    )
    .await;
    postgres.kill().await.unwrap();
    postgres.start().await.unwrap();
    let mut connection = sql(&postgres.url("postgres")).await;
    assert_eq!(
        ask(&mut connection, "SELECT count(*)::text FROM written").await,
        "1"
    );
}

#[tokio::test]
async fn an_ordinary_user_runs_everything_itself() {
    if !is_root() {
        return;
    }
    // Their own place, because the clone may lie below a closed folder.
    let folder = folder();
    let stack = folder.path().join("tasuki-stack");
    fs::copy(env!("CARGO_BIN_EXE_tasuki-stack"), &stack).unwrap();
    copy_tool(folder.path());
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();

    let output = Command::new("setpriv")
        .args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"])
        .arg(&stack)
        .args(["exec", "--dir", "mine", "--", "sh", "-c"])
        .arg(r#"psql -Atc "SELECT 'well'"; ps -o user= --ppid "$PPID" | sort -u"#)
        .current_dir(folder.path())
        .output()
        .unwrap();

    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "well\nnobody\n");
}

/// Copies the project's own NATS, if there is one.
fn copy_tool(folder: &Path) {
    let Some(tools) = tools() else { return };
    let place = folder.join(".tasuki/tools/nats/bin");
    fs::create_dir_all(&place).expect("a folder");
    fs::copy(
        tools.join("nats/bin/nats-server"),
        place.join("nats-server"),
    )
    .expect("a copy");
}
