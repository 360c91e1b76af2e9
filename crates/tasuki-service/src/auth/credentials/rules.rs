//! What a new credential may look like. No I/O.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::Kind;

const MAX_NAME: usize = 100;
const MAX_SCOPE: usize = 64;
const MAX_SCOPES: usize = 32;
/// A hundred years: longer means "never", and that is said by leaving it out.
const MAX_LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Why a credential can't be made as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A name that no list could show.
    #[error("a credential's name has 1 to {MAX_NAME} characters and no control characters")]
    Name,
    /// Not `<service>:<verb>`.
    #[error(
        "`{0}` is not a scope: write <service>:<verb> in lower-case words, e.g. entitlement:grant"
    )]
    Scope(String),
    /// A key that could do nothing, or too much to read.
    #[error("an API key has 1 to {MAX_SCOPES} scopes")]
    Scopes,
    /// Zero, or longer than a century.
    #[error("a credential's lifetime is more than nothing and at most 100 years")]
    Lifetime,
}

/// A permission of an API key: `<service>:<verb>`, each a lower-case word of letters, digits
/// and `-` that starts with a letter; at most 64 characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeName(String);

impl ScopeName {
    /// The scope as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ScopeName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text.split_once(':') {
            Some((service, verb))
                if text.len() <= MAX_SCOPE && is_word(service) && is_word(verb) =>
            {
                Ok(Self(text.to_owned()))
            }
            _ => {
                let start: String = text.chars().take(MAX_SCOPE).collect();
                Err(Invalid::Scope(start.escape_debug().to_string()))
            }
        }
    }
}

impl fmt::Display for ScopeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a new credential is called and may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCredential {
    kind: Kind,
    name: String,
    scopes: Vec<ScopeName>,
    lifetime: Option<Duration>,
}

impl NewCredential {
    /// An API key that may do what `scopes` say. It never expires.
    ///
    /// # Errors
    /// When the name is not fit to be shown, or there is no scope.
    pub fn api_key(
        name: &str,
        scopes: impl IntoIterator<Item = ScopeName>,
    ) -> Result<Self, Invalid> {
        let mut scopes: Vec<_> = scopes.into_iter().collect();
        scopes.sort_unstable();
        scopes.dedup();
        if scopes.is_empty() || scopes.len() > MAX_SCOPES {
            return Err(Invalid::Scopes);
        }
        Self::named(Kind::ApiKey, name, scopes)
    }

    /// A token for a person who runs the platform. It never expires.
    ///
    /// # Errors
    /// When the name is not fit to be shown.
    pub fn operator(name: &str) -> Result<Self, Invalid> {
        Self::named(Kind::Operator, name, Vec::new())
    }

    /// The same, and it ends `lifetime` after it is stored, by the database's clock.
    ///
    /// # Errors
    /// When `lifetime` is zero or longer than a century.
    pub fn expiring_in(mut self, lifetime: Duration) -> Result<Self, Invalid> {
        if lifetime.is_zero() || lifetime > MAX_LIFETIME {
            return Err(Invalid::Lifetime);
        }
        self.lifetime = Some(lifetime);
        Ok(self)
    }

    /// What it is for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn scopes(&self) -> Vec<&str> {
        self.scopes.iter().map(ScopeName::as_str).collect()
    }

    pub(super) fn lifetime(&self) -> Option<Duration> {
        self.lifetime
    }

    fn named(kind: Kind, name: &str, scopes: Vec<ScopeName>) -> Result<Self, Invalid> {
        let length = name.chars().count();
        if !(1..=MAX_NAME).contains(&length) || name.chars().any(char::is_control) {
            return Err(Invalid::Name);
        }
        Ok(Self {
            kind,
            name: name.to_owned(),
            scopes,
            lifetime: None,
        })
    }
}

/// `[a-z][a-z0-9]*(-[a-z0-9]+)*`
pub(in crate::auth) fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.split('-').all(|part| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_a_service_and_a_verb_in_lower_case() {
        for good in ["entitlement:grant", "shop:pay-out", "a:b", "a1:b2-3"] {
            assert_eq!(good.parse::<ScopeName>().unwrap().as_str(), good);
        }
        let long = format!("a:{}", "b".repeat(63));
        for bad in [
            "", ":", "a", "a:", ":b", "A:b", "a:B", "a:b:c", "a b:c", "a:*", "1a:b", "a:-b",
            "a:b-", "a:b--c", "é:b", "a:b\n", &long,
        ] {
            let refused = bad.parse::<ScopeName>();
            assert!(matches!(refused, Err(Invalid::Scope(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_name_fits_on_a_line_of_a_list() {
        for good in ["x", "payment provider A", "支払い", &"x".repeat(100)] {
            assert!(NewCredential::operator(good).is_ok(), "{good}");
        }
        for bad in ["", "a\nb", "a\0", "\u{7f}", &"x".repeat(101)] {
            assert_eq!(NewCredential::operator(bad), Err(Invalid::Name), "{bad:?}");
        }
    }

    #[test]
    fn an_api_key_has_scopes_each_once() {
        let scope = |text: &str| text.parse::<ScopeName>().unwrap();
        assert_eq!(NewCredential::api_key("x", []), Err(Invalid::Scopes));
        let twice = [scope("b:c"), scope("a:b"), scope("b:c")];
        let made = NewCredential::api_key("x", twice).unwrap();
        assert_eq!(made.scopes(), ["a:b", "b:c"]);
        let many = (0..33).map(|n| scope(&format!("a:b{n}")));
        assert_eq!(NewCredential::api_key("x", many), Err(Invalid::Scopes));
    }

    #[test]
    fn a_lifetime_is_neither_nothing_nor_forever() {
        let operator = || NewCredential::operator("x").unwrap();
        for bad in [Duration::ZERO, Duration::MAX] {
            assert_eq!(operator().expiring_in(bad), Err(Invalid::Lifetime));
        }
        assert!(operator().expiring_in(Duration::from_secs(1)).is_ok());
    }
}
