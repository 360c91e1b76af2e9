//! Member manifests: lints are inherited, and versions live only in the workspace manifest.

use toml::de::{DeTable, DeValue};

use crate::{Finding, Tree, imports::Kind, source::line_at};

/// The names of the dependency tables, and what each is for.
const TABLES: [(&str, Kind); 3] = [
    ("dependencies", Kind::Normal),
    ("build-dependencies", Kind::Build),
    ("dev-dependencies", Kind::Dev),
];

/// A dependency as it is written.
struct Declared {
    name: String,
    kind: Kind,
    line: usize,
    inherited: bool,
}

/// Checks every `Cargo.toml` that describes a package.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let manifests = tree
        .files()
        .iter()
        .filter(|file| file.name() == "Cargo.toml");
    for file in manifests {
        let mut tell = |line, message| findings.push(Finding::new(&file.path, line, message));
        let manifest = match DeTable::parse(&file.text) {
            Ok(manifest) => manifest.into_inner(),
            Err(error) => {
                tell(1, format!("a manifest is TOML: {}", error.message()));
                continue;
            }
        };
        // A package that is a workspace of its own has nothing to inherit: the benchmark's peers.
        if !manifest.contains_key("package") || manifest.contains_key("workspace") {
            continue;
        }
        let lints = table(&manifest, "lints");
        if !lints.is_some_and(is_inherited) {
            tell(
                1,
                "lints live in the workspace: add `[lints]` with `workspace = true`".to_owned(),
            );
        }
        for dependency in declared(&manifest, &file.text) {
            if !dependency.inherited {
                let name = dependency.name;
                let message = format!(
                    "versions live in the workspace: declare {name} there \
                     and write `{name}.workspace = true`"
                );
                tell(dependency.line, message);
            }
        }
    }
    findings
}

/// The line that declares this dependency; 1 if none does.
pub(crate) fn line_of(manifest: &str, kind: Kind, name: &str) -> usize {
    let Ok(parsed) = DeTable::parse(manifest) else {
        return 1;
    };
    let mut all = declared(parsed.get_ref(), manifest).into_iter();
    all.find(|declared| declared.kind == kind && declared.name == name)
        .map_or(1, |declared| declared.line)
}

fn declared(manifest: &DeTable<'_>, text: &str) -> Vec<Declared> {
    let mut found = Vec::new();
    let targets = table(manifest, "target").into_iter();
    let targets = targets.flat_map(|targets| targets.values());
    let targets = targets.filter_map(|target| as_table(target.get_ref()));
    for holder in std::iter::once(manifest).chain(targets) {
        for (name, kind) in TABLES {
            for (key, value) in table(holder, name).into_iter().flatten() {
                found.push(Declared {
                    name: key.get_ref().to_string(),
                    kind,
                    line: line_at(text, key.span().start),
                    inherited: as_table(value.get_ref()).is_some_and(is_inherited),
                });
            }
        }
    }
    found
}

fn table<'a, 'i>(holder: &'a DeTable<'i>, name: &str) -> Option<&'a DeTable<'i>> {
    as_table(holder.get(name)?.get_ref())
}

fn as_table<'a, 'i>(value: &'a DeValue<'i>) -> Option<&'a DeTable<'i>> {
    match value {
        DeValue::Table(table) => Some(table),
        _ => None,
    }
}

fn is_inherited(table: &DeTable<'_>) -> bool {
    let workspace = table.get("workspace").map(|value| value.get_ref());
    matches!(workspace, Some(DeValue::Boolean(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: [usize; 0] = [];

    const HEAD: &str = "[package]\nname = \"a\"\n[lints]\nworkspace = true\n";

    fn lines(manifest: &str) -> Vec<usize> {
        let tree = Tree::of(&[("crates/a/Cargo.toml", manifest)]);
        check(&tree)
            .into_iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn a_manifest_that_inherits_is_clean() {
        let ways = "[dependencies]\na.workspace = true\n\
                    b = { workspace = true, features = [\"x\"] }\n\
                    [dev-dependencies.c]\nworkspace = true\n";
        assert_eq!(lines(&format!("{HEAD}{ways}")), CLEAN);
    }

    #[test]
    fn the_workspace_manifest_is_where_versions_live() {
        assert_eq!(lines("[workspace.dependencies]\na = \"1\"\n"), CLEAN);
    }

    #[test]
    fn a_package_that_is_its_own_workspace_inherits_nothing() {
        let peer = "[package]\nname = \"a\"\n[workspace]\n[dependencies]\nb = \"1\"\n";
        assert_eq!(lines(peer), CLEAN);
    }

    #[test]
    fn lints_that_are_not_inherited_are_a_finding() {
        assert_eq!(lines("[package]\nname = \"a\"\n"), [1]);
        assert_eq!(
            lines("[package]\nname = \"a\"\n[lints]\nworkspace = false\n"),
            [1]
        );
        assert_eq!(
            lines("[package]\nname = \"a\"\n[lints.rust]\nunsafe_code = \"forbid\"\n"),
            [1]
        );
    }

    #[test]
    fn a_version_in_a_member_is_a_finding_in_every_kind_of_table() {
        for section in [
            "dependencies",
            "build-dependencies",
            "dev-dependencies",
            "target.'cfg(unix)'.dependencies",
        ] {
            for value in [
                "\"1\"",
                "{ version = \"1\" }",
                "{ path = \"../b\" }",
                "{ git = \"x\" }",
            ] {
                let manifest = format!("{HEAD}[{section}]\nb = {value}\n");
                assert_eq!(lines(&manifest), [6], "{section} {value}");
            }
        }
    }

    #[test]
    fn a_manifest_that_does_not_parse_is_a_finding() {
        assert_eq!(lines("[package"), [1]);
    }

    #[test]
    fn a_dependency_is_found_in_the_table_of_its_kind() {
        let manifest =
            "[dependencies]\na.workspace = true\n[dev-dependencies]\nb = \"1\"\na = \"1\"\n";
        assert_eq!(line_of(manifest, Kind::Normal, "a"), 2);
        assert_eq!(line_of(manifest, Kind::Dev, "a"), 5);
        assert_eq!(line_of(manifest, Kind::Build, "a"), 1);
    }
}
