//! Who may import whom, from `cargo metadata`.
//!
//! The table is `may_import`; a crate without a row is itself a finding, so the table cannot fall
//! behind the tree. Normal and build dependencies obey the row. Dev-dependencies may add what tests
//! need (`FOR_TESTS`), and the testkit is reachable only that way. Packages in `tests/` see the
//! system from outside and may import anything. `bench/` is one package, with a row.

use std::{collections::HashMap, fmt, fs, path::Path};

use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::{Finding, manifests};

const LIBRARY: &str = "tasuki";
const CONTRACT: &str = "tasuki-contract";
const SERVICE: &str = "tasuki-service";
const STACK: &str = "tasuki-stack";
const TESTKIT: &str = "tasuki-testkit";
const BENCH: &str = "tasuki-bench";
/// Where it lives, alone: the folder has the scenario's files beside the package.
const BENCH_FOLDER: &str = "bench";

/// What dev-dependencies of library and service crates may import beyond their row.
const FOR_TESTS: [&str; 2] = [TESTKIT, STACK];

/// Services whose tests run another one beside them, and speak to it over HTTP as in production.
const BESIDE: [(&str, &str); 1] = [("tasuki-shop", "tasuki-entitlement")];

/// What a crate may import of ours.
#[derive(Clone, Copy, Debug)]
enum Row {
    /// Only these, in every kind of dependency.
    Only(&'static [&'static str]),
    /// Only these, and [`FOR_TESTS`] as dev-dependencies.
    Tested(&'static [&'static str]),
    /// Every crate, but the testkit only as a dev-dependency.
    Everything,
}

/// The table. `None`: the crate has no row yet.
fn may_import(package: &str) -> Option<Row> {
    let row = match package {
        LIBRARY => Row::Tested(&[]),
        CONTRACT => Row::Tested(&[LIBRARY]),
        SERVICE => Row::Tested(&[CONTRACT, LIBRARY]),
        // Services never import each other: they share ids, bodies and events through the contract.
        "tasuki-account"
        | "tasuki-community"
        | "tasuki-console"
        | "tasuki-entitlement"
        | "tasuki-gateway"
        | "tasuki-matchmaking"
        | "tasuki-notification"
        | "tasuki-shop"
        | "tasuki-system"
        | "tasuki-devidp" => Row::Tested(&[SERVICE, CONTRACT, LIBRARY]),
        STACK => Row::Only(&[]),
        TESTKIT => Row::Only(&[LIBRARY, CONTRACT, SERVICE, STACK]),
        "tasuki-cli" | BENCH => Row::Everything,
        _ => return None,
    };
    Some(row)
}

/// What a dependency is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `[dependencies]`
    Normal,
    /// `[build-dependencies]`
    Build,
    /// `[dev-dependencies]`
    Dev,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Normal => "dependency",
            Self::Build => "build-dependency",
            Self::Dev => "dev-dependency",
        })
    }
}

/// A dependency as a manifest declares it.
#[derive(Clone, Debug)]
pub struct Dependency {
    /// The package, not what it may be renamed to.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// Its line in the manifest.
    pub line: usize,
}

/// A member of the workspace.
#[derive(Clone, Debug)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its folder, from the root: `crates/tasuki`.
    pub folder: String,
    /// What it imports, ours and others'.
    pub dependencies: Vec<Dependency>,
}

/// The members of the workspace at `root`.
pub fn packages(root: &Path) -> Result<Vec<Package>, cargo_metadata::Error> {
    let mut command = MetadataCommand::new();
    command.manifest_path(root.join("Cargo.toml")).no_deps();
    let metadata = command.exec()?;
    // Cargo's spelling of the root: ours may go through a link.
    let root = metadata.workspace_root.as_std_path();
    let members = metadata.workspace_packages().into_iter();
    Ok(members.map(|package| member(root, package)).collect())
}

