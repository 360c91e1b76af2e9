//! Every rule of the tidy check, on this very workspace.

use std::{error::Error, path::Path};

use tidy::{Finding, Tree};

type Tested = Result<(), Box<dyn Error>>;

/// The root of the workspace: this package is `tests/tidy`.
fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

#[track_caller]
fn assert_tidy(findings: &[Finding]) {
    let all: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(all.is_empty(), "{} found:\n{}", all.len(), all.join("\n"));
}

#[test]
fn the_tree_is_this_workspace() -> Tested {
    let tree = Tree::read(root())?;
    assert!(tree.holds("Cargo.toml") && tree.holds("tests/tidy/tests/workspace.rs"));
    let packages = tidy::imports::packages(root())?;
    assert!(
        packages
            .iter()
            .any(|package| package.folder == "crates/tasuki")
    );
    Ok(())
}

#[test]
fn crates_import_only_what_they_may() -> Tested {
    assert_tidy(&tidy::imports::check(&tidy::imports::packages(root())?));
    Ok(())
}

#[test]
fn sql_is_written_only_in_stores() -> Tested {
    assert_tidy(&tidy::sql::check(&Tree::read(root())?));
    Ok(())
}

#[test]
fn domains_are_pure() -> Tested {
    assert_tidy(&tidy::purity::check(&Tree::read(root())?));
    Ok(())
}

#[test]
fn files_are_short() -> Tested {
    let tree = Tree::read(root())?;
    assert_tidy(&tidy::size::check(&tree, tidy::size::EXCEPTIONS));
    Ok(())
}

#[test]
fn migrations_say_what_they_do_and_stop_no_writer() -> Tested {
    assert_tidy(&tidy::migrations::check(&Tree::read(root())?));
    Ok(())
}

#[test]
fn source_files_start_with_their_doc() -> Tested {
    assert_tidy(&tidy::module_docs::check(&Tree::read(root())?));
    Ok(())
}

#[test]
fn no_code_is_silenced() -> Tested {
    assert_tidy(&tidy::silenced::check(&Tree::read(root())?));
    Ok(())
}

#[test]
fn tests_do_not_sleep() -> Tested {
    assert_tidy(&tidy::sleeps::check(&Tree::read(root())?));
    Ok(())
}

#[test]
fn no_file_names_a_machine() -> Tested {
    assert_tidy(&tidy::machine::check(&Tree::read(root())?));
    Ok(())
}

#[test]
fn members_inherit_lints_and_versions() -> Tested {
    assert_tidy(&tidy::manifests::check(&Tree::read(root())?));
    Ok(())
}

#[test]
fn links_between_documents_lead_somewhere() -> Tested {
    assert_tidy(&tidy::links::check(&Tree::read(root())?));
    Ok(())
}

#[test]
fn decisions_are_numbered_and_complete() -> Tested {
    assert_tidy(&tidy::adr::check(&Tree::read(root())?));
    Ok(())
}

#[test]
fn every_promise_names_a_test_that_exists() -> Tested {
    assert_tidy(&tidy::promises::check(&Tree::read(root())?));
    Ok(())
}
