//! Made-up packages, and one made-up workspace that Cargo reads.

use std::error::Error;

use super::*;

fn package(folder: &str, imports: &[(&str, Kind)]) -> Package {
    Package {
        name: folder.rsplit('/').next().unwrap().to_owned(),
        folder: folder.to_owned(),
        dependencies: imports
            .iter()
            .map(|(name, kind)| Dependency {
                name: (*name).to_owned(),
                kind: *kind,
                line: 7,
            })
            .collect(),
    }
}

/// Whether `name` in `crates/` may import `other`.
fn may(name: &str, other: &str, kind: Kind) -> bool {
    let importer = package(&format!("crates/{name}"), &[(other, kind)]);
    let outside = package("tests/e2e", &[]);
    check(&[importer, outside]).is_empty()
}

#[test]
fn the_layers_import_downwards_only() {
    let layers = ["tasuki", "tasuki-contract", "tasuki-service", "tasuki-shop"];
    for (high, importer) in layers.iter().enumerate() {
        for (low, imported) in layers.iter().enumerate() {
            for kind in [Kind::Normal, Kind::Build, Kind::Dev] {
                assert_eq!(
                    may(importer, imported, kind),
                    low < high,
                    "{importer} {imported} {kind}"
                );
            }
        }
    }
}

#[test]
fn services_never_import_each_other() {
    assert!(!may("tasuki-shop", "tasuki-account", Kind::Normal));
    assert!(!may("tasuki-shop", "tasuki-account", Kind::Dev));
    assert!(!may("tasuki-shop", "tasuki-entitlement", Kind::Normal));
    // Beside it, in tests.
    assert!(may("tasuki-shop", "tasuki-entitlement", Kind::Dev));
    assert!(!may("tasuki-gateway", "tasuki-devidp", Kind::Normal));
    assert!(!may("tasuki-service", "tasuki-system", Kind::Build));
}

#[test]
fn the_testkit_is_for_tests_only() {
    for importer in [
        "tasuki",
        "tasuki-service",
        "tasuki-system",
        "tasuki-devidp",
        "tasuki-cli",
    ] {
        assert!(may(importer, TESTKIT, Kind::Dev), "{importer}");
        assert!(!may(importer, TESTKIT, Kind::Normal), "{importer}");
        assert!(!may(importer, TESTKIT, Kind::Build), "{importer}");
    }
}

#[test]
fn the_stack_knows_none_of_ours_and_is_known_by_few() {
    assert!(!may(STACK, LIBRARY, Kind::Normal));
    assert!(!may(STACK, TESTKIT, Kind::Dev));
    assert!(!may("tasuki-shop", STACK, Kind::Normal));
    assert!(may("tasuki-shop", STACK, Kind::Dev));
    assert!(may(TESTKIT, STACK, Kind::Normal));
    assert!(!may(TESTKIT, "tasuki-system", Kind::Normal));
}

#[test]
fn the_executable_imports_every_crate_but_nothing_from_tests() {
    for other in [
        "tasuki-system",
        "tasuki-shop",
        STACK,
        "tasuki-devidp",
        LIBRARY,
    ] {
        assert!(may("tasuki-cli", other, Kind::Normal), "{other}");
    }
    assert!(!may("tasuki-cli", "e2e", Kind::Normal));
}

#[test]
fn the_benchmark_is_one_package_in_its_own_folder() {
    let mut bench = package("bench", &[(LIBRARY, Kind::Normal), (STACK, Kind::Normal)]);
    BENCH.clone_into(&mut bench.name);
    assert_eq!(check(&[bench.clone()]), []);
    bench.dependencies = package("bench", &[(TESTKIT, Kind::Normal)]).dependencies;
    assert_eq!(check(&[bench.clone()]).len(), 1, "the testkit is for tests");
    "bench/other".clone_into(&mut bench.folder);
    assert!(!check(&[bench]).is_empty(), "and only there");
}

#[test]
fn packages_in_tests_and_foreign_crates_are_free() {
    let all = [(TESTKIT, Kind::Normal), ("tasuki-cli", Kind::Normal)];
    assert_eq!(check(&[package("tests/e2e", &all)]), []);
    assert!(may("tasuki", "tokio", Kind::Normal));
}

#[test]
fn an_unknown_crate_is_a_finding() {
    let findings = check(&[package("crates/tasuki-new", &[])]);
    assert_eq!(findings.len(), 1);
    assert!(
        findings[0]
            .message
            .contains("add tasuki-new to the table in tests/tidy")
    );
}

#[test]
fn a_crate_nobody_has_yet_is_still_ours() {
    assert!(!may("tasuki-shop", "tasuki-new", Kind::Normal));
}

#[test]
fn a_folder_with_another_name_or_another_home_is_a_finding() {
    for folder in ["crates/shop", "tests/other"] {
        let mut renamed = package("crates/tasuki-shop", &[]);
        folder.clone_into(&mut renamed.folder);
        assert_eq!(check(&[renamed]).len(), 1, "{folder}");
    }
    assert_eq!(check(&[package("bench/load", &[])]).len(), 1);
}

#[test]
fn a_finding_points_at_the_line_and_says_what_is_allowed() {
    let findings = check(&[package("crates/tasuki-stack", &[(LIBRARY, Kind::Build)])]);
    assert_eq!(
        findings[0].to_string(),
        "crates/tasuki-stack/Cargo.toml:7: tasuki-stack may import nothing of ours: remove the \
         build-dependency tasuki, or share the thing lower down"
    );
}

#[test]
fn cargo_tells_the_kinds_apart_and_sees_through_renames() -> Result<(), Box<dyn Error>> {
    let root = tempfile::tempdir()?;
    let workspace = "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n";
    fs::write(root.path().join("Cargo.toml"), workspace)?;
    let head = |name: &str| format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n");
    let stack = format!(
        "{}[dependencies]\nlib = {{ package = \"tasuki\", path = \"../tasuki\" }}\n\
         [build-dependencies]\ntasuki = {{ path = \"../tasuki\" }}\n\
         [target.'cfg(unix)'.dev-dependencies]\ntasuki = {{ path = \"../tasuki\" }}\n",
        head("tasuki-stack")
    );
    for (name, manifest) in [("tasuki", head("tasuki")), ("tasuki-stack", stack)] {
        let folder = root.path().join("crates").join(name);
        fs::create_dir_all(folder.join("src"))?;
        fs::write(folder.join("src/lib.rs"), "")?;
        fs::write(folder.join("Cargo.toml"), manifest)?;
    }
    let findings = check(&packages(root.path())?);
    let mut told: Vec<(usize, bool, bool)> = findings
        .iter()
        .map(|finding| {
            let says = |kind: Kind| finding.message.contains(&format!("the {kind} tasuki"));
            (finding.line, says(Kind::Build), says(Kind::Dev))
        })
        .collect();
    told.sort_unstable();
    assert_eq!(
        told,
        [(5, false, false), (7, true, false), (9, false, true)]
    );
    Ok(())
}
