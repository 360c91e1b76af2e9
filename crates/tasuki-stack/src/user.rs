//! Who runs PostgreSQL and PgBouncer. They refuse to run as root, so root lends them an
//! unprivileged user; everybody else runs them as themselves.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::geteuid;

use crate::Error;

/// Capabilities that let a user pass a directory that is closed to it, mildest first.
/// A container often has the second one only.
const KEYS: [&str; 2] = ["dac_read_search", "dac_override"];

/// An unprivileged user to run a program as, when we are root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    name: String,
    uid: u32,
    gid: u32,
    /// The capability that it keeps, because the data is below a closed directory.
    key: Option<&'static str>,
}

impl User {
    /// The user to run such a server as, or `None` to run it as ourselves.
    pub(crate) fn choose(dir: &Path) -> Result<Option<Self>, Error> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        let user = ["postgres", "nobody"]
            .into_iter()
            .find_map(Self::look_up)
            .ok_or(Error::NoUser)?;
        user.reaching(dir).map(Some)
    }

    /// Gives the file or folder to the user.
    pub(crate) fn own(&self, path: &Path) -> Result<(), Error> {
        std::os::unix::fs::lchown(path, Some(self.uid), Some(self.gid)).map_err(Error::folder(path))
    }

    /// The arguments of `setpriv` that become this user.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = vec![
            format!("--reuid={}", self.uid),
            format!("--regid={}", self.gid),
            "--init-groups".to_owned(),
        ];
        if let Some(key) = self.key {
            arguments.push(format!("--inh-caps=+{key}"));
            arguments.push(format!("--ambient-caps=+{key}"));
        }
        arguments.into_iter().map(OsString::from).collect()
    }

    fn look_up(name: &str) -> Option<Self> {
        let number = |flag| {
            let output = Command::new("id").args([flag, name]).output().ok()?;
            String::from_utf8(output.stdout).ok()?.trim().parse().ok()
        };
        Some(Self {
            name: name.to_owned(),
            uid: number("-u")?,
            gid: number("-g")?,
            key: None,
        })
    }

    /// The user with what it needs to get into `dir`: a clone may lie below a home of
    /// mode 0700, where only its owner can go.
    fn reaching(self, dir: &Path) -> Result<Self, Error> {
        let keys = std::iter::once(None).chain(KEYS.into_iter().map(Some));
        for key in keys {
            let user = Self {
                key,
                ..self.clone()
            };
            if user.enters(dir) {
                return Ok(user);
            }
        }
        Err(Error::Unreachable {
            user: self.name,
            dir: PathBuf::from(dir),
        })
    }

    fn enters(&self, dir: &Path) -> bool {
        Command::new("setpriv")
            .args(self.arguments())
            // Not `test -x`: it asks access(2), which leaves capabilities out.
            .args(["--", "sh", "-c", r#"cd "$0""#])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }
}
