//! Configuration: where it comes from, and how clearly it is refused.

use std::path::Path;

use tasuki_service::config::{Common, Mode};
use tasuki_service::{Config, config};

fn defaults() -> Config {
    Config::defaults(&[Common::DEFAULTS]).unwrap()
}

fn environment(variables: &[(&str, &str)]) -> Result<Config, config::Error> {
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    defaults().with_environment(variables)
}

fn file(text: &str) -> Result<Config, config::Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasuki.toml");
    std::fs::write(&path, text).unwrap();
    let config = defaults().with_file(&path);
    config.map_err(|error| strip(error, &path))
}

/// Messages name the file; its folder is another one every time.
fn strip(error: config::Error, path: &Path) -> config::Error {
    let shown = path.display().to_string();
    match error {
        config::Error::UnknownKey { key, origin, hint } => config::Error::UnknownKey {
            key,
            origin: origin.replace(&shown, "tasuki.toml"),
            hint,
        },
        config::Error::Syntax { origin, reason } => config::Error::Syntax {
            origin: origin.replace(&shown, "tasuki.toml"),
            reason,
        },
        other => other,
    }
}

#[test]
fn the_embedded_defaults_fill_every_section() {
    let common = Common::read(&defaults()).unwrap();
    assert_eq!(common.platform.mode, Mode::Production);
    assert_eq!(common.http.max_body.bytes(), 1 << 20);
}

#[test]
fn the_environment_wins_over_the_file_and_the_file_over_the_defaults() {
    let config = file("[database]\nmax-connections = 20\nworker-connections = 2").unwrap();
    let variables = [(
        "TASUKI_DATABASE__MAX_CONNECTIONS".to_owned(),
        "30".to_owned(),
    )];
    let config = config.with_environment(variables).unwrap();
    let database = Common::read(&config).unwrap().database;
    assert_eq!(database.max_connections.get(), 30);
    assert_eq!(database.worker_connections.get(), 2);
    assert_eq!(database.acquire_timeout.as_secs(), 2);
}

#[test]
fn a_value_that_looks_like_a_number_stays_text_where_text_is_expected() {
    let config = environment(&[("TASUKI_AUTH__KEY_DIR", "12345")]).unwrap();
    let auth = Common::read(&config).unwrap().auth;
    assert_eq!(auth.key_dir.unwrap(), Path::new("12345"));
}

