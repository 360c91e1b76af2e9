//! Schnorr signatures (BIP-340).

use secp256k1::{XOnlyPublicKey, schnorr};

use super::{Id, Key};

/// Whether `author` has signed `id`.
pub(super) fn is_signed(id: &Id, author: &Key, sig: &[u8; 64]) -> bool {
    let Ok(author) = XOnlyPublicKey::from_byte_array(author.0) else {
        return false;
    };
    let sig = schnorr::Signature::from_byte_array(*sig);
    schnorr::verify(&sig, &id.0, &author).is_ok()
}

/// Somebody who signs.
#[cfg(test)]
pub(crate) struct Signer(secp256k1::Keypair);

#[cfg(test)]
impl Signer {
    /// A new key.
    pub(crate) fn random() -> Self {
        let mut secret = [0; 32];
        aws_lc_rs::rand::fill(&mut secret).unwrap();
        let secret = secp256k1::SecretKey::from_secret_bytes(secret).unwrap();
        Self(secp256k1::Keypair::from_secret_key(&secret))
    }

    pub(crate) fn key(&self) -> Key {
        Key(self.0.x_only_public_key().0.to_byte_array())
    }

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
    ) -> super::Event {
        super::Event::signed(self, created_at, kind, tags, content)
    }
}
