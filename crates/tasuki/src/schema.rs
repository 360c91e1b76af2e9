//! The name of a PostgreSQL schema, checked once.
//!
//! Library tables live in the schema that the user names, so their statements are rendered
//! at start instead of being checked by the compiler. A [`Schema`] is the only thing that is
//! ever rendered into them, and it can't carry anything but a plain identifier.

use std::fmt;
use std::str::FromStr;

/// PostgreSQL cuts identifiers at 63 bytes; what is cut could collide.
const MAX_LEN: usize = 63;

/// A schema name: `[a-z_][a-z0-9_]*`, at most 63 characters, not one of PostgreSQL's own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schema(String);

/// A name that is not a plain schema identifier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a schema name: use lower-case letters, digits and _, at most 63, not starting with a digit or pg_"
)]
pub struct InvalidSchema(String);

impl Schema {
    /// Checks `name`.
    ///
    /// # Errors
    /// When it is not a plain lower-case identifier, or belongs to PostgreSQL.
    pub fn new(name: &str) -> Result<Self, InvalidSchema> {
        let plain = name
            .bytes()
            .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'));
        let starts_well = name.bytes().next().is_some_and(|b| !b.is_ascii_digit());
        let reserved = name.starts_with("pg_") || name == "information_schema";
        if plain && starts_well && !reserved && name.len() <= MAX_LEN {
            Ok(Self(name.to_owned()))
        } else {
            Err(InvalidSchema(name.to_owned()))
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Puts this schema wherever `sql` says `{schema}`.
    #[must_use]
    pub fn render(&self, sql: &str) -> String {
        sql.replace("{schema}", &self.0)
    }
}

impl FromStr for Schema {
    type Err = InvalidSchema;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::new(name)
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_identifiers_are_schemas() {
        for name in ["app", "_app", "a1_b2", &"x".repeat(63)] {
            assert!(Schema::new(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn nothing_that_could_leave_its_place_in_a_statement_is_a_schema() {
        let too_long = "x".repeat(64);
        for name in [
            "",
            "1a",
            "App",
            "a-b",
            "a.b",
            "a b",
            "a\"b",
            "a;drop",
            "pg_app",
            "é",
            "a\0",
            "information_schema",
            &too_long,
        ] {
            assert!(Schema::new(name).is_err(), "{name:?}");
        }
    }
}
