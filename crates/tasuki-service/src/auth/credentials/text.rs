//! The text of a credential: `tsk_<id>_<secret>` for an API key, `tso_<id>_<secret>` for an
//! operator.
//!
//! The id is a UUID as 32 lower-case hex digits, the secret 32 random bytes as base64url
//! without padding, in which `_` may occur: the first `_` after the prefix ends the id. A
//! credential has exactly one text, so whatever differs from it is malformed and is refused
//! without asking the database.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretString};
use tasuki::Clock;
use tasuki_contract::ids::CredentialId;
use uuid::Uuid;

use super::Error;

const SECRET_BYTES: usize = 32;
/// Hex digits of an id.
const ID_DIGITS: usize = 32;
/// Prefix, id, `_`, secret.
const LENGTH: usize = 4 + ID_DIGITS + 1 + 43;

/// A SHA-256 hash.
pub(super) type Hash = [u8; 32];

/// What a credential is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A machine outside of the platform; it may do what its scopes say.
    ApiKey,
    /// A person who runs the platform; nothing is closed to one.
    Operator,
}

impl Kind {
    /// How the database, the command line and log lines call it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ApiKey => "api-key",
            Self::Operator => "operator",
        }
    }

    const fn prefix(self) -> &'static str {
        match self {
            Self::ApiKey => "tsk_",
            Self::Operator => "tso_",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        [Self::ApiKey, Self::Operator]
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or(UnknownKind)
    }
}

/// A kind of credential that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a kind of credential: use api-key or operator")]
pub struct UnknownKind;

/// Something that is not the text of a credential. It does not repeat the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a credential: expected tsk_ or tso_, 32 hex digits, _ and 43 characters of base64url")]
pub struct Malformed;

/// A whole credential, secret included: shown once, when it is made. `Debug` hides it.
#[derive(Clone)]
pub struct Credential {
    kind: Kind,
    id: CredentialId,
    text: SecretString,
    secret_hash: Hash,
}

impl Credential {
    /// A new one, from the system's randomness.
    pub(super) fn generate(kind: Kind, clock: &Clock) -> Result<Self, Error> {
        let mut secret = [0; SECRET_BYTES];
        SystemRandom::new()
            .fill(&mut secret)
            .map_err(|_unspecified| Error::NoRandomness)?;
        let id = CredentialId::new(clock);
        let text = format!(
            "{}{}_{}",
            kind.prefix(),
            id.as_uuid().simple(),
            URL_SAFE_NO_PAD.encode(secret)
        );
        Ok(Self {
            kind,
            id,
            text: text.into(),
            secret_hash: sha256(&secret),
        })
    }

    /// Whether `text` claims to be a credential of this shape.
    pub(in crate::auth) fn is_meant(text: &str) -> bool {
        text.starts_with(Kind::ApiKey.prefix()) || text.starts_with(Kind::Operator.prefix())
    }

    /// What it is for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its public part.
    #[must_use]
    pub fn id(&self) -> CredentialId {
        self.id
    }

    /// The text that a caller sends after `Authorization: Bearer`.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.text.expose_secret()
    }

    /// What the database keeps instead of the secret.
    pub(super) fn secret_hash(&self) -> &Hash {
        &self.secret_hash
    }

    /// What the cache keeps instead of the whole text.
    pub(super) fn text_hash(&self) -> Hash {
        sha256(self.expose().as_bytes())
    }
}

impl FromStr for Credential {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let (kind, rest) = [Kind::ApiKey, Kind::Operator]
            .into_iter()
            .find_map(|kind| Some((kind, text.strip_prefix(kind.prefix())?)))
            .ok_or(Malformed)?;
        let (id, secret) = rest.split_once('_').ok_or(Malformed)?;
        if text.len() != LENGTH {
            return Err(Malformed);
        }
        let canonical = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if id.len() != ID_DIGITS || !id.bytes().all(canonical) {
            return Err(Malformed);
        }
        let id = Uuid::try_parse(id).map_err(|_not_hex| Malformed)?;
        // Refuses padding, other alphabets and stray bits at the end too.
        let bytes = match URL_SAFE_NO_PAD.decode(secret) {
            Ok(bytes) if bytes.len() == SECRET_BYTES => bytes,
            Ok(_) | Err(_) => return Err(Malformed),
        };
        Ok(Self {
            kind,
            id: id.into(),
            text: text.into(),
            secret_hash: sha256(&bytes),
        })
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("kind", &self.kind)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

fn sha256(bytes: &[u8]) -> Hash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_credential(kind: Kind) -> Credential {
        Credential::generate(kind, &Clock::system()).unwrap()
    }

    #[test]
    fn a_credential_survives_being_written_and_read_even_with_underscores_in_its_secret() {
        let mut underscores = 0;
        for _ in 0..200 {
            let made = a_credential(Kind::Operator);
            let read: Credential = made.expose().parse().unwrap();
            assert_eq!((read.kind(), read.id()), (made.kind(), made.id()));
            assert_eq!(read.secret_hash(), made.secret_hash());
            assert_eq!(made.expose().len(), 80);
            underscores += made.expose().matches('_').count() - 2;
        }
        assert!(underscores > 0);
    }

    #[test]
    fn the_prefix_says_the_kind() {
        assert!(a_credential(Kind::ApiKey).expose().starts_with("tsk_"));
        assert!(a_credential(Kind::Operator).expose().starts_with("tso_"));
    }

    #[test]
    fn whatever_is_not_the_one_text_of_a_credential_is_malformed() {
        let id = "0199a0b1c2d37e4f8a9b0c1d2e3f4a5b";
        let secret = "A".repeat(43);
        let good = format!("tsk_{id}_{secret}");
        assert!(good.parse::<Credential>().is_ok());
        for bad in [
            String::new(),
            "tsk_".to_owned(),
            format!("tsx_{id}_{secret}"),
            format!("TSK_{id}_{secret}"),
            format!(" {good}"),
            format!("{good} "),
            format!("{good}="),
            format!("{good}A"),
            format!("tsk_{id}_{}", "A".repeat(42)),
            format!("tsk_{id}_{}B", "A".repeat(42)), // stray bits
            format!("tsk_{id}_{}+", "A".repeat(42)),
            format!("tsk_{}_{secret}", id.to_uppercase()),
            format!("tsk_{}_{secret}", &id[1..]),
            format!("tsk_0199a0b1-c2d3-7e4f-8a9b-0c1d2e3f4a5b_{secret}"),
            format!("tsk_{id}{secret}"),
            format!("tsk__{secret}"),
            format!("tsk_{id}_{}é", "A".repeat(41)),
        ] {
            assert_eq!(bad.parse::<Credential>().unwrap_err(), Malformed, "{bad}");
        }
    }

    #[test]
    fn debug_output_holds_nothing_of_the_secret() {
        let made = a_credential(Kind::ApiKey);
        let secret = &made.expose()[37..];
        let shown = format!("{made:?} {made:#?}");
        assert!(
            !shown.contains(secret) && !shown.contains("hash"),
            "{shown}"
        );
    }
}
