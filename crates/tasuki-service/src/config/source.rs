//! Where settings come from: files and environment variables.

use std::path::Path;

use toml::{Table, Value};

use super::Error;
use super::tree::Path as KeyPath;

const PREFIX: &str = "TASUKI_";

/// Names that `tasuki up` writes for people and scripts, or that tools of ours read. They
/// are not configuration, so that sourcing `.tasuki/run/env` changes nothing.
const NOT_OURS: [&str; 27] = [
    "GATEWAY_URL",
    "ACCOUNT_URL",
    "ENTITLEMENT_URL",
    "NOTIFICATION_URL",
    "MATCHMAKING_URL",
    "SHOP_URL",
    "COMMUNITY_URL",
    "RELAY_URL",
    "CONSOLE_URL",
    "SYSTEM_URL",
    "OIDC_ISSUER",
    "DATABASE_URL",
    "NATS_URL",
    "REDIS_URL",
    "API_KEY",
    "OPERATOR_TOKEN",
    "DEMO_USER",
    "DEMO_PASSWORD",
    "DEMO_USER2",
    "DEMO_USER2_PASSWORD",
    "DEMO_ADMIN",
    "DEMO_ADMIN_PASSWORD",
    "POSTGRES_PID",
    "NATS_PID",
    "REDIS_PID",
    "PID",
    "CONFIG",
];
const NOT_OURS_PREFIXES: [&str; 2] = ["TEST_", "BUILD_"];

pub(super) fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|error| Error::Unreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

pub(super) fn parse(origin: &str, text: &str) -> Result<Table, Error> {
    text.parse()
        .map_err(|error: toml::de::Error| Error::Syntax {
            origin: origin.to_owned(),
            reason: match error.span() {
                Some(span) => {
                    let before = text.get(..span.start).unwrap_or(text);
                    let line = before.matches('\n').count() + 1;
                    format!("line {line}: {}", sentence(&error))
                }
                None => sentence(&error),
            },
        })
}

/// `TASUKI_DATABASE__MAX_CONNECTIONS` → `database.max-connections`; `None` for what is not
/// configuration.
pub(super) fn key_of_variable(name: &str) -> Result<Option<KeyPath>, Error> {
    let Some(rest) = name.strip_prefix(PREFIX) else {
        return Ok(None);
    };
    let foreign = NOT_OURS.contains(&rest)
        || NOT_OURS_PREFIXES
            .iter()
            .any(|prefix| rest.starts_with(prefix));
    if foreign {
        return Ok(None);
    }
    if !rest.contains("__") {
        return Err(Error::UnknownKey {
            key: name.to_owned(),
            origin: "the environment".to_owned(),
            hint: ": section and key are joined by two underscores, as in TASUKI_DATABASE__URL"
                .to_owned(),
        });
    }
    let parts = rest
        .split("__")
        .map(|part| part.to_ascii_lowercase().replace('_', "-"))
        .collect();
    Ok(Some(KeyPath::new(parts)))
}

/// Reads `text` as a value of the same type as `like`. Without a like (below a free-form
/// table) it stays text.
pub(super) fn value_like(like: Option<&Value>, text: &str) -> Result<Value, String> {
    let wrong = |expected: &str| format!("expected {expected}, found {text:?}");
    match like {
        Some(Value::Integer(_)) => text
            .parse()
            .map(Value::Integer)
            .map_err(|_error| wrong("a whole number")),
        Some(Value::Float(_)) => text
            .parse()
            .map(Value::Float)
            .map_err(|_error| wrong("a number")),
        Some(Value::Boolean(_)) => text
            .parse()
            .map(Value::Boolean)
            .map_err(|_error| wrong("true or false")),
        Some(Value::Array(_)) => {
            let items = text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty());
            Ok(items.map(Value::from).collect::<Vec<_>>().into())
        }
        Some(Value::String(_) | Value::Datetime(_) | Value::Table(_)) | None => {
            Ok(Value::from(text))
        }
    }
}

/// An error of the TOML reader on one line.
pub(super) fn sentence(error: &toml::de::Error) -> String {
    let message = error.message().trim().replace('\n', ", ");
    message.trim_end_matches(['.', ',']).to_owned()
}
