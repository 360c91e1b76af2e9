//! A private PostgreSQL.

mod config;
mod standby;
mod store;

use std::{
    fs, io,
    ops::Deref,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use rustix::process::Signal;

pub use self::standby::{Replication, Standby};
use crate::{
    Error, Options, Proxy,
    find::{self, Found},
    home::Home,
    log,
    port::Owner,
    process::{self, Launch},
    procfs, quote,
    server::{self, Plan, Server},
    user::User,
    warden::Warden,
};

/// The data folder below that of the stack.
pub(crate) const DATA: &str = "postgres";
/// The superuser.
const USER: &str = "tasuki";
/// How long the shared memory of a killed predecessor may take to become free.
const MEMORY_GRACE: Duration = Duration::from_secs(2);
/// How long `initdb` or `pg_basebackup` may take.
const MAKE_DEADLINE: Duration = Duration::from_secs(120);

/// A running PostgreSQL; derefs to [`Server`] for everything that servers have in common.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
    /// The folder of its programs, for those that make a standby.
    programs: PathBuf,
    // Dropped after the server, which it watches over.
    _warden: Warden,
}

/// Asks whether PostgreSQL is ready.
#[derive(Debug)]
pub(crate) struct Probe {
    password: String,
    data: PathBuf,
}

/// Gives shared memory back when it is dropped: `initdb` runs servers, and may be cut off.
#[derive(Debug)]
struct Memory<'a>(&'a Path);

/// Where a server's programs are, and who runs them.
#[derive(Debug)]
struct Tools {
    found: Found,
    programs: PathBuf,
    user: Option<User>,
}

impl Postgres {
    /// Starts PostgreSQL alone, in a folder of its own.
    pub async fn start(options: &Options) -> Result<Self, Error> {
        let home = Arc::new(Home::claim(options).await?);
        Self::start_in(&home).await
    }

    pub(crate) async fn start_in(home: &Arc<Home>) -> Result<Self, Error> {
        let tools = Tools::find(home).await?;
        if !home.path(DATA).join("PG_VERSION").exists() {
            tools.initialise(home).await?;
        }
        Self::start_with(home, tools).await
    }

    async fn start_with(home: &Arc<Home>, tools: Tools) -> Result<Self, Error> {
        let warden = Warden::start(&home.mark())?;
        let server = Server::launch(home, Owner::Postgres, |port| plan(home, &tools, port)).await?;
        Ok(Self {
            server,
            programs: tools.programs,
            _warden: warden,
        })
    }

    /// The address of a database, as superuser.
    pub fn url(&self, database: &str) -> String {
        url(&self.home().secrets.postgres, self.port(), database)
    }

    /// The same address through a proxy.
    pub fn url_via(&self, proxy: &Proxy, database: &str) -> String {
        let port = proxy.addr().port();
        url(&self.home().secrets.postgres, port, database)
    }

    /// Makes a database unless it is there.
    pub async fn ensure_database(&self, name: &str) -> Result<(), Error> {
        let refused = |error: sqlx::Error| Error::Refused {
            server: self.name(),
            what: "make a database",
            why: error.to_string(),
        };
        let mut connection = store::connect(&self.url("postgres"))
            .await
            .map_err(refused)?;
        store::ensure_database(&mut connection, name)
            .await
            .map_err(refused)?;
        store::close(connection).await.map_err(refused)
    }

    /// The superuser.
    pub fn user(&self) -> &'static str {
        USER
    }

    /// The superuser's password.
    pub fn password(&self) -> &str {
        &self.home().secrets.postgres
    }

    /// The folder of its programs, such as `pg_dump` and `pgbench`.
    pub fn programs(&self) -> &Path {
        &self.programs
    }
}

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Probe {
    /// A predecessor that was killed left its process id behind. If that number is in use
    /// (by a stranger, or by the predecessor itself while nobody reaps it), PostgreSQL would
    /// take it for a running server and refuse to start. We hold the folder's lock and have
    /// ended what ran there, so the file is nobody's.
    pub(crate) async fn prepare(&self) -> Result<(), Error> {
        let file = self.data.join("postmaster.pid");
        let Ok(text) = fs::read_to_string(&file) else {
            return Ok(());
        };
        // A backend that is being killed vanishes from our sight a moment before the kernel
        // takes the memory from it, and PostgreSQL does not start while anybody has it.
        if let Some(segment) = segment(&text) {
            let attached = || attachments(segment).is_some_and(|count| count > 0);
            process::until(MEMORY_GRACE, || !attached()).await;
        }
        let pid = text.lines().next().and_then(|line| line.parse().ok());
        if pid.is_some_and(procfs::exists) {
            release_memory(&self.data);
            fs::remove_file(&file).map_err(Error::folder(&file))?;
        }
        Ok(())
    }

    pub(crate) async fn ask(&self, port: u16) -> Result<(), String> {
        let text = |error: sqlx::Error| error.to_string();
        let url = url(&self.password, port, "postgres");
        let mut connection = store::connect(&url).await.map_err(text)?;
        let data = store::data_directory(&mut connection).await.map_err(text)?;
        store::close(connection).await.map_err(text)?;
        if Path::new(&data) == self.data {
            return Ok(());
        }
        Err("another PostgreSQL answers on its port".to_owned())
    }
}

