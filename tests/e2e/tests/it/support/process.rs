//! Processes that never outlive the test, and a look at those of others.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tasuki_testkit::eventually_within;

/// How long anything may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A running command, in a process group of its own as a shell would start it. Its output
/// goes to files, so that it never waits for us. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    line: String,
    out: PathBuf,
    err: PathBuf,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The exit code; `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    /// What it wrote to standard output.
    pub(crate) out: String,
    /// What it wrote to standard error.
    pub(crate) err: String,
}

impl Process {
    /// Starts `command`, with its output in `folder`.
    pub(crate) fn start(mut command: Command, folder: &Path) -> Self {
        use std::os::unix::process::CommandExt as _;

        let file = |kind: &str| {
            let name = tempfile::Builder::new().prefix(kind).tempfile_in(folder);
            name.unwrap().into_temp_path().keep().unwrap()
        };
        let (out, err) = (file("stdout-"), file("stderr-"));
        command
            .stdin(Stdio::null())
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&err).unwrap())
            .process_group(0);
        let words = command.get_args().map(|word| word.to_string_lossy());
        // The guard around the executable says nothing about the test.
        let line = words.skip(6).collect::<Vec<_>>().join(" ");
        let child = command.spawn().unwrap();
        Self {
            child,
            line,
            out,
            err,
        }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, what: Signal) {
        signal(self.pid(), what);
    }

    /// Sends a signal to its whole group, as a terminal does on Ctrl-C.
    pub(crate) fn signal_group(&self, what: Signal) {
        kill_process_group(pid(self.pid()), what).unwrap();
    }

    /// What it has written to standard output so far.
    pub(crate) fn stdout(&self) -> String {
        fs::read_to_string(&self.out).unwrap()
    }

    /// What it has written to standard error so far.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(&self.err).unwrap()
    }

    /// Whether it has ended, and how.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits until it ends.
    pub(crate) async fn ended(&mut self) -> Answer {
        let what = format!("`{}` ends", self.line);
        let status = eventually_within(LIMIT, &what, async || self.exited()).await;
        Answer {
            code: status.code(),
            out: self.stdout(),
            err: self.stderr(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exited().is_none() {
            kill_process_group(pid(self.pid()), Signal::KILL).unwrap();
            self.child.wait().unwrap();
        }
        if std::thread::panicking() {
            let (line, out, err) = (&self.line, self.stdout(), self.stderr());
            eprintln!("--- {line}\n--- stdout:\n{out}\n--- stderr:\n{err}");
        }
    }
}

/// Sends a signal to any process.
pub(crate) fn signal(process: u32, what: Signal) {
    kill_process(pid(process), what).unwrap();
}

/// Whether a process exists and is not merely waiting to be reaped.
pub(crate) fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Every process that names `folder` on its command line or works in it, with that line.
pub(crate) fn holders(folder: &Path) -> Vec<(u32, String)> {
    let name = folder.to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap();
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|process: u32| {
            let home = PathBuf::from(format!("/proc/{process}"));
            let line = fs::read(home.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let works_in = fs::read_link(home.join("cwd")).unwrap_or_default();
            let holds = line.contains(name) || works_in.starts_with(folder);
            (holds && is_alive(process)).then_some((process, line))
        })
        .collect()
}

fn pid(process: u32) -> Pid {
    let raw = i32::try_from(process).ok();
    raw.and_then(Pid::from_raw).unwrap()
}
