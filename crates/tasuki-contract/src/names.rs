//! Names that callers choose: of users, of SKUs, of purchases. Checked once, where they enter,
//! and kept as they came.

use std::fmt;

/// The most characters of a name.
const MAX_CHARS: usize = 128;
/// The most bytes of a name: two of them and a colon fit into an event's key.
const MAX_BYTES: usize = 255;

/// Why a text is not a name. It completes "`user_id` …".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// Nothing, or nothing but white space.
    #[error("is required")]
    Blank,
    /// More than a name may have.
    #[error("is longer than 128 characters or 255 bytes")]
    TooLong,
    /// NUL, line breaks and their like.
    #[error("has a control character")]
    Control,
}

fn check(text: &str) -> Result<(), InvalidName> {
    if text.trim().is_empty() {
        return Err(InvalidName::Blank);
    }
    if text.len() > MAX_BYTES || text.chars().count() > MAX_CHARS {
        return Err(InvalidName::TooLong);
    }
    if text.chars().any(char::is_control) {
        return Err(InvalidName::Control);
    }
    Ok(())
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        ///
        /// 1 to 128 characters, at most 255 bytes of UTF-8, not blank, no control characters.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The text as it came.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<Self, InvalidName> {
                check(&text)?;
                Ok(Self(text))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )+};
}

names! {
    /// A user, by whatever id the caller knows them.
    UserId;
    /// A stock keeping unit: what can be owned.
    Sku;
    /// Why something was done, in the caller's words.
    Reason;
    /// What the caller did it for: a purchase, a ticket.
    PurchaseId;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_as_it_came_or_refused_with_the_reason() {
        for good in [
            "u1",
            " a b ",
            "プレイヤー",
            "é",
            "a:b/c?d",
            &"x".repeat(128),
        ] {
            assert_eq!(UserId::try_from(good.to_owned()).unwrap().as_str(), good);
        }
        for (bad, why) in [
            ("", InvalidName::Blank),
            (" \u{3000}", InvalidName::Blank),
            ("a\0b", InvalidName::Control),
            ("a\nb", InvalidName::Control),
            ("a\u{85}b", InvalidName::Control),
            (&"x".repeat(129), InvalidName::TooLong),
            (&"\u{1F600}".repeat(64), InvalidName::TooLong),
        ] {
            assert_eq!(Sku::try_from(bad.to_owned()).unwrap_err(), why, "{bad:?}");
        }
    }
}
