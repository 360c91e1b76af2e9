//! Signatures by Standard Webhooks (<https://www.standardwebhooks.com>), so that receivers check
//! ours with a library they already have.
//!
//! What is signed is `{id}.{timestamp}.{body}`, by HMAC-SHA256. The receiver knows from it that
//! the delivery is ours and whole, and from the timestamp that nobody replays an old one. While
//! a secret is being replaced the old and the new one both sign, and either is enough: a
//! rotation breaks no receiver.
//!
//! Invariant: the text of a secret leaves only through [`Secret::expose`].

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use aws_lc_rs::hmac::{Context, HMAC_SHA256, Key};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretString};
use time::OffsetDateTime;

const PREFIX: &str = "whsec_";
/// Bytes of a secret that we make.
const NEW_BYTES: usize = 32;
/// Bytes of a secret that we take, by the specification.
const BYTES: RangeInclusive<usize> = 24..=64;

/// Something that is not the text of a secret. It does not repeat the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a webhook secret: expected whsec_ and 24 to 64 bytes as base64")]
pub(crate) struct Malformed;

/// The system gave no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system has no randomness for a webhook secret: try again")]
pub(crate) struct NoRandomness;

/// What we and one endpoint share: `whsec_` and 24 to 64 bytes as base64. `Debug` hides it.
#[derive(Clone)]
pub(crate) struct Secret {
    text: SecretString,
    key: Key,
}

impl Secret {
    /// A new one, from the system's randomness.
    pub(crate) fn generate() -> Result<Self, NoRandomness> {
        let mut bytes = [0; NEW_BYTES];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_unspecified| NoRandomness)?;
        Ok(Self::of(&bytes))
    }

    fn of(bytes: &[u8]) -> Self {
        Self {
            text: format!("{PREFIX}{}", STANDARD.encode(bytes)).into(),
            key: Key::new(HMAC_SHA256, bytes),
        }
    }

    /// The text that the receiver puts into its library.
    pub(crate) fn expose(&self) -> &str {
        self.text.expose_secret()
    }

    fn sign(&self, id: &str, timestamp: &str, body: &[u8]) -> String {
        let mut context = Context::with_key(&self.key);
        context.update(id.as_bytes());
        context.update(b".");
        context.update(timestamp.as_bytes());
        context.update(b".");
        context.update(body);
        format!("v1,{}", STANDARD.encode(context.sign()))
    }
}

impl FromStr for Secret {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let encoded = text.strip_prefix(PREFIX).ok_or(Malformed)?;
        // Refuses other alphabets, missing padding and stray bits at the end too: a secret has
        // exactly one text.
        match STANDARD.decode(encoded) {
            Ok(bytes) if BYTES.contains(&bytes.len()) => Ok(Self::of(&bytes)),
            Ok(_) | Err(_) => Err(Malformed),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

/// The headers that tell a receiver whose message this is: name and value. Each secret signs, in
/// the order given.
///
/// The id is the same in every attempt, as the receiver finds repeats by it. It holds no `.`, or
/// two messages could have the same signature.
pub(crate) fn headers(
    secrets: &[Secret],
    id: &str,
    timestamp: OffsetDateTime,
    body: &[u8],
) -> [(&'static str, String); 3] {
    let timestamp = timestamp.unix_timestamp().to_string();
    let signatures: Vec<String> = secrets
        .iter()
        .map(|secret| secret.sign(id, &timestamp, body))
        .collect();
    [
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", timestamp),
        ("webhook-signature", signatures.join(" ")),
    ]
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    // The example of the specification.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const AT: OffsetDateTime = datetime!(2021-02-25 15:02:10 UTC);
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn a_secret(text: &str) -> Secret {
        text.parse().unwrap()
    }

    fn signature(secrets: &[Secret], id: &str, body: &[u8]) -> String {
        let [_, _, (_, signature)] = headers(secrets, id, AT, body);
        signature
    }

    #[test]
    fn the_example_of_the_specification_comes_out() {
        let expected = [
            ("webhook-id", ID.to_owned()),
            ("webhook-timestamp", "1614265330".to_owned()),
            ("webhook-signature", SIGNATURE.to_owned()),
        ];
        assert_eq!(headers(&[a_secret(SECRET)], ID, AT, BODY), expected);
    }

    #[test]
    fn the_old_and_the_new_secret_both_sign_in_a_rotation() {
        let new = Secret::generate().unwrap();
        let alone = signature(std::slice::from_ref(&new), ID, BODY);
        let both = signature(&[new, a_secret(SECRET)], ID, BODY);
        assert_eq!(both, format!("{alone} {SIGNATURE}"));
    }

    #[test]
    fn another_message_has_another_signature() {
        let secrets = [a_secret(SECRET)];
        assert_ne!(signature(&secrets, "msg_2", BODY), SIGNATURE);
        assert_ne!(signature(&secrets, ID, b"{}"), SIGNATURE);
    }

    #[test]
    fn a_new_secret_can_be_read_back_and_is_like_no_other() {
        let made = Secret::generate().unwrap();
        let read = a_secret(made.expose());
        assert_eq!(read.expose(), made.expose());
        assert_eq!(
            signature(&[read], ID, BODY),
            signature(std::slice::from_ref(&made), ID, BODY)
        );
        assert_ne!(made.expose(), Secret::generate().unwrap().expose());
    }

    #[test]
    fn whatever_is_not_the_one_text_of_a_secret_is_malformed() {
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7_u8; bytes]));
        for good in [24, 25, 32, 64] {
            assert!(of(good).parse::<Secret>().is_ok(), "{good}");
        }
        for bad in [
            String::new(),
            "whsec_".to_owned(),
            of(23),
            of(65),
            of(24).replace("whsec_", ""),
            of(24).replace("whsec_", "WHSEC_"),
            format!(" {}", of(24)),
            format!("{}\n", of(24)),
            of(25).replace('=', ""),
            format!("whsec_{}-", "A".repeat(31)),
            format!("whsec_{}B=", "A".repeat(42)), // stray bits
        ] {
            assert_eq!(bad.parse::<Secret>().unwrap_err(), Malformed, "{bad}");
        }
    }

    #[test]
    fn debug_output_holds_nothing_of_the_secret() {
        let shown = format!("{0:?} {0:#?}", a_secret(SECRET));
        assert!(
            !shown.contains("MfKQ") && !shown.contains("whsec"),
            "{shown}"
        );
    }
}
