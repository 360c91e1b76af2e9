//! Service tokens: how one service proves to another who calls, for which user, in which
//! roles.
//!
//! A token is a JWT signed with Ed25519 that lives for at most 60 seconds and is meant for one
//! service. The caller signs with the newest key of its [`KeyRing`] ([`Signer`]) and publishes
//! the public halves on its internal listener ([`jwks_routes`]); the callee fetches them from
//! the addresses in `auth.issuers`. No secret is shared between services.
//!
//! Rotation needs no pause: a new key is published before it signs, an old one stays published
//! until it is pruned, and a callee that meets an unknown key looks again at once.
//!
//! Not promised: a token may be used more than once within its life. `jti` is there for who
//! wants to know; what must happen once has an idempotency key.

mod claims;
mod files;
mod issuer;
mod issuers;
mod jwks;
mod ring;
mod signer;
mod verify;

#[cfg(test)]
mod attacks;

use std::io;
use std::path::PathBuf;

pub(super) use issuers::Issuers;
pub use jwks::jwks_routes;
pub use ring::KeyRing;
pub use signer::Signer;
pub(super) use verify::Verifier;

/// Why keys or tokens can't be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing to sign with.
    #[error("there is no key to sign service tokens with in {}", folder.display())]
    NoKey {
        /// Where one was expected.
        folder: PathBuf,
    },
    /// Not a name that could be a folder and an issuer.
    #[error("`{0}` is not a service's name: use lower-case letters, digits and -")]
    BadService(String),
    /// A file or folder of keys could not be used.
    #[error("the signing keys can't be used: {}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file that is not a key.
    #[error("{} is not an Ed25519 key in PKCS#8 PEM named <uuid>.pem", .0.display())]
    BadKey(PathBuf),
    /// A key that everybody on the machine can read.
    #[error("{} is readable by everyone: chmod 600 it", .0.display())]
    Exposed(PathBuf),
    /// The system gave no random bytes, or signing failed.
    #[error("the cryptographic library failed")]
    Crypto,
    /// What a token can't carry.
    #[error("a token's user has 1 to 128 characters, its roles are lower-case words, at most 32")]
    BadSubject,
    /// An address in `auth.issuers` that is not one.
    #[error("auth.issuers.{issuer} is not an address: write http://host:port")]
    BadIssuer {
        /// Whose.
        issuer: String,
    },
    /// The client that fetches keys could not be made.
    #[error("the HTTP client for auth.issuers could not be made")]
    Client(#[source] reqwest::Error),
}

impl Error {
    fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
