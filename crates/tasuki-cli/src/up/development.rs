//! What development mode makes by itself, once, and keeps in the data folder: credentials,
//! signing keys, and the ports that services were given.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tasuki::Clock;
use tasuki_service::auth::credentials::{Credential, Credentials, NewCredential, ScopeName};
use tasuki_service::config::Config;
use tasuki_service::host::Running;
use tasuki_service::service::Tables;
use tasuki_stack::free_port;

use crate::platform::{Name, Platform};
use crate::private_file;

/// What is kept between starts.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Kept {
    operator_token: Option<String>,
    api_key: Option<String>,
    #[serde(default)]
    ports: BTreeMap<String, u16>,
}

/// The development secrets and ports.
#[derive(Debug)]
pub(super) struct Development {
    path: PathBuf,
    keys: PathBuf,
    kept: Kept,
}

impl Development {
    pub(super) fn open(data_dir: &Path) -> anyhow::Result<Self> {
        let path = data_dir.join("development.toml");
        let kept = match fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text)
                .with_context(|| format!("{} is damaged: remove it", path.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Kept::default(),
            Err(error) => {
                return Err(error).with_context(|| format!("{} can't be read", path.display()));
            }
        };
        let keys = std::path::absolute(data_dir.join("keys"))?;
        Ok(Self { path, keys, kept })
    }

    /// Gives every listener that nobody configured its port of the last time, or a new one; and
    /// other settings that nobody configured the values of development.
    pub(super) fn configure(&mut self, mut config: Config) -> anyhow::Result<Config> {
        for name in Name::ALL {
            for (listener, key) in [("", "listen"), ("-internal", "internal-listen")] {
                let key = format!("{}.server.{key}", name.as_str());
                if config.is_set(&key) {
                    continue;
                }
                let port = self.port(&format!("{}{listener}", name.as_str()))?;
                config = config.with_value(&key, format!("127.0.0.1:{port}"))?;
            }
            let internal = format!("{}.server.internal-listen", name.as_str());
            let internal = config.text(&internal).to_owned();
            let issuer = format!("auth.issuers.{}", name.as_str());
            config = config.with_value(&issuer, format!("http://{internal}"))?;
        }
        // Smaller than in production: a crash publishes less again, and there is little to wait for.
        if !config.is_set("entitlement.outbox.batch-size") {
            config = config.with_value("entitlement.outbox.batch-size", 50)?;
        }
        if !config.is_set("shop.entitlement.url") {
            let entitlement = config.text("entitlement.server.listen").to_owned();
            config = config.with_value("shop.entitlement.url", format!("http://{entitlement}"))?;
        }
        if !config.is_set("community.relay.url") {
            let relay = config.text("community.server.listen").to_owned();
            config = config.with_value("community.relay.url", format!("ws://{relay}"))?;
        }
        if !config.is_set("auth.callers.shop") {
            let scopes = tasuki_shop::NEEDED_SCOPES.join(",");
            config = config.with_value("auth.callers.shop", scopes)?;
        }
        if !config.is_set("auth.key-dir") {
            config = config.with_value("auth.key-dir", self.keys.display().to_string())?;
        }
        self.keep()?;
        Ok(config)
    }

    /// Puts the development credentials of a service into its database, made on first start:
    /// one operator token for all of them, and one API key where there are scopes.
    pub(super) async fn import(&mut self, tables: &Tables, clock: &Clock) -> anyhow::Result<()> {
        let operator = NewCredential::operator("development")?;
        let kept = self.kept.operator_token.take();
        let kept = put(tables, clock, kept, &operator).await?;
        self.kept.operator_token = Some(kept);
        let scopes = scopes(tables.service)?;
        if !scopes.is_empty() {
            let wanted = NewCredential::api_key("development", scopes)?;
            let kept = self.kept.api_key.take();
            self.kept.api_key = Some(put(tables, clock, kept, &wanted).await?);
        }
        self.keep()
    }

    /// The operator token of the console and the status page.
    pub(super) fn operator_token(&self) -> &str {
        self.kept.operator_token.as_deref().unwrap_or_default()
    }

