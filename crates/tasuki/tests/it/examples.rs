//! The examples run and do what they say, and the guide is made of code that runs.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tasuki_testkit::{Servers, TestDb, eventually};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;
use uuid::Uuid;

/// No example takes seconds; one that hangs should say so.
const LIMIT: Duration = Duration::from_secs(60);

/// The built example, which cargo puts beside the tests.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(2).unwrap();
    let mut command = Command::new(target.join("examples").join(name));
    command.kill_on_drop(true);
    command
}

/// Runs an example to its end and compares what it tells with `line`.
async fn told_by(mut example: Command, line: &str) {
    let output = timeout(LIMIT, example.output()).await.unwrap().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{failed}");
    assert!(told.lines().any(|it| it.contains(line)), "{told}");
}

/// Runs it twice on one database: what an earlier run left must not matter.
async fn tells(name: &str, line: &str) {
    let db = TestDb::new(&[]).await;
    for _ in 0..2 {
        let mut command = example(name);
        command.arg(db.url());
        told_by(command, line).await;
    }
}

#[tokio::test]
async fn admin_tells_how_the_queues_are() {
    let line = r#"tasuki_queue_waiting_rows{schema="admin_example",queue="reports"} 2"#;
    tells("admin", line).await;
}

#[tokio::test]
async fn barrier_refuses_the_late_action_and_undoes_what_there_is() {
    tells("barrier", "balance: 100").await;
}

#[tokio::test]
async fn batch_shares_transactions_and_fails_only_the_bad_command() {
    tells("batch", "1000 votes in").await;
}

#[tokio::test]
async fn bus_delivers_retries_and_gives_up_as_the_verdicts_say() {
    told_by(example("bus"), "delivered: 3, stopped: Finished").await;
}

#[tokio::test]
async fn choreography_tells_the_story_of_two_services() {
    tells("choreography", "    ShipmentSent by shipping").await;
}

