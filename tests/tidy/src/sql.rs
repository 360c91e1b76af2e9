//! One home for SQL: queries are written in `store.rs` or `store/`, and in tests.
//!
//! Not seen: a statement in a variable that is handed to an executor; review has to.

use crate::{
    File, Finding, Tree,
    source::{self, Word},
};

/// Folders whose files may hold SQL.
const FREE_FOLDERS: [&str; 7] = [
    "store",
    "examples",
    "benches",
    // Other people's libraries, behind programs of one file each (`bench/peers/`).
    "peers",
    // The two crates that make databases.
    "tasuki-testkit",
    "tasuki-stack",
    "tests",
];

/// Names that mean a query wherever they stand.
const ALWAYS: [&str; 2] = ["QueryBuilder", "raw_sql"];

/// Families of functions and macros: `query_as`, `query_as_with`, `query_as_unchecked`, ...
const FAMILIES: [&str; 3] = ["query_as", "query_scalar", "query_file"];

/// Names too common to mean SQL alone: only as a macro, on a path, or imported from sqlx.
const SOMETIMES: [&str; 3] = ["query", "query_with", "query_unchecked"];

/// Methods that take a statement as a plain string.
const EXECUTORS: [&str; 7] = [
    "execute",
    "execute_many",
    "fetch",
    "fetch_all",
    "fetch_many",
    "fetch_one",
    "fetch_optional",
];

/// Checks every Rust file that is no store and no test.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !may_hold_sql(file)) {
        let code = source::without_tests(&source::code(&file.text));
        let mut lines: Vec<usize> = source::words(&code)
            .filter(is_query)
            .map(|word| word.line)
            .collect();
        // `sqlx::query_as!` trips once, not once per word.
        lines.dedup();
        findings.extend(lines.into_iter().map(|line| {
            let message = "SQL lives in store.rs or store/: move this query into a function there";
            Finding::new(&file.path, line, message)
        }));
    }
    findings
}

fn may_hold_sql(file: &File) -> bool {
    let free = FREE_FOLDERS.iter().any(|folder| file.is_under(folder));
    free || file.is_test() || file.name() == "store.rs"
}

fn is_query(word: &Word<'_>) -> bool {
    let name = word.text;
    if ALWAYS.contains(&name) || is_of_a_family(name) {
        return true;
    }
    if SOMETIMES.contains(&name) {
        let is_macro = word.is_followed_by("!") && !word.is_followed_by("!=");
        return is_macro || word.is_preceded_by("sqlx::") || is_imported(word);
    }
    EXECUTORS.contains(&name) && word.is_preceded_by(".") && takes_a_literal(word)
}

fn is_of_a_family(name: &str) -> bool {
    FAMILIES.iter().any(|family| {
        let rest = name.strip_prefix(family);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    })
}

/// Whether the word is in the list of a `use sqlx::{..}`.
fn is_imported(word: &Word<'_>) -> bool {
    let since = word.before.rsplit_once("use sqlx::");
    since.is_some_and(|(_, list)| !list.contains(';'))
}

/// Whether the first argument is a string.
fn takes_a_literal(word: &Word<'_>) -> bool {
    let arguments = word.after.trim_start().strip_prefix('(');
    arguments.is_some_and(|first| first.trim_start().starts_with('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fires(path: &str, text: &str) -> bool {
        !check(&Tree::of(&[(path, text)])).is_empty()
    }

    #[test]
    fn every_way_to_write_a_query_fires() {
        for text in [
            r#"sqlx::query("SELECT 1").fetch_one(db)"#,
            r#"sqlx::query!("SELECT 1")"#,
            r#"query!("SELECT 1")"#,
            r#"query_as!(Row, "SELECT 1")"#,
            r#"sqlx::query_as::<_, Row>("SELECT 1")"#,
            r#"query_scalar!("SELECT 1")"#,
            r#"query_scalar_unchecked!("SELECT 1")"#,
            r#"query_file!("a.sql")"#,
            r#"query_file_as!(Row, "a.sql")"#,
            "let b: QueryBuilder<'_, Postgres> = x;",
            r#"sqlx::raw_sql("SELECT 1")"#,
            "fn f() {}\nuse sqlx::{PgConnection, query};",
            r#"db.execute("SELECT 1").await?"#,
            "db\n.fetch_one(\n    r#\"SELECT 1\"#)",
        ] {
            assert!(fires("crates/a/src/commands.rs", text), "{text}");
        }
    }

    #[test]
    fn stores_and_tests_are_free() {
        let text = r#"sqlx::query!("SELECT 1")"#;
        for path in [
            "crates/a/src/store.rs",
            "crates/a/src/outbox/store.rs",
            "crates/a/src/store/claim.rs",
            "crates/a/src/outbox/tests.rs",
            "crates/a/tests/it/main.rs",
            "crates/a/examples/outbox.rs",
            "crates/a/benches/outbox.rs",
            "bench/peers/other/src/main.rs",
            "crates/tasuki-testkit/src/db.rs",
            "crates/tasuki-stack/src/lib.rs",
            "tests/faults/src/lib.rs",
        ] {
            assert!(!fires(path, text), "{path}");
        }
        let module = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{ fn g() {{ {text} }} }}");
        assert!(!fires("crates/a/src/commands.rs", &module));
        let after = format!("#[cfg(test)]\nmod tests;\nfn f() {{ {text} }}");
        assert!(fires("crates/a/src/commands.rs", &after));
    }

    #[test]
    fn words_that_only_look_like_sql_do_not_fire() {
        for text in [
            "// sqlx::query! belongs in store.rs",
            r#"let help = "use sqlx::query here";"#,
            "request.query(&[(a, b)])",
            "fn query(query: Query<Page>) -> String { query.text }",
            "if query != other {}",
            "use axum::extract::Query;",
            "use sqlx::PgConnection;\nuse crate::http::query;",
            "command.execute(&mut connection)",
            "sqlx::migrate!()",
        ] {
            assert!(!fires("crates/a/src/http.rs", text), "{text}");
        }
    }

    #[test]
    fn one_line_is_one_finding_with_its_number() {
        let tree = Tree::of(&[("crates/a/src/http.rs", "\n\nsqlx::query_as!(QueryBuilder)")]);
        let lines: Vec<usize> = check(&tree).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [3]);
    }
}
