//! API keys and operator tokens: made, listed, revoked and checked.
//!
//! They live in the table `credentials` of the service that accepts them. Of the secret only
//! its SHA-256 is kept: 32 random bytes can't be guessed from it, so no slow hash is needed.
//! The database's clock decides whether one has expired.
//!
//! A check costs one lookup by primary key and is then believed for a short while
//! (`auth.credential-cache`), which is how long a revoked one may still work. Neither the
//! cache nor the table ever holds a secret.
//!
//! Not here: what a caller may do once it is known ([`crate::auth`]).

mod check;
mod rules;
mod store;
mod text;

use sqlx::PgConnection;
use tasuki::{Clock, Schema};
use tasuki_contract::ids::CredentialId;
use time::OffsetDateTime;

pub(super) use check::Checker;
pub(super) use rules::is_word;
pub use rules::{Invalid, NewCredential, ScopeName};
use store::Statements;
pub use text::{Credential, Kind, Malformed, UnknownKind};

/// A credential as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Its public part.
    pub id: CredentialId,
    /// What it is for.
    pub kind: Kind,
    /// What a person called it.
    pub name: String,
    /// What an API key may do; empty for operators.
    pub scopes: Vec<String>,
    /// Whether it works, by the database's clock.
    pub state: State,
    /// When it was stored.
    pub created_at: OffsetDateTime,
    /// When it ends; `None`: never.
    pub expires_at: Option<OffsetDateTime>,
    /// When it was revoked.
    pub revoked_at: Option<OffsetDateTime>,
}

/// Whether a credential works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It works.
    Active,
    /// Its time is over.
    Expired,
    /// Somebody took it back.
    Revoked,
}

/// Why a credential could not be made, stored or revoked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is none with this id.
    #[error("there is no credential {0}")]
    Unknown(CredentialId),
    /// The id of an imported credential belongs to one with another secret or kind.
    #[error("another credential has the id {0} already")]
    Taken(CredentialId),
    /// An imported credential's text says another kind than its description.
    #[error("the credential is of the kind {found}, not {wanted}")]
    OtherKind {
        /// What its prefix says.
        found: Kind,
        /// What was asked for.
        wanted: Kind,
    },
    /// The system gave no random bytes.
    #[error("the system has no randomness to make a secret from")]
    NoRandomness,
    /// The database refused or was away.
    #[error("the credential store failed")]
    Store(#[from] sqlx::Error),
}

/// The credentials that one service accepts. Made once; its statements name the schema.
#[derive(Clone, Debug)]
pub struct Credentials(Statements);

impl Credentials {
    /// Those in `schema`.
    #[must_use]
    pub fn new(schema: &Schema) -> Self {
        Self(Statements::new(schema))
    }

    /// Makes a credential. This is the only time that its secret is known.
    ///
    /// # Errors
    /// When the database fails, or the system has no randomness.
    pub async fn create(
        &self,
        tx: &mut PgConnection,
        clock: &Clock,
        wanted: &NewCredential,
    ) -> Result<Credential, Error> {
        let credential = Credential::generate(wanted.kind(), clock)?;
        self.0.insert(tx, &credential, wanted).await?;
        Ok(credential)
    }

    /// Stores a credential whose text is known already, so that development keys survive a
    /// wiped database. Doing it again changes nothing but name and scopes; one that was
    /// revoked stays revoked.
    ///
    /// # Errors
    /// When its id is taken by a different credential, the kind differs from its prefix, or
    /// the database fails.
    pub async fn import(
        &self,
        tx: &mut PgConnection,
        credential: &Credential,
        wanted: &NewCredential,
    ) -> Result<Record, Error> {
        if credential.kind() != wanted.kind() {
            return Err(Error::OtherKind {
                found: credential.kind(),
                wanted: wanted.kind(),
            });
        }
        let stored = self.0.import(tx, credential, wanted).await?;
        stored.ok_or(Error::Taken(credential.id()))
    }

    /// All of them, oldest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn list(&self, db: &mut PgConnection) -> Result<Vec<Record>, Error> {
        Ok(self.0.list(db).await?)
    }

    /// Takes a credential back, for good. Doing it again changes nothing.
    ///
    /// # Errors
    /// When there is none with this id, or the database fails.
    pub async fn revoke(&self, tx: &mut PgConnection, id: CredentialId) -> Result<Record, Error> {
        let revoked = self.0.revoke(tx, id).await?;
        revoked.ok_or(Error::Unknown(id))
    }

    /// Every statement as it is sent, for a test that prepares them all.
    pub fn statements(&self) -> impl Iterator<Item = &str> {
        self.0.all()
    }
}
