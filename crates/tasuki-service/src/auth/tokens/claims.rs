//! What a service token says.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Error;
use crate::auth::credentials::is_word;

/// The longest life of a token, in seconds; longer ones are refused, whoever signed them.
pub(super) const MAX_LIFETIME: i64 = 60;
const MAX_USER: usize = 128;
const MAX_ROLE: usize = 64;
const MAX_ROLES: usize = 32;

/// The claims. `aud` is one name: a list, which the standard allows, is refused.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Claims {
    pub(super) iss: String,
    pub(super) aud: String,
    pub(super) iat: i64,
    pub(super) nbf: i64,
    pub(super) exp: i64,
    pub(super) jti: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<String>,
    #[serde(default)]
    pub(super) roles: Vec<String>,
}

impl Claims {
    /// Whether user and roles are fit to be passed on.
    pub(super) fn check_subject(&self) -> Result<(), Error> {
        let user_fits = self.user.as_deref().is_none_or(|user| {
            (1..=MAX_USER).contains(&user.chars().count()) && !user.chars().any(char::is_control)
        });
        let role_fits = |role: &String| role.len() <= MAX_ROLE && is_word(role);
        if user_fits && self.roles.len() <= MAX_ROLES && self.roles.iter().all(role_fits) {
            Ok(())
        } else {
            Err(Error::BadSubject)
        }
    }

    /// What is wrong with the token's time at `now` (seconds), when clocks may differ by
    /// `skew`.
    pub(super) fn check_time(&self, now: i64, skew: Duration) -> Result<(), &'static str> {
        let skew = i64::try_from(skew.as_secs()).unwrap_or(i64::MAX);
        let latest = now.saturating_add(skew);
        match self.exp.saturating_sub(self.iat) {
            ..=0 => return Err("ends before it starts"),
            1..=MAX_LIFETIME => {}
            _ => return Err("lives too long"),
        }
        if self.iat > latest || self.nbf > latest {
            Err("not yet valid")
        } else if self.exp.saturating_add(skew) <= now {
            Err("expired")
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn claims(iat: i64, nbf: i64, exp: i64) -> Claims {
        Claims {
            iss: "gateway".into(),
            aud: "shop".into(),
            iat,
            nbf,
            exp,
            jti: "1".into(),
            user: None,
            roles: Vec::new(),
        }
    }

    fn verdict(iat: i64, nbf: i64, exp: i64) -> Result<(), &'static str> {
        claims(iat, nbf, exp).check_time(NOW, Duration::from_secs(5))
    }

    #[test]
    fn a_token_is_valid_within_its_minute_and_the_skew_around_it() {
        assert_eq!(verdict(NOW, NOW, NOW + 60), Ok(()));
        assert_eq!(verdict(NOW + 5, NOW + 5, NOW + 65), Ok(()));
        assert_eq!(verdict(NOW - 64, NOW - 64, NOW - 4), Ok(()));
    }

    #[test]
    fn beyond_it_the_token_is_refused() {
        assert_eq!(verdict(NOW - 65, NOW - 65, NOW - 5), Err("expired"));
        assert_eq!(verdict(NOW + 6, NOW, NOW + 66), Err("not yet valid"));
        assert_eq!(verdict(NOW, NOW + 6, NOW + 60), Err("not yet valid"));
    }

    #[test]
    fn a_life_of_more_than_a_minute_is_refused_even_at_the_edges_of_numbers() {
        assert_eq!(verdict(NOW, NOW, NOW + 61), Err("lives too long"));
        assert_eq!(verdict(i64::MIN, 0, i64::MAX), Err("lives too long"));
        assert_eq!(verdict(NOW, NOW, NOW), Err("ends before it starts"));
        assert_eq!(verdict(i64::MAX, 0, i64::MIN), Err("ends before it starts"));
    }

    #[test]
    fn users_and_roles_are_plain() {
        let subject = |user: Option<&str>, roles: &[&str]| {
            let mut claims = claims(0, 0, 1);
            claims.user = user.map(str::to_owned);
            claims.roles = roles.iter().map(|&role| role.to_owned()).collect();
            claims.check_subject().is_ok()
        };
        assert!(subject(None, &[]) && subject(Some("u 1"), &["admin", "shop-keeper"]));
        assert!(!subject(Some(""), &[]) && !subject(Some("a\nb"), &[]));
        assert!(!subject(Some(&"x".repeat(129)), &[]) && !subject(None, &["Admin"]));
        assert!(!subject(None, &["a"; 33]) && !subject(None, &[""]));
    }
}
