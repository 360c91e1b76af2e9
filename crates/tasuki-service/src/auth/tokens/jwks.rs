//! The public halves on the wire: a JSON Web Key Set (RFC 7517, RFC 8037).

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::DecodingKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::KeyRing;
use crate::http::Json;

/// Where a service publishes its keys, on its internal listener.
pub(super) const PATH: &str = "/.well-known/jwks.json";
const PUBLIC_KEY_BYTES: usize = 32;
const MAX_KID: usize = 64;

/// Public keys by their id.
pub(super) type PublicKeys = HashMap<String, Arc<DecodingKey>>;

#[derive(Serialize, Deserialize)]
struct Jwk {
    kty: String,
    crv: String,
    kid: String,
    x: String,
    alg: String,
    #[serde(rename = "use")]
    used_for: String,
}

#[derive(Serialize)]
struct Published {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Fetched {
    /// Keys of other kinds are allowed to be there, and skipped.
    keys: Vec<Value>,
}

/// Publishes the public keys of `ring` at `GET /.well-known/jwks.json`, for the internal
/// listener.
pub fn jwks_routes(ring: KeyRing) -> Router {
    Router::new().route(PATH, get(async move || Json(published(&ring))))
}

/// The keys in the body of an answer. Only Ed25519 keys for signatures count.
pub(super) fn parse(body: &[u8]) -> Result<PublicKeys, serde_json::Error> {
    let fetched: Fetched = serde_json::from_slice(body)?;
    let keys = fetched.keys.into_iter().filter_map(|value| {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        let ours = (&*jwk.kty, &*jwk.crv, &*jwk.alg, &*jwk.used_for);
        let public = URL_SAFE_NO_PAD.decode(&jwk.x).ok()?;
        let fits = ours == ("OKP", "Ed25519", "EdDSA", "sig")
            && public.len() == PUBLIC_KEY_BYTES
            && jwk.kid.len() <= MAX_KID;
        fits.then(|| (jwk.kid, Arc::new(DecodingKey::from_ed_der(&public))))
    });
    Ok(keys.collect())
}

fn published(ring: &KeyRing) -> Published {
    let keys = ring.keys();
    let jwk = |key: &Arc<super::ring::Key>| Jwk {
        kty: "OKP".to_owned(),
        crv: "Ed25519".to_owned(),
        kid: key.kid.to_string(),
        x: URL_SAFE_NO_PAD.encode(&key.public),
        alg: "EdDSA".to_owned(),
        used_for: "sig".to_owned(),
    };
    Published {
        keys: keys.iter().map(jwk).collect(),
    }
}

#[cfg(test)]
mod tests {
    use tasuki::Clock;

    use super::*;

    #[test]
    fn a_ring_publishes_its_public_keys_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let ring = KeyRing::open_or_create(home.path(), "shop", &Clock::system()).unwrap();
        ring.rotate().unwrap();
        let body = serde_json::to_value(published(&ring)).unwrap();
        for (key, kid) in body["keys"].as_array().unwrap().iter().zip(ring.kids()) {
            let mut fields: Vec<_> = key.as_object().unwrap().keys().collect();
            fields.sort();
            assert_eq!(fields, ["alg", "crv", "kid", "kty", "use", "x"]);
            assert_eq!(key["kid"], kid);
        }
        assert_eq!(parse(body.to_string().as_bytes()).unwrap().len(), 2);
    }

    #[test]
    fn keys_of_other_kinds_are_skipped() {
        let x = "A".repeat(43);
        let body = serde_json::json!({"keys": [
            {"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": x, "alg": "EdDSA", "use": "sig"},
            {"kty": "OKP", "crv": "Ed25519", "kid": "b", "x": x, "alg": "EdDSA", "use": "enc"},
            {"kty": "OKP", "crv": "X25519", "kid": "c", "x": x, "alg": "EdDSA", "use": "sig"},
            {"kty": "OKP", "crv": "Ed25519", "kid": "d", "x": "AA", "alg": "EdDSA", "use": "sig"},
            {"kty": "oct", "kid": "e", "k": x},
            7,
        ]});
        let keys = parse(body.to_string().as_bytes()).unwrap();
        assert_eq!(keys.keys().collect::<Vec<_>>(), ["a"]);
        assert!(parse(b"{}").is_err() && parse(b"<html>").is_err());
    }
}
