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

    let mut first = None;
    for address in started.running.addresses() {
        let Some(api) = address.api else { continue };
        let docs = styled(DIM, format_args!("try it at http://{api}/docs"));
        row(address.service, format_args!("http://{api}   {docs}"));
        first.get_or_insert(api);
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
    if let Some(api) = first {
        let token = started.development.operator_token();
        say(format_args!(
            "\n  First request:\n\n  curl -H 'Authorization: Bearer {token}' http://{api}/v1/status\n"
        ));
    }
    say(format_args!(
        "  {}\n",
        styled(DIM, "Ctrl-C stops everything; the data stays.")
    ));
}

fn row(name: &str, value: impl std::fmt::Display) {
    say(format_args!("  {name:<11}{value}"));
}
