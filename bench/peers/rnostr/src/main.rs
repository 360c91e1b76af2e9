//! rnostr's relay, from its library: its own executable is built with a full-text search whose
//! dictionaries come from no registry. Extensions are off here, as they are in its example settings,
//! but for metrics.

use std::path::PathBuf;

use anyhow::Context as _;
use nostr_relay::App;

/// `bench-rnostr CONFIG`.
#[actix_rt::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let config = std::env::args().nth(1).map(PathBuf::from);
    let config = config.context("say where the settings are")?;
    let app = App::create(Some(&config), false, None, None)?;
    app.web_server()?.await?;
    Ok(())
}
