//! Ends the backends of a PostgreSQL whose owner was killed.
//!
//! The kernel kills the main process with us, but its backends have another parent. They
//! leave when they notice, and one that is busy with a long query does not look. So a
//! small shell waits at the other end of a pipe: if the pipe closes without a farewell,
//! we are gone, and it kills what still carries our mark.
//!
//! The mark has our process id in it: a stack that is started on the same folder a
//! moment later has another one and is left alone.

use std::{
    io::Write as _,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
};

use crate::Error;

/// A title may be set a moment after the fork, so the last look is a second later.
const SCRIPT: &str = r#"
read -r farewell && exit 0
for pause in 0 0.2 0.8; do
    sleep "$pause"
    for process in /proc/[0-9]*; do
        if grep -qs "^postgres: $1: " "$process/cmdline"; then kill -9 "${process#/proc/}"; fi
    done
done
"#;

/// The shell, as long as it is not needed.
#[derive(Debug)]
pub(crate) struct Warden {
    shell: Child,
}

impl Warden {
    /// Starts to wait for our end. `mark` is the name of the cluster in the titles of its processes.
    pub(crate) fn start(mark: &str) -> Result<Self, Error> {
        Command::new("sh")
            .args(["-c", SCRIPT, "tasuki-warden", mark])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map(|shell| Self { shell })
            .map_err(|source| Error::Spawn {
                program: "sh".to_owned(),
                source,
            })
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        let farewell = self
            .shell
            .stdin
            .take()
            .map(|mut pipe| pipe.write_all(b"farewell\n"));
        if let Some(Err(error)) = farewell {
            tracing::debug!(%error, "the warden had already gone");
        }
        if let Err(error) = self.shell.wait() {
            tracing::debug!(%error, "the warden was not reaped");
        }
    }
}