fn member(root: &Path, package: &cargo_metadata::Package) -> Package {
    let manifest = package.manifest_path.as_std_path();
    let folder = manifest.parent().unwrap_or(root);
    let folder = folder.strip_prefix(root).unwrap_or(folder);
    // Cargo has just read it; without the text a finding only loses its line.
    let text = fs::read_to_string(manifest).unwrap_or_default();
    let dependencies = package.dependencies.iter().map(|dependency| {
        let key = dependency.rename.as_ref().unwrap_or(&dependency.name);
        let kind = match dependency.kind {
            DependencyKind::Build => Kind::Build,
            DependencyKind::Development => Kind::Dev,
            _ => Kind::Normal,
        };
        Dependency {
            name: dependency.name.clone(),
            kind,
            line: manifests::line_of(&text, kind, key),
        }
    });
    Package {
        name: package.name.to_string(),
        folder: folder.to_string_lossy().replace('\\', "/"),
        dependencies: dependencies.collect(),
    }
}

/// Checks every package against the table, and that its folder has its name.
pub fn check(packages: &[Package]) -> Vec<Finding> {
    let homes = packages.iter().map(|p| (p.name.as_str(), home(&p.folder)));
    let homes: HashMap<&str, &str> = homes.collect();
    let mut findings = Vec::new();
    for package in packages {
        let manifest = format!("{}/Cargo.toml", package.folder);
        let mut tell = |line, message| findings.push(Finding::new(&manifest, line, message));
        let name = &package.name;
        let is_bench = name == BENCH && package.folder == BENCH_FOLDER;
        if !is_bench && package.folder.rsplit('/').next() != Some(name) {
            tell(
                1,
                format!("a folder has its package's name: rename one of them (package {name})"),
            );
        }
        let row = match home(&package.folder) {
            "tests" => continue,
            "crates" => may_import(name),
            BENCH_FOLDER if is_bench => may_import(name),
            _ => {
                tell(
                    1,
                    format!("packages live in crates/ or tests/: move {name} to one of them"),
                );
                continue;
            }
        };
        let Some(row) = row else {
            tell(
                1,
                format!(
                    "every crate has a row: add {name} to the table in tests/tidy (may_import)"
                ),
            );
            continue;
        };
        for dependency in &package.dependencies {
            let pair = (name.as_str(), dependency.name.as_str());
            let beside = dependency.kind == Kind::Dev && BESIDE.contains(&pair);
            if is_ours(&homes, &dependency.name) && !beside && !allows(row, dependency, &homes) {
                tell(dependency.line, refusal(name, row, dependency));
            }
        }
    }
    findings
}

/// The first folder of a path.
fn home(folder: &str) -> &str {
    folder.split('/').next().unwrap_or_default()
}

fn is_ours(homes: &HashMap<&str, &str>, name: &str) -> bool {
    homes.contains_key(name) || name == LIBRARY || name.starts_with("tasuki-")
}

fn allows(row: Row, dependency: &Dependency, homes: &HashMap<&str, &str>) -> bool {
    let name = dependency.name.as_str();
    let for_tests = dependency.kind == Kind::Dev && FOR_TESTS.contains(&name);
    match row {
        Row::Only(may) => may.contains(&name),
        Row::Tested(may) => may.contains(&name) || for_tests,
        Row::Everything => {
            for_tests || (name != TESTKIT && homes.get(name).is_none_or(|home| *home == "crates"))
        }
    }
}

fn refusal(name: &str, row: Row, dependency: &Dependency) -> String {
    let may = match row {
        Row::Only(may) | Row::Tested(may) if may.is_empty() => "nothing of ours".to_owned(),
        Row::Only(may) | Row::Tested(may) => format!("only {}", may.join(", ")),
        Row::Everything => "every crate but tasuki-testkit".to_owned(),
    };
    let also = match row {
        Row::Only(_) => "",
        Row::Tested(_) => ", and in tests tasuki-testkit and tasuki-stack",
        Row::Everything => ", and that one in tests",
    };
    let (other, kind) = (&dependency.name, dependency.kind);
    format!(
        "{name} may import {may}{also}: remove the {kind} {other}, or share the thing lower down"
    )
}

#[cfg(test)]
mod tests;