/// Gives a killed server's segment of shared memory back. The next start on the same
/// data would do it; when the data is removed instead, the segment would stay until the
/// machine restarts, and there are only so many.
pub(crate) fn release_memory(data: &Path) {
    let Ok(text) = fs::read_to_string(data.join("postmaster.pid")) else {
        return;
    };
    // After a restart of the machine the number may be somebody else's, who uses it.
    let Some(segment) = segment(&text).filter(|segment| attachments(segment) == Some(0)) else {
        return;
    };
    match Command::new("ipcrm").args(["-m", segment]).output() {
        Ok(output) if output.status.success() => {}
        Ok(_) | Err(_) => tracing::debug!(segment, "shared memory was not given back"),
    }
}

/// The number of a server's shared memory: its `postmaster.pid` has it in the seventh line.
fn segment(text: &str) -> Option<&str> {
    text.lines().nth(6)?.split_whitespace().nth(1)
}

/// How many processes have the segment; `None` when there is no such segment.
fn attachments(segment: &str) -> Option<u32> {
    let table = fs::read_to_string("/proc/sysvipc/shm").ok()?;
    table.lines().find_map(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let found = columns.next() == Some(segment);
        columns.nth(4).filter(|_| found)?.parse().ok()
    })
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        release_memory(self.0);
    }
}

impl Tools {
    async fn find(home: &Home) -> Result<Self, Error> {
        let found = find::find(&find::POSTGRES, &home.options).await?;
        // The other programs lie beside the real file, not beside a link to it.
        let real = found
            .path
            .canonicalize()
            .map_err(Error::folder(&found.path))?;
        let programs = real.parent().unwrap_or(Path::new("/")).to_owned();
        let user = User::choose(&home.path(""))?;
        Ok(Self {
            found,
            programs,
            user,
        })
    }

    /// Makes a new cluster. It gets its name last, so that one that was cut off in the
    /// middle is never taken for a whole one.
    async fn initialise(&self, home: &Home) -> Result<(), Error> {
        let new = self.empty(home)?;
        let _memory = Memory(&new);
        let password = home.write_private("postgres.password", &home.secrets.postgres)?;
        if let Some(user) = &self.user {
            user.own(&password)?;
        }
        let mut arguments = vec![
            format!("--pgdata={}", new.display()),
            format!("--pwfile={}", password.display()),
            format!("--username={USER}"),
            "--auth=scram-sha-256".to_owned(),
            "--encoding=UTF8".to_owned(),
            "--locale=C.UTF-8".to_owned(),
        ];
        if !home.is_durable() {
            arguments.push("--no-sync".to_owned());
        }
        let made = self.run(home, "initdb", arguments).await;
        fs::remove_file(&password).map_err(Error::folder(&password))?;
        made?;
        let data = home.path(DATA);
        fs::rename(&new, &data).map_err(Error::folder(data))
    }

    /// An empty folder, owned by the one who runs PostgreSQL.
    fn empty(&self, home: &Home) -> Result<PathBuf, Error> {
        let new = home.path("postgres.new");
        match fs::remove_dir_all(&new) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::folder(new)(error)),
        }
        fs::create_dir(&new)
            .and_then(|()| fs::set_permissions(&new, fs::Permissions::from_mode(0o700)))
            .map_err(Error::folder(&new))?;
        if let Some(user) = &self.user {
            user.own(&new)?;
        }
        Ok(new)
    }

    /// Runs a program of PostgreSQL to its end.
    async fn run(
        &self,
        home: &Home,
        program: &'static str,
        arguments: Vec<String>,
    ) -> Result<(), Error> {
        let log = home.path(format!("{program}.log"));
        let written = log::prepare(&log);
        let launch = Launch {
            program: self.programs.join(program),
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            dir: PathBuf::from("/"),
            user: self.user.clone(),
        };
        let mut process = home.spawner.spawn(&launch, &log, None)?;
        match process.ended(MAKE_DEADLINE).await {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(Error::Died {
                server: program,
                status: status.to_string(),
                tail: log::tail(&log, written),
                log,
            }),
            None => Err(Error::NotReady {
                server: program,
                waited: MAKE_DEADLINE,
                why: "it is still running".to_owned(),
                log,
            }),
        }
    }
}

fn plan(home: &Home, tools: &Tools, port: u16) -> Result<Plan, Error> {
    let data = home.path(DATA);
    config::write(home, &data, port)?;
    Ok(Plan {
        name: "PostgreSQL",
        version: tools.found.version.clone(),
        port,
        log: home.path("postgres.log"),
        launch: Launch {
            program: tools.found.path.clone(),
            arguments: vec!["-D".into(), data.clone().into()],
            environment: Vec::new(),
            dir: PathBuf::from("/"),
            user: tools.user.clone(),
        },
        probe: server::Probe::Postgres(Probe {
            password: home.secrets.postgres.clone(),
            data,
        }),
        // SIGINT: end all sessions, write a checkpoint, stop. SIGQUIT: end at once.
        stop: Signal::INT,
        farewell: Some(Signal::QUIT),
    })
}

fn url(password: &str, port: u16, database: &str) -> String {
    let database = quote::percent(database);
    format!("postgres://{USER}:{password}@127.0.0.1:{port}/{database}")
}
