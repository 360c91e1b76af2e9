//! Who asks for what under which key, and the number of the key's lock.

use aws_lc_rs::digest::{Context, SHA256};

use super::{Error, RequestHash};

/// The longest key.
const MAX_KEY: usize = 255;
/// The longest name of a caller, in bytes; it is part of an index.
const MAX_CALLER: usize = 512;

/// A request that is to be done once: a key, the caller whose key it is, and the hash that
/// tells it from another request under the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    caller: String,
    key: String,
    hash: RequestHash,
}

/// The number of a PostgreSQL advisory lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockNumber(i64);

impl Request {
    /// Checks caller and key.
    ///
    /// # Errors
    /// When either can't be what it says.
    pub fn new(
        caller: impl Into<String>,
        key: impl Into<String>,
        hash: RequestHash,
    ) -> Result<Self, Error> {
        let (caller, key) = (caller.into(), key.into());
        let visible = key.bytes().all(|byte| byte.is_ascii_graphic());
        if key.is_empty() || key.len() > MAX_KEY || !visible {
            return Err(Error::InvalidKey);
        }
        let control = caller.chars().any(char::is_control);
        if caller.is_empty() || caller.len() > MAX_CALLER || control {
            return Err(Error::InvalidCaller);
        }
        Ok(Self { caller, key, hash })
    }

    /// Whose key it is.
    #[must_use]
    pub fn caller(&self) -> &str {
        &self.caller
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What is asked for.
    #[must_use]
    pub fn hash(&self) -> RequestHash {
        self.hash
    }
}

impl LockNumber {
    /// The number of whatever `parts` name: the first eight bytes of their SHA-256, big
    /// endian. Begin with the name of your service: all locks of a database share one space.
    #[must_use]
    pub fn of(parts: &[&str]) -> Self {
        let mut digest = Context::new(&SHA256);
        for part in parts {
            // ("a", "bc") is not ("ab", "c").
            frame(&mut digest, part.as_bytes());
        }
        let digest = digest.finish();
        let (first, _) = digest.as_ref().split_at(8);
        Self(
            first
                .iter()
                .fold(0, |number, byte| number << 8 | i64::from(*byte)),
        )
    }

    /// A number from elsewhere.
    #[must_use]
    pub const fn from_raw(number: i64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

/// Adds `part` with its length in front, in eight bytes on every machine: whatever the parts
/// are, no two lists of them read the same.
pub(super) fn frame(digest: &mut Context, part: &[u8]) {
    let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
    digest.update(&length.to_be_bytes());
    digest.update(part);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(caller: &str, key: &str) -> Result<Request, Error> {
        Request::new(caller, key, RequestHash::of("POST", "/", b""))
    }

    #[test]
    fn a_key_is_visible_ascii_of_bounded_length() {
        for key in ["a", "!~", "order-17:grant", &"k".repeat(255)] {
            assert!(request("shop", key).is_ok(), "{key}");
        }
        for key in [
            "",
            " ",
            "a b",
            "a\tb",
            "a\0",
            "é",
            "\u{7f}",
            &"k".repeat(256),
        ] {
            let refused = request("shop", key);
            assert!(matches!(refused, Err(Error::InvalidKey)), "{key:?}");
        }
    }

    #[test]
    fn a_caller_can_be_stored() {
        assert!(request("会社 & co", "k").is_ok());
        for caller in ["", "a\0", "a\nb", &"c".repeat(513)] {
            let refused = request(caller, "k");
            assert!(matches!(refused, Err(Error::InvalidCaller)), "{caller:?}");
        }
    }

    #[test]
    fn a_lock_number_is_the_big_endian_head_of_the_hash_of_framed_parts() {
        // printf '\0\0\0\0\0\0\0\1a\0\0\0\0\0\0\0\1b' | sha256sum | head -c 16
        assert_eq!(LockNumber::of(&["a", "b"]).get(), 4_367_745_140_043_581_558);
        assert_ne!(LockNumber::of(&["a", "bc"]), LockNumber::of(&["ab", "c"]));
        assert_ne!(LockNumber::of(&["a"]), LockNumber::of(&["a", ""]));
    }
}
