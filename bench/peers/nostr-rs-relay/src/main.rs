//! nostr-rs-relay as its own executable runs it. That one can't be installed with the lock file that
//! comes in its crate (`time` 0.3.25 does not compile any more), so this has another one.

use std::{process::ExitCode, sync::mpsc};

use clap::Parser;
use nostr_rs_relay::{cli::CLIArgs, config::Settings, server::start_server};
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static GLOBAL: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    let arguments = CLIArgs::parse();
    let mut settings = match Settings::new(&arguments.config) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("the settings can't be read: {error:?}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(folder) = arguments.db {
        settings.database.data_directory = folder;
    }
    tracing_subscriber::fmt::init();
    // It stops when somebody says so here; it is killed instead.
    let (_stop, stopped) = mpsc::channel();
    match start_server(&settings, stopped) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("it has ended: {error:?}");
            ExitCode::FAILURE
        }
    }
}
