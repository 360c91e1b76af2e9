//! Nothing outlives a killed owner, and the next start finds everything.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use tasuki_stack::{Options, Stack};

use crate::support::{ask, binary, eventually, folder, is_alive, redis, sql, with_text};

/// `tasuki-stack exec`, killed at the end whatever happens.
struct Owner(Child);

impl Owner {
    fn start(dir: &Path, flags: &[&str], script: &str) -> Self {
        let mut command = binary();
        command.args(["exec", "--keep", "--dir"]).arg(dir);
        command.args(flags).args(["--", "sh", "-c", script]);
        Self(command.stdout(Stdio::null()).spawn().expect("a process"))
    }

    /// Waits until the command has made the file; its own complaints are on stderr.
    async fn ready(&mut self, file: &Path) {
        eventually("the command runs", || {
            let ended = self.0.try_wait().expect("a status");
            assert!(ended.is_none(), "the owner ended by itself: {ended:?}");
            file.exists()
        })
        .await;
    }

    fn children(&self) -> Vec<u32> {
        let pid = self.0.id().to_string();
        let mut ps = Command::new("ps");
        let output = ps.args(["-o", "pid=", "--ppid", &pid]).output();
        String::from_utf8_lossy(&output.expect("ps").stdout)
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect()
    }

    fn kill(&mut self) {
        self.0.kill().expect("a signal");
        self.0.wait().expect("an end");
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tokio::test]
async fn no_server_survives_a_killed_owner_and_the_next_start_finds_its_data() {
    let folder = folder();
    let dir = folder.path().join("stack");
    let ready = folder.path().join("ready");
    let script = format!(
        r#"psql -qc "CREATE TABLE kept AS SELECT 1 AS number"
           redis-cli --no-auth-warning -u "$TASUKI_TEST_REDIS_URL" SET kept here
           echo "$TASUKI_TEST_DATABASE_URL" > {ready}.new; mv {ready}.new {ready}
           exec sleep 86399"#,
        ready = ready.display()
    );
    let mut owner = Owner::start(&dir, &["--durable"], &script);
    owner.ready(&ready).await;
    let url = std::fs::read_to_string(&ready).unwrap();
    // Somebody else's client keeps a backend busy, which therefore does not look around.
    let busy = "SET statement_timeout = '2min'; DO $$ BEGIN LOOP NULL; END LOOP; END $$";
    let mut client = Command::new("psql")
        .args([url.trim(), "-qc", busy])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut connection = sql(url.trim()).await;
    let question = "SELECT coalesce(max(pid), 0)::text FROM pg_stat_activity \
                    WHERE state = 'active' AND query LIKE '%LOOP%' AND pid <> pg_backend_pid()";
    let mut backend = 0;
    while backend == 0 {
        backend = ask(&mut connection, question).await.parse().unwrap();
    }
    let children = owner.children();
    assert!(children.len() >= 4, "servers and command: {children:?}");

    owner.kill();

    eventually("servers and command are gone", || {
        !is_alive(backend)
            && !children.iter().any(|pid| is_alive(*pid))
            && with_text(dir.to_str().unwrap()).is_empty()
    })
    .await;
    client.wait().unwrap();
    let stack = Stack::start(Options::new(&dir).durable()).await.unwrap();
    let mut connection = sql(&stack.postgres.url("postgres")).await;
    let number = ask(&mut connection, "SELECT number::text FROM kept").await;
    assert_eq!(number, "1");
    let mut keys = redis(&stack.redis.url()).await;
    let get = redis::cmd("GET").arg("kept").to_owned();
    let value: String = get.query_async(&mut keys).await.unwrap();
    assert_eq!(value, "here");
}

#[tokio::test]
async fn a_start_right_after_the_kill_does_not_trip_over_what_is_still_dying() {
    let folder = folder();
    let dir = folder.path().join("stack");
    for round in 0..2 {
        let ready = folder.path().join(format!("ready-{round}"));
        let script = format!("touch {}; exec sleep 86398", ready.display());
        let mut owner = Owner::start(&dir, &[], &script);
        owner.ready(&ready).await;
        owner.kill();
    }

    let stack = Stack::start(Options::new(&dir)).await.unwrap();

    // The wardens of the killed owners look around for a second: they must leave this one alone.
    let mut connection = sql(&stack.postgres.url("postgres")).await;
    let answer = ask(&mut connection, "SELECT 'well' FROM pg_sleep(1.5)").await;
    assert_eq!(answer, "well");
}