#[test]
fn every_mistake_is_one_sentence_that_names_the_key_and_its_place() {
    let sentences = [
        (
            file("[databse]\nurl = 'x'").unwrap_err(),
            "unknown key databse.url in tasuki.toml, did you mean database.url?",
        ),
        (
            file("[http]\nmax-bodi = '1MiB'").unwrap_err(),
            "unknown key http.max-bodi in tasuki.toml, did you mean http.max-body?",
        ),
        (
            environment(&[("TASUKI_HTTP__MAX_BODI", "1MiB")]).unwrap_err(),
            "unknown key http.max-bodi in environment variable TASUKI_HTTP__MAX_BODI, did you mean http.max-body?",
        ),
        (
            environment(&[("TASUKI_HTTP_MAX_BODY", "1MiB")]).unwrap_err(),
            "unknown key TASUKI_HTTP_MAX_BODY in the environment: section and key are joined by two underscores, as in TASUKI_DATABASE__URL",
        ),
        (
            environment(&[("TASUKI_DATABASE__MAX_CONNECTIONS", "many")]).unwrap_err(),
            "database.max-connections in environment variable TASUKI_DATABASE__MAX_CONNECTIONS is not valid: expected a whole number, found \"many\"",
        ),
        (
            file("[http\nmax-body = 1").unwrap_err(),
            "tasuki.toml is not valid TOML: line 1: unclosed table, expected `]`",
        ),
    ];
    for (error, expected) in sentences {
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_value_out_of_range_is_refused_when_it_is_read() {
    for (variable, value, part) in [
        (
            "TASUKI_DATABASE__MAX_CONNECTIONS",
            "0",
            "database.max-connections",
        ),
        (
            "TASUKI_TELEMETRY__TRACE_SAMPLE_RATIO",
            "2",
            "not between 0 and 1",
        ),
        ("TASUKI_AUTH__TOKEN_LIFETIME", "5m", "at most 60s"),
        ("TASUKI_HTTP__MAX_BODY", "1MB", "is not a size"),
        ("TASUKI_HTTP__HEAD_TIMEOUT", "soon", "http.head-timeout"),
        (
            "TASUKI_DATABASE__URL",
            "http://db",
            "it begins with postgres://",
        ),
        ("TASUKI_DATABASE__URL", "postgres://h:x/d", "not an address"),
        ("TASUKI_NATS__URL", "nope", "it begins with nats://"),
        ("TASUKI_TELEMETRY__LOG", "a=b=c", "not a log filter"),
        (
            "TASUKI_TELEMETRY__OTLP_ENDPOINT",
            "collector:4318",
            "http://",
        ),
        (
            "TASUKI_PLATFORM__MODE",
            "testing",
            "unknown variant `testing`",
        ),
    ] {
        let config = environment(&[(variable, value)]).unwrap();
        let error = Common::read(&config).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(variable), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn what_tasuki_up_writes_for_people_is_not_configuration() {
    let config = environment(&[
        ("TASUKI_DATABASE_URL", "postgres://elsewhere"),
        ("TASUKI_API_KEY", "tsk_x"),
        ("TASUKI_TEST_DATABASE_URL", "x"),
        ("TASUKI_BUILD_DATABASE_URL", "x"),
        ("HOME", "x"),
    ])
    .unwrap();
    assert!(!config.is_set("database.url"));
}

#[test]
fn what_is_shown_can_be_read_again() {
    let config = environment(&[("TASUKI_AUTH__ISSUERS__GATEWAY", "http://g:1")]).unwrap();
    let again = file(&config.show()).unwrap();
    assert_eq!(again.redacted(), config.redacted());
}

#[test]
fn a_free_form_table_takes_any_key() {
    let config = environment(&[("TASUKI_AUTH__ISSUERS__GATEWAY", "http://g:1")]).unwrap();
    let auth = Common::read(&config).unwrap().auth;
    assert_eq!(auth.issuers["gateway"], "http://g:1");
}

#[test]
fn what_a_service_may_do_for_itself_is_nothing_or_a_list_or_a_text_of_scopes() {
    let none = Common::read(&defaults()).unwrap().auth;
    assert!(none.callers.is_empty());
    let scopes = ["entitlement:grant", "entitlement:revoke"];
    let listed = file(
        r#"[auth.callers]
        shop = ["entitlement:grant", "entitlement:revoke"]"#,
    );
    let text = environment(&[(
        "TASUKI_AUTH__CALLERS__SHOP",
        "entitlement:grant, entitlement:revoke",
    )]);
    for config in [listed, text] {
        let auth = Common::read(&config.unwrap()).unwrap().auth;
        assert_eq!(auth.callers["shop"], scopes);
    }
    let nothing = environment(&[("TASUKI_AUTH__CALLERS__SHOP", "")]).unwrap();
    assert!(Common::read(&nothing).unwrap().auth.callers["shop"].is_empty());
    let wrong = environment(&[("TASUKI_AUTH__CALLERS__SHOP", "everything")]).unwrap();
    let refused = Common::read(&wrong).unwrap_err().to_string();
    assert!(refused.contains("auth.callers"), "{refused}");
    assert!(refused.contains("`everything` is not a scope"), "{refused}");
}

#[test]
fn limits_that_the_server_would_take_for_none_are_refused() {
    for name in [
        "STATEMENT_TIMEOUT",
        "LOCK_TIMEOUT",
        "IDLE_IN_TRANSACTION_TIMEOUT",
    ] {
        let name = format!("TASUKI_DATABASE__{name}");
        let config = environment(&[(name.as_str(), "0s")]).unwrap();
        let refused = Common::read(&config).unwrap_err().to_string();
        assert!(refused.contains("it is at least 1ms"), "{refused}");
    }
}

#[test]
fn what_is_shown_hides_secrets_and_says_where_values_come_from() {
    let config = environment(&[("TASUKI_DATABASE__URL", "postgres://u:hunter2@db/x")]).unwrap();
    let shown = config.show();
    assert!(!shown.contains("hunter2"), "{shown}");
    let line =
        r#"url = "postgres://u:<hidden>@db/x"  # from environment variable TASUKI_DATABASE__URL"#;
    assert!(shown.contains(line), "{shown}");
    assert!(!config.redacted().to_string().contains("hunter2"));
    assert!(!format!("{:?}", Common::read(&config).unwrap()).contains("hunter2"));
}
