//! Addresses of servers: checked when they are read, never shown, because they hold passwords.

use std::fmt;
use std::str::FromStr;

use async_nats::ServerAddr;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer};
use sqlx::postgres::PgConnectOptions;

use super::Error;

/// The address of a server, or nothing.
#[derive(Clone)]
pub struct Address(SecretString);

impl Address {
    /// Whether none is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.expose_secret().is_empty()
    }

    /// The address as text, password and all.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// The address as its client wants it. `key` and `variable` name where it is set.
    ///
    /// # Errors
    /// When none is set, or it is not an address of this kind.
    pub fn parse<T: FromStr>(&self, key: &'static str, variable: &'static str) -> Result<T, Error>
    where
        T::Err: fmt::Display,
    {
        if self.is_empty() {
            return Err(Error::Missing { key, variable });
        }
        self.expose()
            .parse()
            .map_err(|error: T::Err| Error::Invalid {
                key: key.to_owned(),
                origin: "the configuration".to_owned(),
                reason: error.to_string(),
            })
    }

    /// Reads the address of a database, or none: for `deserialize_with`.
    ///
    /// # Errors
    /// When it is not an address of PostgreSQL.
    pub fn postgres<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let schemes = ["postgres://", "postgresql://"];
        Self::checked::<PgConnectOptions, D>(from, &schemes)
    }

    pub(super) fn nats<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::checked::<ServerAddr, D>(from, &["nats://", "tls://"])
    }

    pub(super) fn redis<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::checked::<reqwest::Url, D>(from, &["redis://", "rediss://"])
    }

    fn checked<'de, T: FromStr, D: Deserializer<'de>>(
        from: D,
        schemes: &[&str],
    ) -> Result<Self, D::Error>
    where
        T::Err: fmt::Display,
    {
        let text = String::deserialize(from)?;
        let problem = match text.parse::<T>() {
            _ if text.is_empty() => None,
            _ if !schemes.iter().any(|scheme| text.starts_with(scheme)) => {
                Some(format!("it begins with {}", schemes.join(" or ")))
            }
            Ok(_address) => None,
            Err(error) => Some(format!("it is not an address: {error}")),
        };
        match problem {
            Some(problem) => Err(serde::de::Error::custom(problem)),
            None => Ok(Self(text.into())),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() {
            "Address()"
        } else {
            "Address(<hidden>)"
        })
    }
}