#[tokio::test]
async fn compensate_undoes_what_was_done() {
    told_by(example("compensate"), r#"undone: ["reserve"]"#).await;
}

#[tokio::test]
async fn dead_letters_are_told_and_redriven() {
    tells("dead_letters", "welcomed: ada").await;
}

#[tokio::test]
async fn idempotency_answers_again_and_does_it_once() {
    tells("idempotency", "granted:   1 time").await;
}

#[tokio::test]
async fn idempotency_layer_refuses_another_request_with_the_key() {
    tells("idempotency_layer", "shield 409 Conflict").await;
}

#[tokio::test]
async fn inbox_absorbs_duplicates() {
    tells("inbox", "payments: 3").await;
}

#[tokio::test]
async fn the_guides_jobs_are_done_once_and_a_dead_one_is_told_of() {
    tells("guide_jobs", "none: that is no address").await;
}

#[tokio::test]
async fn the_guides_sagas_sell_one_copy_and_undo_the_others() {
    tells("guide_sagas", "3 copies left, 1 charged").await;
}

#[tokio::test]
async fn jobs_are_done_after_the_commit() {
    tells("jobs", "stopped: Finished").await;
}

#[tokio::test]
async fn lease_serves_a_table_of_ones_own() {
    tells("lease", r#"left: [("nobody", "FAILED")]"#).await;
}

#[tokio::test]
async fn outbox_publishes_in_order_to_a_bus_in_memory() {
    tells("outbox", "published: OrderPaid as 2").await;
}

#[tokio::test]
async fn outbox_publishes_in_order_to_jetstream() {
    let db = TestDb::new(&[]).await;
    let mut command = example("outbox");
    command.args([&db.url(), &Servers::get().await.nats]);
    told_by(command, "published: OrderPaid").await;
}

#[tokio::test]
async fn retry_stops_where_it_can_not_help() {
    tells("retry", "EUR: 1.17 after 3 calls").await;
}

#[tokio::test]
async fn seqlog_misses_nothing_and_sets_aside_what_can_not_be_counted() {
    tells("seqlog", "worth: 1021").await;
}

#[tokio::test]
async fn twopc_moves_goods_between_databases_or_leaves_them() {
    let (db, other) = (TestDb::new(&[]).await, TestDb::new(&[]).await);
    for _ in 0..2 {
        let mut command = example("twopc");
        command.args([&db.url(), &other.url()]);
        told_by(command, "here 6, depot 4").await;
    }
}

#[tokio::test]
async fn saga_is_done_whole_or_undone() {
    tells("saga", "left: 2, orders: 2, charges: 2").await;
}

#[tokio::test]
async fn upkeep_makes_partitions_and_removes_the_old() {
    tells("upkeep", r#"sessions that live: ["ada"]"#).await;
}

#[test]
fn every_example_has_a_test() {
    let folder = crate_root().join("examples");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let tested = ["tells", "example"]
            .map(|by| format!("{by}(\"{name}\""))
            .iter()
            .any(|call| include_str!("examples.rs").contains(call.as_str()));
        assert!(tested, "{name} has no test in this file");
    }
}

/// The service of the guide, running.
struct Bookshop {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    address: String,
}

impl Bookshop {
    async fn open(db: &TestDb) -> Self {
        let nats = &Servers::get().await.nats;
        let mut process = example("guide")
            .args([&db.url(), nats, "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = tells_at_last(&mut lines, "listening on ").await;
        Self {
            process,
            lines,
            address,
        }
    }

    /// Status and body of the answer.
    async fn ask(&self, head: &str, body: &str) -> (String, String) {
        let length = body.len();
        let request = format!(
            "{head} HTTP/1.1\r\nhost: bookshop\r\ncontent-type: application/json\r\n\
             idempotency-key: order-1\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n{body}"
        );
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap();
        (status.to_owned(), body.to_owned())
    }

    async fn sold(&self, title: &str) -> String {
        self.ask(&format!("GET /sales/{title}"), "").await.1
    }

    /// Stops it as Ctrl-C does.
    async fn close(mut self) {
        let pid = i32::try_from(self.process.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::INT).unwrap();
        let how = tells_at_last(&mut self.lines, "stopped: ").await;
        assert_eq!(how, "Finished");
        let status = timeout(LIMIT, self.process.wait()).await.unwrap();
        assert!(status.unwrap().success());
    }
}

/// Reads until a line that begins with `what`, and gives the rest of it.
async fn tells_at_last(lines: &mut Lines<BufReader<ChildStdout>>, what: &str) -> String {
    let reading = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if let Some(rest) = line.strip_prefix(what) {
                return Some(rest.to_owned());
            }
        }
        None
    };
    timeout(LIMIT, reading).await.unwrap().unwrap()
}

#[tokio::test]
async fn the_guides_service_counts_an_order_once_however_often_it_is_sent_and_delivered() {
    let db = TestDb::new(&[]).await;
    // Its own: the stream outlives this test's database.
    let title = format!("book-{}", Uuid::new_v4().simple());
    let order = format!(r#"{{"title": "{title}", "copies": 2}}"#);

    let shop = Bookshop::open(&db).await;
    let first = shop.ask("POST /orders", &order).await;
    assert_eq!(first.0, "201");
    assert_eq!(shop.ask("POST /orders", &order).await, first);
    eventually("the order is counted", async || {
        (shop.sold(&title).await == "2").then_some(())
    })
    .await;
    shop.close().await;

    // The broker forgets how far the consumer was, and delivers everything again.
    let client = async_nats::connect(&Servers::get().await.nats)
        .await
        .unwrap();
    let stream = async_nats::jetstream::new(client)
        .get_stream("bookshop-events")
        .await
        .unwrap();
    stream.delete_consumer("sales").await.unwrap();
    let mut shop = Bookshop::open(&db).await;
    tells_at_last(&mut shop.lines, &format!("had {title} already")).await;
    assert_eq!(shop.sold(&title).await, "2");
    shop.close().await;
}

#[test]
fn every_piece_of_rust_in_a_guide_is_a_piece_of_its_example() {
    made_of("outbox-in-ten-minutes.md", "guide.rs");
    made_of("jobs.md", "guide_jobs.rs");
    made_of("sagas.md", "guide_sagas.rs");
}

fn made_of(guide: &str, example: &str) {
    let guide = crate_root().join("../../docs/start").join(guide);
    let guide = std::fs::read_to_string(guide).unwrap();
    let code = crate_root().join("examples").join(example);
    let code = without_indentation(&std::fs::read_to_string(code).unwrap());
    let pieces: Vec<_> = guide
        .split("```rust\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(pieces.len() > 5, "the guide shows its code");
    for piece in pieces {
        assert!(
            code.contains(&without_indentation(piece)),
            "not in {example}:\n{piece}"
        );
    }
}

fn without_indentation(code: &str) -> String {
    let lines = code.lines().map(str::trim_start);
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn crate_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
