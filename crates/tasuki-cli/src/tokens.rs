//! `tasuki token`: service tokens, and the keys that sign them.

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;

use secrecy::ExposeSecret;
use serde_json::json;
use tasuki_service::auth::tokens::{KeyRing, Signer};
use tasuki_service::config;

use crate::args::{Source, Token};
use crate::output::{say, say_json};
use crate::platform::{self, Platform};

pub(crate) fn run(source: &Source, command: &Token, json: bool) -> anyhow::Result<ExitCode> {
    let platform = Platform::read(&platform::configuration(source)?)?;
    let auth = &platform.common.auth;
    let missing = config::Error::Missing {
        key: "auth.key-dir",
        variable: "TASUKI_AUTH__KEY_DIR",
    };
    let dir: &Path = auth.key_dir.as_deref().ok_or(missing)?;
    match command {
        Token::Sign {
            from,
            to,
            user,
            roles,
        } => {
            let ring = KeyRing::open(dir, from.as_str(), &platform.clock)?;
            let signer = Signer::new(ring, auth.token_lifetime, &platform.clock);
            let roles: Vec<_> = roles.iter().map(String::as_str).collect();
            let token = signer.sign(to.as_str(), user.as_deref(), &roles)?;
            if json {
                say_json(&json!({ "token": token.expose_secret() }))?;
            } else {
                say(token.expose_secret());
            }
        }
        Token::Rotate { service, keep } => {
            let ring = KeyRing::open_or_create(dir, service.as_str(), &platform.clock)?;
            let kid = ring.rotate()?;
            let keep = NonZeroUsize::new(usize::from(*keep)).unwrap_or(NonZeroUsize::MIN);
            let removed = ring.prune(keep)?;
            if json {
                say_json(&json!({ "key": kid, "removed": removed, "keys": ring.kids() }))?;
            } else {
                say(format_args!("new key {kid}, {removed} old removed"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
