//! The configuration file of a NATS server.

use std::{fmt::Write as _, path::Path};

use crate::{home::Home, quote};

/// One server, alone or in a cluster.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Its name in stream and cluster information.
    pub(super) name: String,
    /// The stem of its files in the data folder.
    pub(super) file: String,
    pub(super) port: u16,
    pub(super) cluster: Option<Routes>,
}

/// Where a node listens for the others, and where they listen.
#[derive(Clone, Debug)]
pub(super) struct Routes {
    pub(super) port: u16,
    pub(super) others: Vec<u16>,
}

impl Node {
    /// The only server of a stack.
    pub(super) fn single(name: &str, port: u16) -> Self {
        Self {
            name: name.to_owned(),
            file: "nats".to_owned(),
            port,
            cluster: None,
        }
    }
}

/// The text of the file.
pub(super) fn text(home: &Home, node: &Node, data: &Path) -> String {
    let secrets = &home.secrets;
    let sync = if home.is_durable() {
        "sync_interval: always"
    } else {
        ""
    };
    let mut text = format!(
        r#"server_name: "{name}"
listen: "127.0.0.1:{port}"
jetstream {{
  store_dir: {data}
  {sync}
}}
accounts {{
  TASUKI {{ jetstream: enabled, users: [ {{ user: tasuki, password: "{password}" }} ] }}
  SYSTEM {{ users: [ {{ user: system, password: "{system}" }} ] }}
}}
system_account: SYSTEM
"#,
        name = node.name,
        port = node.port,
        data = quote::path(data),
        password = secrets.nats,
        system = secrets.nats_system,
    );
    if !home.is_durable() {
        text.push_str("no_auth_user: tasuki\n");
    }
    if let Some(routes) = &node.cluster {
        routes.append(&mut text, home.name(), &secrets.nats_system);
    }
    text
}

impl Routes {
    fn append(&self, text: &mut String, cluster: &str, password: &str) {
        let others: Vec<_> = self
            .others
            .iter()
            .map(|port| format!("\"nats://route:{password}@127.0.0.1:{port}\""))
            .collect();
        let written = write!(
            text,
            r#"cluster {{
  name: "{cluster}"
  listen: "127.0.0.1:{port}"
  authorization {{ user: route, password: "{password}" }}
  routes: [ {routes} ]
}}
"#,
            port = self.port,
            routes = others.join(", "),
        );
        debug_assert!(written.is_ok(), "writing to a string does not fail");
    }
}
