//! The screen of `tasuki up`: what runs where, how to log in, what to try first.

use std::time::Duration;

use tasuki_service::telemetry::LogTarget;

use super::Started;
use crate::output::{BOLD, DIM, GOOD, say, styled};

pub(super) fn show(started: &Started, log: &LogTarget, took: Duration) {
    let title = styled(BOLD, "tasuki");
    let ready = styled(GOOD, "ready");
    let seconds = took.as_secs_f64();
    say(format_args!(
        "\n  {title} is {ready} {}\n",
        styled(DIM, format_args!("after {seconds:.1}s"))
    ));

    for address in started.running.addresses() {
        let Some(api) = address.api else { continue };
        let docs = styled(DIM, format_args!("try it at http://{api}/docs"));
        row(address.service, format_args!("http://{api}   {docs}"));
    }
    say("");
    for (_, server) in started.servers.each() {
        let port = server.port();
        row(
            server.name(),
            format_args!("127.0.0.1:{port}   {}", styled(DIM, server.version())),
        );
    }
    say("");
    let stack = &started.platform.stack;
    row("data", stack.data_dir.display());
    let env = started.claim.env().display();
    row(
        "settings",
        format_args!("{env}   {}", styled(DIM, "source it to go on from there")),
    );
    if let LogTarget::File(path) = log {
        row("log", path.display());
    }
    row("operator", started.development.operator_token());
    row("API key", started.development.api_key());
    first_request(started);
    say(format_args!(
        "  {}\n",
        styled(DIM, "Ctrl-C stops everything; the data stays.")
    ));
}

/// A grant to try.
fn first_request(started: &Started) {
    let addresses = started.running.addresses().iter();
    let entitlement = addresses
        .filter(|address| address.service == tasuki_entitlement::NAME)
        .find_map(|address| address.api);
    if let Some(api) = entitlement {
        let key = started.development.api_key();
        // One line, so that it can be pasted whole.
        let credential = format!("-H 'Authorization: Bearer {key}'");
        // Another user at each start: the data stays, and a sword is granted once.
        let user = format!(
            "user-{:04}",
            started
                .platform
                .clock
                .now()
                .unix_timestamp()
                .rem_euclid(10_000)
        );
        let headers =
            format!("-H 'Idempotency-Key: first-{user}' -H 'Content-Type: application/json'");
        let body = format!(
            r#"{{"user_id":"{user}","stock_keeping_unit":"sword","reason":"purchase","purchase_id":"order-1"}}"#
        );
        say(format_args!(
            "\n  First request:\n\n  curl http://{api}/v1/entitlements/grants {credential} {headers} -d '{body}'\n"
        ));
    }
}

fn row(name: &str, value: impl std::fmt::Display) {
    say(format_args!("  {name:<14}{value}"));
}
