//! Made-up migrations, good and bad.

use super::*;

const CLEAN: [usize; 0] = [];

const HEAD: &str = "-- Why:   because.\n-- Phase: expand.\n-- Lock:  none.\n-- Undo:  drop it.\n";
const CONCURRENT: &str = "CREATE INDEX CONCURRENTLY a_b_idx ON s.a (b);\n";

fn told(text: &str) -> Vec<usize> {
    let tree = Tree::of(&[("crates/x/migrations/0001_a.sql", text)]);
    check(&tree)
        .into_iter()
        .map(|finding| finding.line)
        .collect()
}

#[test]
fn the_example_of_the_style_is_clean() {
    assert_eq!(
        told(&format!("-- no-transaction\n{HEAD}{CONCURRENT}")),
        CLEAN
    );
}

#[test]
fn a_table_with_its_index_is_clean() {
    let body = "-- The table.\nCREATE TABLE IF NOT EXISTS s.a (b text);\n\
                CREATE UNIQUE INDEX IF NOT EXISTS a_b_idx ON ONLY s.\"a\" USING btree (b);\n\
                CREATE INDEX ON s.a(b);\n";
    assert_eq!(told(&format!("{HEAD}{body}")), CLEAN);
}

#[test]
fn an_index_of_partitions_to_come_is_clean_and_one_that_builds_is_not() {
    let made = format!("{HEAD}CREATE TABLE s.a (b text) PARTITION BY RANGE (b);\n");
    let later = |index: &str| {
        let index = format!("{HEAD}{index}");
        let tree = Tree::of(&[
            ("crates/x/migrations/0001_a.sql", made.as_str()),
            ("crates/x/migrations/0002_b.sql", index.as_str()),
        ]);
        check(&tree).len()
    };
    assert_eq!(later("CREATE INDEX a_b_idx ON ONLY s.a (b);\n"), 0);
    assert_eq!(later("CREATE INDEX a_b_idx ON s.a (b);\n"), 1);
    assert_eq!(later("CREATE INDEX c_b_idx ON ONLY s.c (b);\n"), 1);
}

#[test]
fn every_missing_answer_is_named() {
    for tag in HEADER {
        let without = HEAD.replace(tag, "Nope:");
        let tree = Tree::of(&[("crates/x/migrations/0001_a.sql", without.as_str())]);
        let findings = check(&tree);
        assert_eq!(findings.len(), 1, "{tag}");
        assert!(
            findings[0].message.ends_with(&format!("add {tag}")),
            "{}",
            findings[0]
        );
    }
}

#[test]
fn an_empty_answer_or_a_header_below_the_statements_is_no_header() {
    assert_eq!(told(&HEAD.replace("because.", "")), [1]);
    assert_eq!(told(&format!("SELECT 1;\n{HEAD}")), [1]);
    assert_eq!(told(""), [1]);
}

#[test]
fn a_header_may_go_over_several_lines() {
    assert_eq!(
        told(&HEAD.replace("because.", "because\n--\n--        of this.")),
        CLEAN
    );
}

#[test]
fn a_marker_that_sqlx_would_not_see_is_a_finding() {
    assert_eq!(told(&format!("{HEAD}-- no-transaction\nSELECT 1;\n")), [5]);
    assert_eq!(told(&format!("{HEAD}SELECT 1;\n  --no-transaction\n")), [6]);
    // Not the spelling sqlx looks for.
    assert_eq!(told(&format!("--no-transaction\n{HEAD}SELECT 1;\n")), [1]);
}

#[test]
fn prose_about_the_marker_is_free() {
    let head = HEAD.replace("because.", "because -- no-transaction is not needed.");
    assert_eq!(told(&head), CLEAN);
}

#[test]
fn a_concurrent_index_needs_the_marker_and_stands_alone() {
    assert_eq!(told(&format!("{HEAD}{CONCURRENT}")), [5]);
    assert_eq!(
        told(&format!("-- no-transaction\n{HEAD}SELECT 1;\n{CONCURRENT}")),
        [7]
    );
    let lower = CONCURRENT.to_lowercase();
    assert_eq!(told(&format!("{HEAD}{lower}")), [5]);
}

#[test]
fn a_plain_index_on_a_table_of_another_migration_is_a_finding() {
    let body = "CREATE TABLE s.other (b text);\n\nCREATE INDEX a_b_idx\n  ON s.a (b);\n";
    assert_eq!(told(&format!("{HEAD}{body}")), [7]);
}

#[test]
fn words_in_comments_strings_and_bodies_are_no_statements() {
    let body = "-- CREATE INDEX a ON s.a (b);\n/* CREATE INDEX a ON s.a (b); */\n\
                COMMENT ON TABLE s.a IS 'it''s; CREATE INDEX a ON s.a (b);';\n\
                CREATE FUNCTION s.f() RETURNS void LANGUAGE plpgsql AS $body$\n\
                BEGIN; CREATE INDEX a ON s.a (b); END $body$;\n\
                DROP INDEX s.a_b_idx;\n";
    assert_eq!(told(&format!("{HEAD}{body}")), CLEAN);
}

#[test]
fn sql_that_is_no_migration_is_free() {
    for path in [
        "crates/x/src/claim.sql",
        "crates/x/migrations/README.md",
        "docs/reference/schema.sql",
    ] {
        assert_eq!(check(&Tree::of(&[(path, "SELECT 1;")])), [], "{path}");
    }
}
