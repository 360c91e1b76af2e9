//! Schnorr signatures (BIP-340).

use std::fmt;

use secp256k1::{Keypair, SecretKey, XOnlyPublicKey, schnorr};

use super::hex::{decode, encode};
use super::{Event, Id, Key};

/// Whether `author` has signed `id`.
pub(super) fn is_signed(id: &Id, author: &Key, sig: &[u8; 64]) -> bool {
    let Ok(author) = XOnlyPublicKey::from_byte_array(author.0) else {
        return false;
    };
    let sig = schnorr::Signature::from_byte_array(*sig);
    schnorr::verify(&sig, &id.0, &author).is_ok()
}

/// Somebody who signs: the node itself, and authors in tests.
pub(crate) struct Signer(Keypair);

impl Signer {
    /// Reads a secret key, 64 digits of lower-case hexadecimal; nothing for what is none.
    pub(crate) fn parse(secret: &str) -> Option<Self> {
        Self::of(decode(secret)?)
    }

    /// A new key and its secret; nothing if the machine has no random numbers.
    pub(crate) fn generate() -> Option<(Self, String)> {
        let mut secret = [0; 32];
        // All but one in 2^128 such numbers are keys.
        aws_lc_rs::rand::fill(&mut secret).ok()?;
        Some((Self::of(secret)?, encode(&secret)))
    }

    /// A new key.
    #[cfg(test)]
    pub(crate) fn random() -> Self {
        Self::generate().unwrap().0
    }

    fn of(secret: [u8; 32]) -> Option<Self> {
        let secret = SecretKey::from_secret_bytes(secret).ok()?;
        Some(Self(Keypair::from_secret_key(&secret)))
    }

    pub(crate) fn key(&self) -> Key {
        Key(self.0.x_only_public_key().0.to_byte_array())
    }

    /// The same words always get the same signature: an event that is made again is the same event.
    pub(super) fn sign(&self, id: &Id) -> [u8; 64] {
        schnorr::sign_no_aux_rand(&id.0, &self.0).to_byte_array()
    }

    /// An event.
    pub(crate) fn event(
        &self,
        created_at: i64,
        kind: u16,
        tags: Vec<Vec<String>>,
        content: String,
    ) -> Event {
        Event::signed(self, created_at, kind, tags, content)
    }
}

/// Never its secret.
impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Signer").field(&self.key()).finish()
    }
}
