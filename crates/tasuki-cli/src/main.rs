//! The `tasuki` executable: parse, wire, run.
//!
//! Exit codes: 0 done; 1 it failed, and one sentence on standard error says why; 2 the
//! command line or the configuration is wrong; 130 ended by a signal before it was ready, or
//! by a second one.

mod args;
mod consumer;
mod credentials;
mod dead;
mod demo;
mod env_file;
mod migrate;
mod moderation;
mod outbox;
mod output;
mod platform;
mod private_file;
mod relay;
mod saga;
mod serve;
mod settings;
mod status;
mod sum;
mod tokens;
mod twopc;
mod up;
mod verify;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use tasuki_service::config;

use args::{Args, Command};

/// What a command answers to the shell.
const FAILED: u8 = 1;
const WRONG: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    // Both TLS backends that our dependencies know are compiled in by somebody: choose one.
    // An error only says that a provider was chosen before.
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .unwrap_or_default();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return output::failed(FAILED, &error.into()),
    };
    let ended = runtime.block_on(run(args));
    // What still blocks a thread by now (a last export, a name lookup) must not hold us up.
    runtime.shutdown_background();
    match ended {
        Ok(code) => code,
        Err(error) if error.chain().any(|cause| cause.is::<config::Error>()) => {
            output::failed(WRONG, &error)
        }
        Err(error) => output::failed(FAILED, &error),
    }
}

async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args {
        source,
        json,
        command,
    } = args;
    match command {
        Command::Up(options) => Box::pin(up::run(&source, &options)).await,
        Command::Serve(options) => Box::pin(serve::run(&source, &options)).await,
        Command::Migrate(options) => migrate::run(&source, &options, json).await,
        Command::Config(command) => settings::run(&source, &command, json),
        Command::Status(options) => status::run(&source, &options, json).await,
        Command::Apikey(command) => credentials::run(&source, &command, json).await,
        Command::Token(command) => tokens::run(&source, &command, json),
        Command::Outbox(command) => outbox::run(&source, &command, json).await,
        Command::Dlq(command) => dead::run(&source, &command, json).await,
        Command::Saga(command) => saga::run(&source, &command, json).await,
        Command::Twopc(command) => twopc::run(&source, &command, json).await,
        Command::Consumer(command) => consumer::run(&source, &command, json).await,
        Command::Relay(command) => relay::run(&source, &command, json).await,
        Command::Verify(options) => verify::run(&source, &options, json).await,
        Command::Demo => demo::run(&source, json).await,
        Command::Version => output::version(json),
        Command::Completions { shell } => {
            let mut command = Args::command();
            clap_complete::generate(shell, &mut command, "tasuki", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    }
}
