//! `tasuki config`: every question about the configuration.

use std::process::ExitCode;

use crate::args::{Config, Source};
use crate::output::{GOOD, say, say_json, styled};
use crate::platform::{self, Platform};

pub(crate) fn run(source: &Source, command: &Config, json: bool) -> anyhow::Result<ExitCode> {
    if let Config::Show { defaults: true } = command {
        say(platform::defaults().trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let config = platform::configuration(source)?;
    match command {
        Config::Show { .. } if json => say_json(&config.redacted())?,
        Config::Show { .. } => say(config.show().trim_end()),
        Config::Check => {
            let missing = Platform::read(&config)?.unset_addresses();
            if json {
                say_json(&serde_json::json!({ "valid": true, "not_set": missing }))?;
            } else {
                say(styled(GOOD, "no setting is wrong"));
                if !missing.is_empty() {
                    let missing = missing.join(", ");
                    say(format_args!(
                        "not set, and `tasuki serve` needs them: {missing}"
                    ));
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
