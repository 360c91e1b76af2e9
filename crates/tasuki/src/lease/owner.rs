//! Who claims: a name for people to read. It decides nothing, the claim's token does.

use std::fmt;
use std::sync::Arc;

/// The host's name and what makes this process unique on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner(Arc<str>);

impl Owner {
    /// This process on the host `name`: in a cluster, what the orchestrator calls it.
    #[must_use]
    pub fn on(name: &str) -> Self {
        let printable: String = name.chars().filter(|c| !c.is_control()).take(128).collect();
        let process = std::process::id();
        Self(format!("{printable}/{process}-{:04x}", fastrand::u16(..)).into())
    }

    /// This process on the host that it runs on.
    #[must_use]
    pub fn here() -> Self {
        let system = rustix::system::uname();
        Self::on(system.nodename().to_str().unwrap_or("unknown"))
    }

    /// The name as it is stored in `locked_by`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_names_its_host_and_nobody_else() {
        let owner = Owner::on("pod-7\0\n");
        assert!(owner.as_str().starts_with("pod-7/"));
        assert!(Owner::here().as_str().contains('/'));
    }
}
