//! Clients of others that are not written in Rust.

use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use crate::support::World;

/// Where `scripts/setup test` installs them.
const INSTALLED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../.tasuki/clients/nostr-tools"
);

#[tokio::test]
async fn nostr_tools_publishes_subscribes_counts_searches_and_proves_a_key() {
    if !Path::new(INSTALLED).join("installed.lock").exists() {
        let note = "nostr-tools is not installed: run scripts/setup test, where there is Node 18";
        #[expect(clippy::disallowed_methods, reason = "a test has no configuration")]
        let is_ci = std::env::var("CI").as_deref() == Ok("true");
        assert!(!is_ci, "{note}");
        println!("############ NOTE: NOT TESTED: {note}");
        return;
    }
    // It proves a key for the address that it has connected to.
    let listen = format!("127.0.0.1:{}", tasuki_stack::free_port().unwrap());
    let url = format!("ws://{listen}");
    let world = World::with(|config| {
        let config = config
            .with_value("community.server.listen", listen.clone())
            .unwrap();
        config
            .with_value("community.relay.url", url.clone())
            .unwrap()
    })
    .await;
    let spoken = Command::new("node")
        .args(["speak.mjs", &url])
        .current_dir(INSTALLED)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let (said, wrong) = (
        String::from_utf8_lossy(&spoken.stdout),
        String::from_utf8_lossy(&spoken.stderr),
    );
    assert!(spoken.status.success(), "{said}{wrong}");
    assert!(said.contains("all is well"), "{said}{wrong}");
    let deleted = "SELECT count(*) FROM cn_relay.events WHERE hidden_at IS NOT NULL";
    assert_eq!(world.count(deleted).await, 1);
}
