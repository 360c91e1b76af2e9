//! The names that branches have in their participants.
//!
//! `tasuki:<schema>:<log>:<transaction>:<participant>`: whoever finds a prepared transaction knows
//! from its name whose log to ask, and nobody takes another log's for its own. At most 195 bytes;
//! PostgreSQL takes 199.

use uuid::Uuid;

use super::TransactionId;
use crate::Schema;

/// The longest name of a participant.
const NAME_LIMIT: usize = 64;

/// What the names of all branches of one log begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prefix(String);

impl Prefix {
    pub(super) fn of(schema: &Schema, log: Uuid) -> Self {
        // Half of the log's id is enough to tell it from others, and leaves room for the rest.
        let log = log.as_u64_pair().1;
        Self(format!("tasuki:{schema}:{log:016x}:"))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of one branch.
    pub(super) fn gid(&self, id: TransactionId, participant: &str) -> String {
        format!("{}{}:{participant}", self.0, id.as_uuid().simple())
    }

    /// The transaction that a branch belongs to, if the branch is of this log.
    pub(super) fn transaction(&self, gid: &str) -> Option<TransactionId> {
        let (id, participant) = gid.strip_prefix(&self.0)?.split_once(':')?;
        let id: Uuid = id.parse().ok()?;
        is_name(participant).then_some(id.into())
    }
}

/// Whether a participant can have this name: 1 to 64 ASCII letters, digits, `_`, `-` or `.`.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    (1..=NAME_LIMIT).contains(&name.len()) && name.bytes().all(plain)
}

/// A text as a literal of SQL, whatever it contains and however the server reads backslashes.
/// (`PREPARE TRANSACTION` and its kin take no parameters.)
pub(super) fn quoted(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if doubled.contains('\\') {
        format!("E'{}'", doubled.replace('\\', "\\\\"))
    } else {
        format!("'{doubled}'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    #[test]
    fn a_gid_tells_its_transaction_to_its_own_log_only() {
        let schema = Schema::new("shop").unwrap();
        let (ours, theirs) = (Uuid::new_v4(), Uuid::new_v4());
        let (ours, theirs) = (Prefix::of(&schema, ours), Prefix::of(&schema, theirs));
        let id = TransactionId::new(&Clock::system());
        let gid = ours.gid(id, "depot");
        assert_eq!(ours.transaction(&gid), Some(id));
        assert_eq!(theirs.transaction(&gid), None);
        for other in ["", "tasuki:shop:", "depot", &gid[..gid.len() - 6]] {
            assert_eq!(ours.transaction(other), None, "{other}");
        }
        assert_eq!(ours.transaction(&format!("{gid}'; --")), None);
    }

    #[test]
    fn the_longest_gid_fits() {
        let schema = Schema::new(&"x".repeat(63)).unwrap();
        let prefix = Prefix::of(&schema, Uuid::max());
        let name = "p".repeat(NAME_LIMIT);
        assert!(is_name(&name));
        let gid = prefix.gid(TransactionId::new(&Clock::system()), &name);
        assert!(gid.len() < 200, "{}", gid.len());
    }

    #[test]
    fn names_that_could_leave_their_place_are_none() {
        let long = "p".repeat(65);
        for name in ["", "a b", "a'b", "a\\b", "a:b", "a\0", "é", &long] {
            assert!(!is_name(name), "{name:?}");
        }
        assert!(is_name("depot-7.eu_1"));
    }

    #[test]
    fn a_literal_stays_one_literal() {
        assert_eq!(quoted("a"), "'a'");
        assert_eq!(quoted("a'; DROP"), "'a''; DROP'");
        assert_eq!(quoted(r"a\'"), r"E'a\\'''");
    }
}
