//! `tasuki-stack exec`: a command beside a stack.

use std::{fs, path::Path, process::Command};

use crate::support::{appears, binary, eventually, folder, with_text};

/// `tasuki-stack exec --dir <dir> <flags> -- sh -c <script>`.
fn exec(dir: &Path, flags: &[&str], script: &str) -> Command {
    let mut command = binary();
    command.args(["exec", "--dir"]).arg(dir).args(flags);
    command.args(["--", "sh", "-c", script]);
    command
}

#[test]
fn the_command_finds_the_servers_and_a_success_leaves_nothing() {
    let folder = folder();
    let dir = folder.path().join("stack");

    let output = exec(
        &dir,
        &[],
        r#"echo "$TASUKI_TEST_DATABASE_URL"; echo "$TASUKI_TEST_NATS_URL"
           echo "$TASUKI_TEST_REDIS_URL"
           echo "postgres://$PGUSER:$PGPASSWORD@$PGHOST:$PGPORT/$PGDATABASE""#,
    )
    .output()
    .unwrap();

    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("postgres://tasuki:"));
    assert!(lines[1].starts_with("nats://127.0.0.1:"));
    assert!(lines[2].starts_with("redis://127.0.0.1:"));
    assert_eq!(lines[0], lines[3]);
    assert!(output.stderr.is_empty(), "{output:?}");
    assert!(!dir.exists());
}

#[test]
fn a_failure_passes_its_code_on_and_keeps_the_data_for_a_look() {
    let folder = folder();
    let dir = folder.path().join("stack");
    let make = r#"psql -qc "CREATE TABLE evidence ()"; exit 7"#;
    let output = exec(&dir, &[], make).output().unwrap();

    assert_eq!(output.status.code(), Some(7));
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = format!(
        "tasuki-stack: the data is kept, look into it with \
         `tasuki-stack exec --keep --dir {} -- psql -l`\n",
        dir.display()
    );
    assert_eq!(said, expected);

    let count = r#"psql -Atc "SELECT count(*) FROM pg_tables WHERE tablename = 'evidence'""#;
    let kept = exec(&dir, &["--keep"], count).output().unwrap();
    assert_eq!(kept.stdout, b"1\n", "with --keep it is still there");
    let wiped = exec(&dir, &[], count).output().unwrap();
    assert_eq!(wiped.stdout, b"0\n", "without --keep it starts anew");
}

#[test]
fn a_folder_with_other_things_in_it_is_not_wiped() {
    let folder = folder();
    fs::write(folder.path().join("thesis.txt"), "years of work").unwrap();

    let output = exec(folder.path(), &[], "true").output().unwrap();

    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("was not made by a private stack, so it is not wiped"),
        "{said}"
    );
    assert!(folder.path().join("thesis.txt").exists());
}

#[tokio::test]
async fn a_request_to_terminate_reaches_the_command_and_then_the_stack_stops() {
    let folder = folder();
    let dir = folder.path().join("stack");
    let ready = folder.path().join("ready");
    let script = format!(
        "trap 'exit 9' TERM; touch {}; while :; do sleep 0.05; done",
        ready.display()
    );
    let mut runner = exec(&dir, &["--keep"], &script).spawn().unwrap();
    appears(&ready).await;

    let told = Command::new("kill")
        .arg(runner.id().to_string())
        .status()
        .unwrap();

    assert!(told.success());
    let mut status = None;
    eventually("the runner ends", || {
        status = runner.try_wait().unwrap();
        status.is_some()
    })
    .await;
    assert_eq!(status.unwrap().code(), Some(9));
    assert!(with_text(dir.to_str().unwrap()).is_empty());
}
