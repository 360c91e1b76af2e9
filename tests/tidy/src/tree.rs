//! The files a rule looks at: what git tracks or would track, read once.
//!
//! A root with a `.git` is listed by git, so ignored files never count. Any other root (a source
//! archive, a made-up tree) is walked, without build output.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// Folders that are never source; only the walk needs to know, git has `.gitignore`.
const NOT_SOURCE: [&str; 3] = [".git", ".tasuki", "target"];

/// Variables a git hook exports. They would point our git at the hook's repository, not at ours.
const HOOK_VARIABLES: [&str; 3] = ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"];

/// One text file.
#[derive(Clone, Debug)]
pub struct File {
    /// Path from the root, with `/` between its parts.
    pub path: String,
    /// The whole text.
    pub text: String,
}

impl File {
    /// The last part of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Whether any folder above this file has this name.
    pub fn is_under(&self, folder: &str) -> bool {
        self.folders().any(|part| part == folder)
    }

    /// Whether this is Rust source.
    pub fn is_rust(&self) -> bool {
        self.name().ends_with(".rs")
    }

    /// Whether the whole file is a test: in a `tests/` folder, or the body of `mod tests;`.
    pub fn is_test(&self) -> bool {
        self.is_under("tests") || self.name() == "tests.rs"
    }

    /// Whether this file is in the `src/` of a package in `home`, which is `crates` or `tests`.
    pub fn is_in_src_of(&self, home: &str) -> bool {
        let mut folders = self.folders();
        folders.next() == Some(home) && folders.nth(1) == Some("src")
    }

    fn folders(&self) -> impl Iterator<Item = &str> {
        let above = self.path.rsplit_once('/').map_or("", |(above, _)| above);
        above.split('/')
    }
}

/// Every file of a workspace.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    files: Vec<File>,
    paths: Vec<String>,
}

impl Tree {
    /// Reads the tree below `root`.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut paths = if root.join(".git").exists() {
            list(root)?
        } else {
            walk(root)?
        };
        // Git still lists a tracked file that was just deleted.
        paths.retain(|path| root.join(path).is_file());
        paths.sort();
        let mut files = Vec::new();
        for path in &paths {
            // What is not UTF-8 is not text: it counts as a file, but no rule reads it.
            if let Ok(text) = String::from_utf8(fs::read(root.join(path))?) {
                let path = path.clone();
                files.push(File { path, text });
            }
        }
        Ok(Self { files, paths })
    }

    /// A made-up tree, from paths and texts.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| File {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        });
        let files: Vec<File> = files.collect();
        let paths = files.iter().map(|file| file.path.clone()).collect();
        Self { files, paths }
    }

    /// Every text file.
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// Every Rust file.
    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_rust())
    }

    /// Whether a file has this path, or a folder that holds one. The root is the empty path.
    pub fn holds(&self, path: &str) -> bool {
        let inside = format!("{path}/");
        path.is_empty()
            || self
                .paths
                .iter()
                .any(|file| file == path || file.starts_with(&inside))
    }
}

fn list(root: &Path) -> io::Result<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "-co", "--exclude-standard"]);
    git.current_dir(root);
    for variable in HOOK_VARIABLES {
        git.env_remove(variable);
    }
    let done = git.output()?;
    if !done.status.success() {
        let why = String::from_utf8_lossy(&done.stderr);
        return Err(io::Error::other(format!("git ls-files failed: {why}")));
    }
    let names = String::from_utf8_lossy(&done.stdout);
    let names = names.split('\0').filter(|name| !name.is_empty());
    Ok(names.map(str::to_owned).collect())
}

fn walk(root: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            // A link to a folder is not followed: it could lead round in a circle.
            if !entry.file_type()?.is_dir() {
                found.push(path.to_string_lossy().replace('\\', "/"));
            } else if NOT_SOURCE.iter().all(|name| entry.file_name() != *name) {
                folders.push(path);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_up(root: &Path) -> io::Result<()> {
        for folder in ["src", "target/debug"] {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::write(root.join("src/lib.rs"), "//! Here.\n")?;
        fs::write(root.join("logo.png"), [0xff, 0xfe, 0x00])?;
        fs::write(root.join("target/debug/out.rs"), "")
    }

    fn texts(tree: &Tree) -> Vec<&str> {
        tree.files().iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn a_tree_without_git_is_walked_without_build_output() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        made_up(root.path())?;
        let tree = Tree::read(root.path())?;
        assert_eq!(texts(&tree), ["src/lib.rs"]);
        assert!(
            tree.holds("logo.png"),
            "a file that is not text still exists"
        );
        assert!(tree.holds("src") && !tree.holds("sr") && !tree.holds("target"));
        Ok(())
    }

    #[test]
    fn a_tree_with_git_leaves_out_what_git_ignores_and_what_was_deleted() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        made_up(root.path())?;
        fs::write(root.path().join(".gitignore"), "/target/\n/ours.rs\n")?;
        for name in ["ours.rs", "gone.rs"] {
            fs::write(root.path().join(name), "")?;
        }
        for arguments in [&["init", "-q"][..], &["add", "gone.rs"]] {
            let mut git = Command::new("git");
            for variable in HOOK_VARIABLES {
                git.env_remove(variable);
            }
            assert!(
                git.args(arguments)
                    .current_dir(root.path())
                    .status()?
                    .success()
            );
        }
        fs::remove_file(root.path().join("gone.rs"))?;
        let tree = Tree::read(root.path())?;
        assert_eq!(texts(&tree), [".gitignore", "src/lib.rs"]);
        Ok(())
    }

    #[test]
    fn a_broken_repository_is_an_error_and_not_an_empty_tree() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        fs::write(root.path().join(".git"), "not a repository")?;
        assert!(Tree::read(root.path()).is_err());
        Ok(())
    }

    #[test]
    fn a_file_knows_where_it_is() {
        let file = |path: &str| File {
            path: path.to_owned(),
            text: String::new(),
        };
        assert!(file("crates/a/src/store/x.rs").is_under("store"));
        assert!(!file("crates/a/src/store").is_under("store"));
        assert!(file("crates/a/src/x/y.rs").is_in_src_of("crates"));
        assert!(!file("crates/a/tests/src.rs").is_in_src_of("crates"));
        assert!(file("crates/a/src/tests.rs").is_test());
        assert!(!file("crates/a/src/lib.rs").is_test());
    }
}
