//! The definitions of this release, versions side by side.

use std::sync::Arc;

use super::define::{Declared, Definition, Invalid, Shape};

/// The definitions that a process can run. An old version stays here until no saga of it is left.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    definitions: Vec<Arc<Declared>>,
}

impl Registry {
    /// A registry that knows nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Knows `definition`, too.
    #[must_use]
    pub fn with<I>(mut self, definition: &Definition<I>) -> Self {
        self.definitions.push(Arc::clone(&definition.declared));
        self
    }

    /// The steps of a definition, if it is known here.
    #[must_use]
    pub fn shape(&self, name: &str, version: u32) -> Option<Vec<Shape>> {
        let version = i32::try_from(version).ok()?;
        self.get(name, version).map(|declared| declared.shape())
    }

    pub(super) fn get(&self, name: &str, version: i32) -> Option<&Arc<Declared>> {
        let is_it =
            |known: &&Arc<Declared>| known.name == name && known.stored_version() == version;
        self.definitions.iter().find(is_it)
    }

    pub(super) fn knows(&self, declared: &Arc<Declared>) -> bool {
        self.get(&declared.name, declared.stored_version())
            .is_some_and(|known| Arc::ptr_eq(known, declared))
    }

    /// Names and versions as a claim wants them.
    pub(super) fn known(&self) -> (Vec<String>, Vec<i32>) {
        let both = self.definitions.iter();
        both.map(|known| (known.name.clone(), known.stored_version()))
            .unzip()
    }

    /// Every definition.
    pub(super) fn all(&self) -> Vec<&Declared> {
        self.definitions.iter().map(|known| &**known).collect()
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        for known in &self.definitions {
            let first = self.get(&known.name, known.stored_version());
            if !first.is_some_and(|first| Arc::ptr_eq(first, known)) {
                return Err(Invalid::Version {
                    name: known.name.clone(),
                    version: known.version,
                });
            }
        }
        Ok(())
    }
}
