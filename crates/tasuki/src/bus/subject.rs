//! Subjects and names, as NATS reads them.

/// Whether a message can be published to `subject`: words between dots, no white space, no
/// wildcard.
pub(super) fn is_publishable(subject: &str) -> bool {
    !subject.is_empty()
        && subject.split('.').all(|word| {
            !word.is_empty()
                && word != "*"
                && word != ">"
                && !word.contains(|c: char| c.is_whitespace() || c.is_control())
        })
}

/// Whether `name` can name a stream or a durable. It becomes part of a subject and of a path.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(|c: char| {
            c.is_whitespace() || c.is_control() || matches!(c, '.' | '*' | '>' | '/' | '\\')
        })
}

/// Whether `pattern` covers `subject`: `*` stands for one word, a final `>` for one or more.
pub(super) fn matches(pattern: &str, subject: &str) -> bool {
    let mut words = subject.split('.');
    for part in pattern.split('.') {
        match (part, words.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (part, Some(word)) if part == word => {}
            _ => return false,
        }
    }
    words.next().is_none()
}

/// Whether one of `patterns` covers `subject`; no pattern covers everything.
pub(super) fn matches_any(patterns: &[String], subject: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| matches(pattern, subject))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stand_for_one_word_or_the_rest() {
        for (pattern, subject) in [
            ("a.b", "a.b"),
            ("a.*", "a.b"),
            ("*.b", "a.b"),
            ("a.>", "a.b"),
            ("a.>", "a.b.c"),
            (">", "a"),
        ] {
            assert!(matches(pattern, subject), "{pattern} {subject}");
        }
        for (pattern, subject) in [
            ("a.b", "a.c"),
            ("a.*", "a"),
            ("a.*", "a.b.c"),
            ("a.>", "a"),
            ("a", "a.b"),
        ] {
            assert!(!matches(pattern, subject), "{pattern} {subject}");
        }
    }

    #[test]
    fn only_plain_words_can_be_published_to() {
        for good in ["a", "a.b", "orders.eu-1.placed", "a*b.c"] {
            assert!(is_publishable(good), "{good}");
        }
        for bad in [
            "", ".", "a.", ".a", "a..b", "a b", "a.*", "a.>", "a\n", "a\0",
        ] {
            assert!(!is_publishable(bad), "{bad:?}");
        }
    }

    #[test]
    fn names_are_one_word_that_fits_a_path() {
        assert!(is_name("orders-events_1"));
        for bad in ["", "a.b", "a b", "a/b", "a\\b", "*", ">"] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
