//! The configuration files of a PostgreSQL server. They are written anew at every
//! start, so what is in them is what this file says.

use std::{fs, path::Path};

use crate::{Error, home::Home, quote};

/// Writes `postgresql.conf` and `pg_hba.conf` into the data folder.
pub(super) fn write(home: &Home, data: &Path, port: u16) -> Result<(), Error> {
    put(&data.join("postgresql.conf"), &settings(home, port))?;
    put(&data.join("pg_hba.conf"), access(home))
}

fn settings(home: &Home, port: u16) -> String {
    // Full pages are most of what a busy server logs: compressed, and for fewer checkpoints, they
    // cost a fraction. Segments of the log are used again instead of being filled with zeros under
    // load, and pages are written before a statement needs their place.
    let durability = if home.is_durable() {
        "fsync = on\nsynchronous_commit = on\nfull_page_writes = on\nmax_connections = 200\n\
         wal_compression = lz4\nmax_wal_size = '4GB'\nmin_wal_size = '1GB'\n\
         bgwriter_delay = '50ms'\nbgwriter_lru_maxpages = 1000\nbgwriter_lru_multiplier = 4.0\n"
    } else {
        "fsync = off\nsynchronous_commit = off\nfull_page_writes = off\nmax_connections = 400\n"
    };
    // The cluster's name is in the title of every process, so that what a killed owner
    // left behind can be found.
    format!(
        "listen_addresses = '127.0.0.1'\n\
         port = {port}\n\
         unix_socket_directories = ''\n\
         cluster_name = {name}\n\
         {durability}\
         max_prepared_transactions = 64\n\
         wal_level = logical\n\
         password_encryption = 'scram-sha-256'\n\
         timezone = 'UTC'\n\
         log_timezone = 'UTC'\n\
         log_line_prefix = '%m [%p] %d '\n\
         datestyle = 'iso, ymd'\n\
         lc_messages = 'C.UTF-8'\n",
        name = quote::setting(&home.mark()),
    )
}

fn access(home: &Home) -> &'static str {
    if home.is_durable() {
        "host all all 127.0.0.1/32 scram-sha-256\nhost replication all 127.0.0.1/32 scram-sha-256\n"
    } else {
        "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n"
    }
}

/// Replaces the content and keeps owner and mode, which `initdb` has set.
fn put(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::folder(path))
}
