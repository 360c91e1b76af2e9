//! What the number of a kind says about how long its events are kept (NIP-01).

/// What asks for the deletion of other events (NIP-09).
pub(crate) const DELETION: u16 = 5;
/// What proves who a client is (NIP-42). It is never published.
pub(crate) const AUTH: u16 = 22242;

/// Whether events of this kind repeat another one (NIP-18).
pub(crate) const fn is_repost(kind: u16) -> bool {
    matches!(kind, 6 | 16)
}

/// How long events of a kind are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Every one of them.
    Regular,
    /// The latest by author and kind.
    Replaceable,
    /// None: told to whoever listens.
    Ephemeral,
    /// The latest by author, kind and `d`.
    Addressable,
}

/// The class of `kind`. Numbers for which no range is written are regular.
pub(crate) const fn class(kind: u16) -> Class {
    match kind {
        0 | 3 | 10_000..=19_999 => Class::Replaceable,
        20_000..=29_999 => Class::Ephemeral,
        30_000..=39_999 => Class::Addressable,
        _ => Class::Regular,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_nip_01() {
        for (kinds, wanted) in [
            (
                &[1, 2, 4, 5, 44, 999, 1_000, 9_999, 40_000, 65_535][..],
                Class::Regular,
            ),
            (&[0, 3, 10_000, 19_999], Class::Replaceable),
            (&[20_000, 29_999], Class::Ephemeral),
            (&[30_000, 39_999], Class::Addressable),
        ] {
            for kind in kinds {
                assert_eq!(class(*kind), wanted, "{kind}");
            }
        }
    }
}
