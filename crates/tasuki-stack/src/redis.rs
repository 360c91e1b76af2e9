//! A private Redis.

use std::{ops::Deref, sync::Arc};

use ::redis::{Client, aio::MultiplexedConnection};
use rustix::process::Signal;

use crate::{
    Error, Options, Proxy,
    find::{self, Found},
    home::Home,
    port::Owner,
    process::Launch,
    quote,
    server::{self, Plan, Server},
};

/// A running Redis; derefs to [`Server`] for everything that servers have in common.
#[derive(Debug)]
pub struct Redis {
    server: Server,
}

/// Asks whether Redis is ready.
#[derive(Debug)]
pub(crate) struct Probe {
    credentials: String,
}

impl Redis {
    /// Starts Redis alone, in a folder of its own.
    pub async fn start(options: &Options) -> Result<Self, Error> {
        let home = Arc::new(Home::claim(options).await?);
        Self::start_in(&home).await
    }

    pub(crate) async fn start_in(home: &Arc<Home>) -> Result<Self, Error> {
        let found = find::find(&find::REDIS, &home.options).await?;
        let server = Server::launch(home, Owner::Redis, |port| plan(home, &found, port)).await?;
        Ok(Self { server })
    }

    /// The address, with the password if it asks for one.
    pub fn url(&self) -> String {
        url(&credentials(self.home()), self.port())
    }

    /// The same address through a proxy.
    pub fn url_via(&self, proxy: &Proxy) -> String {
        url(&credentials(self.home()), proxy.addr().port())
    }
}

impl Deref for Redis {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Probe {
    pub(crate) async fn ask(&self, port: u16, pid: u32) -> Result<(), String> {
        let text = |error: ::redis::RedisError| error.to_string();
        let client = Client::open(url(&self.credentials, port)).map_err(text)?;
        let mut connection: MultiplexedConnection = client
            .get_multiplexed_async_connection()
            .await
            .map_err(text)?;
        // While it reads its data back it answers LOADING, which is an error here.
        let _pong: String = ::redis::cmd("PING")
            .query_async(&mut connection)
            .await
            .map_err(text)?;
        let info: String = ::redis::cmd("INFO")
            .arg("server")
            .query_async(&mut connection)
            .await
            .map_err(text)?;
        let ours = format!("process_id:{pid}");
        if info.lines().any(|line| line == ours) {
            return Ok(());
        }
        Err("another Redis answers on its port".to_owned())
    }
}

fn plan(home: &Home, found: &Found, port: u16) -> Result<Plan, Error> {
    let data = home.make("redis")?;
    let conf = home.write_private("redis.conf", &config(home, port, &quote::path(&data)))?;
    Ok(Plan {
        name: "Redis",
        version: found.version.clone(),
        port,
        log: home.path("redis.log"),
        launch: Launch {
            program: found.path.clone(),
            arguments: vec![conf.into()],
            environment: Vec::new(),
            dir: data,
            user: None,
        },
        probe: server::Probe::Redis(Probe {
            credentials: credentials(home),
        }),
        stop: Signal::TERM,
        farewell: None,
    })
}

fn config(home: &Home, port: u16, data: &str) -> String {
    let durability = if home.is_durable() {
        format!(
            "appendonly yes\nappendfsync always\nrequirepass {}\n",
            home.secrets.redis
        )
    } else {
        "appendonly no\n".to_owned()
    };
    // The title names this file, so that what a killed owner left behind can be found.
    format!(
        "bind 127.0.0.1\nport {port}\ndir {data}\nsave \"\"\ndaemonize no\n\
         maxmemory-policy noeviction\nproc-title-template \"{{title}} {{config-file}}\"\n{durability}"
    )
}

fn credentials(home: &Home) -> String {
    if home.is_durable() {
        format!("default:{}@", home.secrets.redis)
    } else {
        String::new()
    }
}

fn url(credentials: &str, port: u16) -> String {
    format!("redis://{credentials}127.0.0.1:{port}")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::port::loopback;

    #[tokio::test]
    async fn a_fresh_port_that_is_lost_to_another_program_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options::new(folder.path().join("stack")).throwaway();
        let home = Arc::new(Home::claim(&options).await.unwrap());
        let found = find::find(&find::REDIS, &options).await.unwrap();
        let mut thief = None;

        let server = Server::launch(&home, Owner::Redis, |port| {
            let plan = plan(&home, &found, port);
            thief.get_or_insert_with(|| (port, TcpListener::bind(loopback(port))));
            plan
        })
        .await
        .unwrap();

        let (lost, _listener) = thief.unwrap();
        assert_ne!(server.port(), lost);
        let kept = std::fs::read_to_string(home.path("ports.toml")).unwrap();
        assert_eq!(kept.trim(), format!("redis = {}", server.port()));
    }
}
