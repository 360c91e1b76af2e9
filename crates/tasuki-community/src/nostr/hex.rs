//! Ids and keys: 32 bytes, written as 64 digits of lower-case hexadecimal and in no other way.

use std::fmt;

/// The id of an event: the hash of what it says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(pub(crate) [u8; 32]);

/// The public key of an author.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key(pub(crate) [u8; 32]);

impl Id {
    /// Reads 64 lower-case digits; nothing for anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        decode(text).map(Self)
    }

    /// From a column of 32 bytes.
    pub(crate) fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl Key {
    /// Reads 64 lower-case digits; nothing for anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        decode(text).map(Self)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode(&self.0))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode(&self.0))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({self})")
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Lower-case digits.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let digit = |nibble: u8| {
        DIGITS
            .get(usize::from(nibble))
            .copied()
            .map_or('0', char::from)
    };
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
    text
}

/// Exactly `N` bytes in lower-case digits.
pub(crate) fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != N * 2 {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = value(*high)? << 4 | value(*low)?;
    }
    Some(bytes)
}

const fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_lower_case_and_exactly_as_many() {
        let text = "0123456789abcdef".repeat(4);
        assert_eq!(Id::parse(&text).unwrap().to_string(), text);
        assert_eq!(Key::parse(&text).unwrap().to_string(), text);
        for bad in [
            text.to_uppercase(),
            text[1..].to_owned(),
            format!("{text}0"),
            text.replace('a', "g"),
            text.replace('a', "é"),
            String::new(),
        ] {
            assert_eq!(Id::parse(&bad), None, "{bad}");
        }
    }
}
