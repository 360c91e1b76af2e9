//! The domain is pure: `domain.rs` and `domain/` know no database, no HTTP and no runtime, so
//! their tests need none either.

use crate::{File, Finding, Tree, source};

/// Words that have no place in a rule of the domain.
const IMPURE: [&str; 5] = ["sqlx", "axum", "tokio", "async", "await"];

/// Checks the domain of every crate, its unit tests included.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| is_domain(file)) {
        let code = source::code(&file.text);
        for word in source::words(&code) {
            if IMPURE.contains(&word.text) {
                let message = format!(
                    "the domain is pure: move what needs `{}` to commands.rs, store.rs or http.rs",
                    word.text
                );
                findings.push(Finding::new(&file.path, word.line, message));
            }
        }
    }
    findings
}

fn is_domain(file: &File) -> bool {
    file.is_in_src_of("crates") && (file.name() == "domain.rs" || file.is_under("domain"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fires(path: &str, text: &str) -> bool {
        !check(&Tree::of(&[(path, text)])).is_empty()
    }

    #[test]
    fn io_in_the_domain_fires() {
        for text in [
            "use sqlx::PgConnection;",
            "use axum::Json;",
            "pub async fn admit() {}",
            "let held = lock().await;",
            "#[cfg(test)] mod tests { #[tokio::test] fn f() {} }",
        ] {
            assert!(fires("crates/a/src/domain.rs", text), "{text}");
            assert!(fires("crates/a/src/domain/holdings.rs", text), "{text}");
        }
    }

    #[test]
    fn words_in_comments_and_strings_and_longer_words_do_not_fire() {
        let text = "//! No sqlx, no axum.\nlet awaited = \"async\"; struct Tokio;";
        assert!(!fires("crates/a/src/domain.rs", text));
    }

    #[test]
    fn only_the_domain_is_bound() {
        for path in [
            "crates/a/src/store.rs",
            "crates/a/tests/it/domain.rs",
            "tests/tidy/src/domain.rs",
        ] {
            assert!(!fires(path, "async fn f() {}"), "{path}");
        }
    }
}
