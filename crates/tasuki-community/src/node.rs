//! What the node itself says: events that it signs, published as those of anybody else.
//!
//! Each subject has a key of its own (NIP-85 asks for one per algorithm), in a file that all processes of
//! the service share. A signature depends on nothing but key and words, so an event that is made again
//! after a crash, by a replay or by another process is the same event, and known.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sqlx::PgConnection;

use crate::NAME;
use crate::domain::Verdict;
use crate::ingest::{self, Arrival};
use crate::nostr::{Key, Signer};

/// Permissions of everybody else.
const OTHERS: u32 = 0o007;

/// What the node says things about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voice {
    /// Labels, and reports that were brought by HTTP.
    Moderation,
    /// How risky somebody is, by what others report.
    Risk,
    /// How much somebody is talked with.
    Density,
}

impl Voice {
    const ALL: [Self; 3] = [Self::Moderation, Self::Risk, Self::Density];

    const fn file(self) -> &'static str {
        match self {
            Self::Moderation => "moderation.key",
            Self::Risk => "trust-risk.key",
            Self::Density => "trust-density.key",
        }
    }
}

/// The keys of the node. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Keys(Arc<[Signer; 3]>);

/// Why the keys can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A file or folder can't be read or written.
    #[error("{path} can't be used: {source}")]
    File {
        /// Which one.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Anybody on the machine can read a secret key.
    #[error("{0} can be read by others: chmod 600")]
    Exposed(PathBuf),
    /// It is something else.
    #[error("{0} is no secret key: 64 digits of lower-case hexadecimal")]
    Bad(PathBuf),
    /// The machine has no random numbers.
    #[error("no random numbers")]
    Random,
}

/// Where they are, in the folder of `auth.key-dir`.
fn folder(key_dir: &Path) -> PathBuf {
    key_dir.join(NAME).join("nostr")
}

/// Makes those that are missing. Of two processes that do so at once, one makes a key and both use it.
///
/// # Errors
/// When the folder can't be written.
pub fn make_keys(key_dir: &Path) -> Result<(), KeyError> {
    let folder = folder(key_dir);
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder);
    made.map_err(at(&folder))?;
    for voice in Voice::ALL {
        let path = folder.join(voice.file());
        if path.exists() {
            continue;
        }
        let (_, secret) = Signer::generate().ok_or(KeyError::Random)?;
        let aside = folder.join(format!(".{}.{}", voice.file(), uuid::Uuid::new_v4()));
        let mut file = OpenOptions::new();
        let file = file.write(true).create_new(true).mode(0o600).open(&aside);
        let written = file.and_then(|mut file| {
            file.write_all(secret.as_bytes())?;
            file.sync_all()
        });
        written.map_err(at(&aside))?;
        // A link, and not a new name: it does not take the place of a key that is there by now.
        let linked = match fs::hard_link(&aside, &path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            other => other,
        };
        fs::remove_file(&aside).map_err(at(&aside))?;
        linked.map_err(at(&path))?;
    }
    Ok(())
}

impl Keys {
    /// Reads them; nothing where nobody has made any: then the node has nothing to say.
    pub(crate) fn open(key_dir: &Path) -> Result<Option<Self>, KeyError> {
        let folder = folder(key_dir);
        if !folder.exists() {
            return Ok(None);
        }
        let read = |voice: Voice| read(folder.join(voice.file()));
        let keys = [
            read(Voice::Moderation)?,
            read(Voice::Risk)?,
            read(Voice::Density)?,
        ];
        Ok(Some(Self(Arc::new(keys))))
    }

    pub(crate) fn of(&self, voice: Voice) -> &Signer {
        let [moderation, risk, density] = &*self.0;
        match voice {
            Voice::Moderation => moderation,
            Voice::Risk => risk,
            Voice::Density => density,
        }
    }

    /// All of them, by the name of their file.
    pub(crate) fn public(&self) -> Vec<(&'static str, String)> {
        let all = Voice::ALL.into_iter();
        all.map(|voice| {
            let name = voice.file().trim_end_matches(".key");
            (name, self.of(voice).key().to_string())
        })
        .collect()
    }

    /// Whether an event of this author is the node's own.
    pub(crate) fn is_own(&self, author: &Key) -> bool {
        self.0.iter().any(|signer| signer.key() == *author)
    }
}

fn read(path: PathBuf) -> Result<Signer, KeyError> {
    let metadata = fs::metadata(&path).map_err(at(&path))?;
    if metadata.mode() & OTHERS != 0 {
        return Err(KeyError::Exposed(path));
    }
    let secret = fs::read_to_string(&path).map_err(at(&path))?;
    Signer::parse(secret.trim_end()).ok_or(KeyError::Bad(path))
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> KeyError {
    let path = path.to_owned();
    move |source| KeyError::File { path, source }
}

/// Publishes events of the node in the caller's transaction: they are stored, told and logged as any
/// others when it commits. `ahead` is how far in the future they may be, in seconds.
pub(crate) async fn publish(
    tx: &mut PgConnection,
    arrivals: &[Arrival],
    ahead: i64,
) -> sqlx::Result<Vec<Verdict>> {
    let mut verdicts = Vec::with_capacity(arrivals.len());
    for arrivals in ingest::within_locks(arrivals) {
        verdicts.extend(ingest::store(tx, arrivals, ahead).await?.verdicts);
    }
    Ok(verdicts)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_are_made_once_and_are_nobody_elses() {
        let home = std::env::temp_dir().join(uuid::Uuid::new_v4().to_string());
        assert!(Keys::open(&home).unwrap().is_none());
        make_keys(&home).unwrap();
        let first = Keys::open(&home).unwrap().unwrap();
        make_keys(&home).unwrap();
        let again = Keys::open(&home).unwrap().unwrap();
        for voice in Voice::ALL {
            assert_eq!(first.of(voice).key(), again.of(voice).key());
            assert!(first.is_own(&again.of(voice).key()));
        }
        assert_ne!(first.of(Voice::Risk).key(), first.of(Voice::Density).key());
        assert!(!first.is_own(&Signer::random().key()));

        let path = folder(&home).join("moderation.key");
        fs::write(&path, "not a key").unwrap();
        assert!(matches!(Keys::open(&home), Err(KeyError::Bad(_))));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
        assert!(matches!(Keys::open(&home), Err(KeyError::Exposed(_))));
        fs::remove_dir_all(&home).unwrap();
    }

    #[test]
    fn what_is_made_again_is_the_same_event() {
        let signer = Signer::random();
        let event = || signer.event(1, 1, Vec::new(), "x".to_owned()).json();
        assert_eq!(event(), event());
        assert!(!format!("{signer:?}").contains("secret"));
    }
}
