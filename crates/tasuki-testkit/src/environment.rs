//! A service as in production, inside a test: real servers, real listeners, one database.

use std::net::SocketAddr;

use reqwest::{Client, Method, StatusCode};
use serde_json::Value;
use tasuki::Clock;
use tasuki_service::config::Common;
use tasuki_service::host::{Host, Role, Running};
use tasuki_service::service::Tables;
use tasuki_service::shutdown::Phases;
use tasuki_service::telemetry::Meter;
use tasuki_service::{Config, Service};
use tokio::task::JoinHandle;

use crate::servers::Servers;
use crate::template::TestDb;

/// The surroundings of one test.
#[derive(Debug)]
pub struct TestEnv {
    /// Its database.
    pub db: TestDb,
    /// Its configuration: the defaults, pointed at the test's servers.
    pub config: Config,
    /// The time of the services under test.
    pub clock: Clock,
}

/// Services that run inside a test.
#[derive(Debug)]
pub struct TestHost {
    /// The API of the first service.
    pub api: SocketAddr,
    /// Its internal listener.
    pub internal: SocketAddr,
    /// Tells it to stop.
    pub phases: Phases,
    /// Ends when it has stopped.
    pub stopped: JoinHandle<()>,
    client: Client,
}

/// An answer, read to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: reqwest::header::HeaderMap,
    /// Its body as text.
    pub text: String,
}

impl Reply {
    /// Its body as JSON; null when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    /// The code of its error body.
    #[must_use]
    pub fn code(&self) -> String {
        let body = self.json();
        let code = body.get("code").and_then(Value::as_str);
        code.unwrap_or_default().to_owned()
    }
}

impl TestEnv {
    /// Surroundings for services whose default settings are `parts` and whose tables
    /// `tables` names.
    ///
    /// # Errors
    /// When a setting or a server is not as it should be.
    pub async fn start<E>(
        parts: &[&str],
        tables: impl Fn(&Config, &Common) -> Result<Vec<Tables>, E>,
    ) -> Result<Self, Box<dyn std::error::Error>>
    where
        E: Into<Box<dyn std::error::Error>>,
    {
        let servers = Servers::get().await;
        let parts: Vec<_> = [Common::DEFAULTS].iter().chain(parts).copied().collect();
        let config = Config::defaults(&parts)?
            .with_value("platform.mode", "development")?
            .with_value("database.url", servers.database.clone())?
            .with_value("nats.url", servers.nats.clone())?
            .with_value("redis.url", servers.redis.clone())?;
        let tables = tables(&config, &Common::read(&config)?).map_err(Into::into)?;
        let plans = tables.iter().flat_map(|tables| tables.plans.iter());
        let db = TestDb::with(plans).await;
        let config = config.with_value("database.url", db.url())?;
        Ok(Self {
            db,
            config,
            clock: Clock::system(),
        })
    }

    /// What no other test has: the beginning of every subject, stream and key of this one.
    #[must_use]
    pub fn prefix(&self) -> &str {
        self.db.name()
    }

    /// The shared settings.
    ///
    /// # Errors
    /// When one does not fit.
    pub fn common(&self) -> Result<Common, tasuki_service::config::Error> {
        Common::read(&self.config)
    }

    /// Runs `services` as a process would.
    ///
    /// # Errors
    /// When they can't start.
    pub async fn host(
        &self,
        services: Vec<Service>,
    ) -> Result<TestHost, Box<dyn std::error::Error>> {
        let host = Host::new(
            self.common()?,
            self.clock.clone(),
            Meter::detached(),
            Role::Everything,
        );
        TestHost::of(host.start(services).await?)
    }
}

impl TestHost {
    /// Lets `running` run in the background.
    ///
    /// # Errors
    /// When it has no service.
    pub fn of(running: Running) -> Result<Self, Box<dyn std::error::Error>> {
        let first = *running.addresses().first().ok_or("no service")?;
        let phases = running.phases().clone();
        #[expect(clippy::disallowed_methods, reason = "the test awaits it by `stopped`")]
        let stopped = tokio::spawn(running.run());
        Ok(Self {
            api: first.api.ok_or("no API")?,
            internal: first.internal,
            phases,
            stopped,
            client: Client::new(),
        })
    }

    /// `GET path` without a credential.
    ///
    /// # Panics
    /// When there is no answer at all.
    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, None, None).await
    }

    /// `GET path` with a credential.
    ///
    /// # Panics
    /// When there is no answer at all.
    pub async fn get_as(&self, credential: &str, path: &str) -> Reply {
        self.send(Method::GET, path, Some(credential), None).await
    }

    /// `POST path` with a JSON body.
    ///
    /// # Panics
    /// When there is no answer at all.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(Method::POST, path, None, Some(body)).await
    }

    /// Any request.
    ///
    /// # Panics
    /// When there is no answer at all.
    #[expect(clippy::panic, reason = "no answer is a failed test")]
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        credential: Option<&str>,
        body: Option<&Value>,
    ) -> Reply {
        let url = format!("http://{}{path}", self.api);
        let mut request = self.client.request(method, url);
        if let Some(credential) = credential {
            request = request.bearer_auth(credential);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = async {
            let response = request.send().await?;
            Ok::<_, reqwest::Error>(Reply {
                status: response.status(),
                headers: response.headers().clone(),
                text: response.text().await?,
            })
        };
        answer
            .await
            .unwrap_or_else(|error| panic!("no answer from {path}: {error}"))
    }
}