    /// The API key that may do all that API keys can be allowed to.
    pub(super) fn api_key(&self) -> &str {
        self.kept.api_key.as_deref().unwrap_or_default()
    }

    /// What `.tasuki/run/env` says: names for people and scripts, then the settings by which
    /// another process joins this platform (`tasuki serve … --env-file`).
    pub(super) fn variables(
        &self,
        platform: &Platform,
        running: &Running,
    ) -> Vec<(String, String)> {
        let common = &platform.common;
        let servers = [
            ("DATABASE", common.database.url.expose()),
            ("NATS", common.nats.url.expose()),
            ("REDIS", common.redis.url.expose()),
        ];
        let mut all = Vec::new();
        for address in running.addresses() {
            let service = address.service.to_uppercase();
            if let Some(api) = address.api {
                all.push((format!("TASUKI_{service}_URL"), format!("http://{api}")));
            }
            if let (tasuki_community::NAME, Some(api)) = (address.service, address.api) {
                all.push(("TASUKI_RELAY_URL".to_owned(), format!("ws://{api}")));
            }
            let internal = format!("http://{}", address.internal);
            all.push((format!("TASUKI_AUTH__ISSUERS__{service}"), internal));
        }
        for (server, url) in servers {
            all.push((format!("TASUKI_{server}_URL"), url.to_owned()));
            all.push((format!("TASUKI_{server}__URL"), url.to_owned()));
        }
        // What a shop elsewhere needs besides: where entitlement is, what it may do there, and its
        // other warehouse.
        let shop = platform.shop();
        for (key, value) in [
            ("SHOP__ENTITLEMENT__URL", shop.entitlement.url.as_str()),
            ("SHOP__WAREHOUSE__URL", shop.warehouse.url.expose()),
            ("AUTH__CALLERS__SHOP", &tasuki_shop::NEEDED_SCOPES.join(",")),
        ] {
            all.push((format!("TASUKI_{key}"), value.to_owned()));
        }
        let keys = common.auth.key_dir.as_ref();
        let keys = keys
            .map(|dir| dir.display().to_string())
            .unwrap_or_default();
        all.push(("TASUKI_AUTH__KEY_DIR".to_owned(), keys));
        all.push(("TASUKI_PLATFORM__MODE".to_owned(), "development".to_owned()));
        let operator = self.operator_token().to_owned();
        all.push(("TASUKI_OPERATOR_TOKEN".to_owned(), operator));
        let api_key = self.api_key().to_owned();
        all.push(("TASUKI_API_KEY".to_owned(), api_key));
        all
    }

    fn port(&mut self, listener: &str) -> anyhow::Result<u16> {
        if let Some(port) = self.kept.ports.get(listener) {
            return Ok(*port);
        }
        let port = free_port()?;
        self.kept.ports.insert(listener.to_owned(), port);
        Ok(port)
    }

    fn keep(&self) -> anyhow::Result<()> {
        private_file::write(&self.path, &toml::to_string(&self.kept)?)
    }
}

/// What the development key may do at `service`.
fn scopes(service: &str) -> anyhow::Result<Vec<ScopeName>> {
    let names: &[&str] = match service {
        tasuki_entitlement::NAME => &tasuki_entitlement::SCOPES,
        tasuki_notification::NAME => &tasuki_notification::SCOPES,
        tasuki_shop::NAME => &tasuki_shop::SCOPES,
        tasuki_community::NAME => &tasuki_community::SCOPES,
        _ => &[],
    };
    let parsed = names.iter().map(|name| name.parse().map_err(Into::into));
    parsed.collect()
}

/// Puts a credential that is known already into a service's database, or makes one there.
async fn put(
    tables: &Tables,
    clock: &Clock,
    kept: Option<String>,
    wanted: &NewCredential,
) -> anyhow::Result<String> {
    let credentials = Credentials::new(&tables.schema);
    let mut connection = tables.database.workers.acquire().await?;
    if let Some(kept) = kept {
        let credential: Credential = kept.parse()?;
        let imported = credentials.import(&mut connection, &credential, wanted);
        imported.await?;
        return Ok(kept);
    }
    let made = credentials.create(&mut connection, clock, wanted).await?;
    Ok(made.expose().to_owned())
}
