//! A private PgBouncer in transaction mode, in front of one database.
//!
//! It has two sessions for however many clients, so that clients really share them: whatever
//! relies on a session of its own fails soon. Its settings are those that the operator's page
//! about poolers (`docs/operate/pooler.md`) asks for.

use std::{ops::Deref, sync::Arc};

use rustix::process::Signal;
use sqlx::{ConnectOptions as _, Connection as _, postgres::PgConnectOptions};

use crate::{
    Error, Options,
    find::{self, Found},
    home::Home,
    port::Owner,
    process::Launch,
    quote,
    server::{self, Plan, Server},
    user::User,
};

/// Sessions that all clients share.
const SESSIONS: u32 = 2;

/// A running PgBouncer; derefs to [`Server`] for everything that servers have in common.
#[derive(Debug)]
pub struct PgBouncer {
    server: Server,
    database: String,
}

/// Asks whether PgBouncer, and PostgreSQL behind it, are ready.
#[derive(Debug)]
pub(crate) struct Probe {
    database: String,
}

impl PgBouncer {
    /// Starts it in front of the database at `upstream`. Whoever connects becomes the user of
    /// that URL, whose password has letters and digits only, and its database also `_`.
    pub async fn start(options: &Options, upstream: &str) -> Result<Self, Error> {
        let upstream: PgConnectOptions = upstream.parse().map_err(|error: sqlx::Error| {
            let why = error.to_string();
            Error::Refused {
                server: "PgBouncer",
                what: "lead to a database",
                why,
            }
        })?;
        let database = upstream.get_database().unwrap_or("postgres").to_owned();
        let home = Arc::new(Home::claim(options).await?);
        let found = find::find(&find::PGBOUNCER, &home.options).await?;
        let user = User::choose(&home.path(""))?;
        let server = Server::launch(&home, Owner::PgBouncer, |port| {
            let settings = config(&upstream, &database, port);
            plan(&home, &found, user.as_ref(), &database, port, &settings)
        })
        .await?;
        Ok(Self { server, database })
    }

    /// The address of the database, through the pooler.
    pub fn url(&self) -> String {
        url(self.port(), &self.database)
    }
}

impl Deref for PgBouncer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Probe {
    /// A stranger on its port would have to have a database of this name, and no password.
    pub(crate) async fn ask(&self, port: u16) -> Result<(), String> {
        let text = |error: sqlx::Error| error.to_string();
        let options: PgConnectOptions = url(port, &self.database).parse().map_err(text)?;
        // The first client is let in only after a session with PostgreSQL has been opened.
        let mut connection = options
            .disable_statement_logging()
            .connect()
            .await
            .map_err(text)?;
        connection.ping().await.map_err(text)?;
        connection.close().await.map_err(text)
    }
}

fn plan(
    home: &Home,
    found: &Found,
    user: Option<&User>,
    database: &str,
    port: u16,
    settings: &str,
) -> Result<Plan, Error> {
    let conf = home.write_private("pgbouncer.ini", settings)?;
    if let Some(user) = user {
        user.own(&conf)?;
    }
    Ok(Plan {
        name: "PgBouncer",
        version: found.version.clone(),
        port,
        log: home.path("pgbouncer.log"),
        launch: Launch {
            program: found.path.clone(),
            arguments: vec![conf.into()],
            environment: Vec::new(),
            dir: "/".into(),
            user: user.cloned(),
        },
        probe: server::Probe::PgBouncer(Probe {
            database: database.to_owned(),
        }),
        // SIGTERM: end at once. SIGINT would wait for clients that may never leave.
        stop: Signal::TERM,
        farewell: None,
    })
}

fn config(upstream: &PgConnectOptions, database: &str, port: u16) -> String {
    let value = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let target = format!(
        "host={} port={} dbname={} user={} password={}",
        value(upstream.get_host()),
        upstream.get_port(),
        value(database),
        value(upstream.get_username()),
        value(upstream.to_url_lossy().password().unwrap_or_default()),
    );
    format!(
        "[databases]\n{database} = {target}\n\n[pgbouncer]\n\
         listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
         pool_mode = transaction\ndefault_pool_size = {SESSIONS}\nmax_client_conn = 200\n\
         server_reset_query_always = 1\nignore_startup_parameters = extra_float_digits\n"
    )
}

fn url(port: u16, database: &str) -> String {
    let database = quote::percent(database);
    format!("postgres://pooled@127.0.0.1:{port}/{database}")
}
