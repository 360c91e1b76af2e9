//! The keys of one service: the newest signs, all are published.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use jsonwebtoken::EncodingKey;
use tasuki::Clock;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Error, files};
use crate::auth::credentials::is_word;

/// How often the folder is looked at, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a key is published before it signs. Longer than [`LOOK_EVERY`]: whichever process
/// of this service a callee asks for an unknown key, that one has seen it too.
const PUBLISH_FIRST: Duration = Duration::from_secs(2);

/// The signing keys of one service, in a folder that all its processes share. A running ring
/// notices within a second what another process, or a person, adds or removes. A clone is the
/// same ring.
#[derive(Clone)]
pub struct KeyRing(Arc<Inner>);

struct Inner {
    service: String,
    folder: PathBuf,
    clock: Clock,
    state: Mutex<State>,
}

struct State {
    /// Oldest first, never empty.
    keys: Vec<Arc<Key>>,
    looked_at: OffsetDateTime,
}

pub(super) struct Key {
    pub(super) kid: Uuid,
    pub(super) private: EncodingKey,
    pub(super) public: Vec<u8>,
    seen_at: OffsetDateTime,
}

impl KeyRing {
    /// The ring of `service` in `<key_dir>/<service>`.
    ///
    /// # Errors
    /// When there is no key, or one can't be used.
    pub fn open(key_dir: &Path, service: &str, clock: &Clock) -> Result<Self, Error> {
        let folder = folder(key_dir, service)?;
        let now = clock.now();
        let keys = load(&folder, &[], now)?;
        Ok(Self(Arc::new(Inner {
            service: service.to_owned(),
            folder,
            clock: clock.clone(),
            state: Mutex::new(State {
                keys,
                looked_at: now,
            }),
        })))
    }

    /// The same, and makes folder and first key where they are missing. Of two processes that
    /// do so at once, one makes the key and both use it.
    ///
    /// # Errors
    /// When the folder can't be written, or a key can't be used.
    pub fn open_or_create(key_dir: &Path, service: &str, clock: &Clock) -> Result<Self, Error> {
        let folder = folder(key_dir, service)?;
        if files::list(&folder)?.is_empty() {
            files::make_folder(&folder)?;
            let _lock = files::lock(&folder)?;
            // Again under the lock: the other process may have been first.
            if files::list(&folder)?.is_empty() {
                files::create(&folder, next_kid(None, clock)?)?;
            }
        }
        Self::open(key_dir, service, clock)
    }

    /// Whose keys these are: the issuer of its tokens.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.0.service
    }

    /// The ids of the published keys, oldest first.
    #[must_use]
    pub fn kids(&self) -> Vec<String> {
        self.keys().iter().map(|key| key.kid.to_string()).collect()
    }

    /// Adds a key and says its id. Every process publishes it within a second and signs with
    /// it two seconds later; tokens of the older keys stay valid.
    ///
    /// # Errors
    /// When the folder can't be written.
    pub fn rotate(&self) -> Result<String, Error> {
        let _lock = files::lock(&self.0.folder)?;
        let newest = files::list(&self.0.folder)?.pop();
        let kid = next_kid(newest, &self.0.clock)?;
        files::create(&self.0.folder, kid)?;
        self.look_again()?;
        Ok(kid.to_string())
    }

    /// Removes all but the newest `keep` keys and says how many went. Callees believe a removed
    /// key until they fetch again (`auth.jwks-cache`); tokens that it signed end with that.
    ///
    /// # Errors
    /// When the folder can't be written.
    pub fn prune(&self, keep: NonZeroUsize) -> Result<usize, Error> {
        let _lock = files::lock(&self.0.folder)?;
        let kids = files::list(&self.0.folder)?;
        let old = kids.len().saturating_sub(keep.get());
        for kid in kids.into_iter().take(old) {
            files::remove(&self.0.folder, kid)?;
        }
        self.look_again()?;
        Ok(old)
    }

    /// The key that signs now: the newest that has been published for long enough.
    pub(super) fn signing(&self) -> Result<Arc<Key>, Error> {
        let (keys, now) = (self.keys(), self.0.clock.now());
        let published = |key: &&Arc<Key>| now - key.seen_at >= PUBLISH_FIRST;
        let newest = keys.iter().rev().find(published);
        newest
            .or(keys.first())
            .cloned()
            .ok_or_else(|| Error::NoKey {
                folder: self.0.folder.clone(),
            })
    }

    /// All keys, oldest first; looks at the folder when it is time.
    pub(super) fn keys(&self) -> Vec<Arc<Key>> {
        let now = self.0.clock.now();
        let mut state = self.state();
        // A clock that was set back makes us look, rather than wait for it.
        if now < state.looked_at || now - state.looked_at >= LOOK_EVERY {
            state.looked_at = now;
            match load(&self.0.folder, &state.keys, now) {
                Ok(keys) => state.keys = keys,
                // Better the keys that we have than none.
                Err(error) => tracing::warn!(
                    service = %self.0.service,
                    error = &error as &(dyn std::error::Error + 'static),
                    "signing keys could not be read again",
                ),
            }
        }
        state.keys.clone()
    }

    fn look_again(&self) -> Result<(), Error> {
        let now = self.0.clock.now();
        let mut state = self.state();
        state.keys = load(&self.0.folder, &state.keys, now)?;
        state.looked_at = now;
        Ok(())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRing")
            .field("service", &self.0.service)
            .field("folder", &self.0.folder)
            .finish_non_exhaustive()
    }
}

fn folder(key_dir: &Path, service: &str) -> Result<PathBuf, Error> {
    if is_word(service) {
        Ok(key_dir.join(service))
    } else {
        Err(Error::BadService(service.to_owned()))
    }
}

/// The keys in `folder`; those in `known` are not read again, because a key never changes.
fn load(folder: &Path, known: &[Arc<Key>], now: OffsetDateTime) -> Result<Vec<Arc<Key>>, Error> {
    let mut keys = Vec::new();
    for kid in files::list(folder)? {
        if let Some(key) = known.iter().find(|key| key.kid == kid) {
            keys.push(Arc::clone(key));
        } else if let Some(pair) = files::read(folder, kid)? {
            keys.push(Arc::new(Key {
                kid,
                private: pair.private,
                public: pair.public,
                seen_at: now,
            }));
        }
    }
    if keys.is_empty() {
        return Err(Error::NoKey {
            folder: folder.to_owned(),
        });
    }
    Ok(keys)
}

/// A time-ordered id after `newest`, even when this machine's clock is behind the one that
/// made it.
fn next_kid(newest: Option<Uuid>, clock: &Clock) -> Result<Uuid, Error> {
    let now = u64::try_from(clock.now().unix_timestamp_nanos() / 1_000_000).unwrap_or(0);
    let newest = newest
        .and_then(|kid| kid.get_timestamp())
        .map_or(0, |stamp| {
            let (seconds, nanos) = stamp.to_unix();
            seconds.saturating_mul(1000) + u64::from(nanos / 1_000_000)
        });
    let mut random = [0; 10];
    SystemRandom::new()
        .fill(&mut random)
        .map_err(|_unspecified| Error::Crypto)?;
    let millis = now.max(newest.saturating_add(1));
    Ok(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn clock() -> Clock {
        Clock::held_at(OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000))
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn an_empty_folder_gets_its_first_key_only_when_asked() {
        let home = tempfile::tempdir().unwrap();
        let refused = KeyRing::open(home.path(), "shop", &clock()).unwrap_err();
        let folder = home.path().join("shop");
        assert!(refused.to_string().contains(&folder.display().to_string()));
        assert!(!folder.exists());

        let made = KeyRing::open_or_create(home.path(), "shop", &clock()).unwrap();
        let found = KeyRing::open(home.path(), "shop", &clock()).unwrap();
        assert_eq!(made.kids(), found.kids());
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&folder.join(format!("{}.pem", made.kids()[0]))), 0o600);
    }

    #[test]
    fn processes_that_start_at_once_end_with_the_same_key() {
        let home = tempfile::tempdir().unwrap();
        let barrier = std::sync::Barrier::new(8);
        let kids: Vec<_> = std::thread::scope(|scope| {
            let start = || {
                barrier.wait();
                let ring = KeyRing::open_or_create(home.path(), "shop", &Clock::system());
                ring.unwrap().signing().unwrap().kid
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(kids.iter().all(|kid| *kid == kids[0]), "{kids:?}");
        let files = fs::read_dir(home.path().join("shop")).unwrap().count();
        assert_eq!(files, 2, "one key and the lock");
    }

    #[test]
    fn a_rotated_key_is_published_within_a_second_and_signs_two_seconds_later() {
        let home = tempfile::tempdir().unwrap();
        let clock = clock();
        let running = KeyRing::open_or_create(home.path(), "shop", &clock).unwrap();
        let first = running.signing().unwrap().kid.to_string();
        let tool = KeyRing::open(home.path(), "shop", &clock).unwrap();
        let second = tool.rotate().unwrap();

        assert_eq!(running.kids().len(), 1);
        clock.advance(LOOK_EVERY);
        assert_eq!(running.kids(), [first.clone(), second.clone()]);
        assert_eq!(running.signing().unwrap().kid.to_string(), first);
        clock.advance(PUBLISH_FIRST);
        assert_eq!(running.signing().unwrap().kid.to_string(), second);
    }

    #[test]
    fn a_new_key_is_the_newest_even_from_a_machine_whose_clock_is_behind() {
        let home = tempfile::tempdir().unwrap();
        let ring = KeyRing::open_or_create(home.path(), "shop", &clock()).unwrap();
        let behind = Clock::held_at(OffsetDateTime::UNIX_EPOCH);
        let other = KeyRing::open(home.path(), "shop", &behind).unwrap();
        let (second, third) = (other.rotate().unwrap(), other.rotate().unwrap());
        assert_eq!(other.kids(), [ring.kids()[0].clone(), second, third]);
    }

    #[test]
    fn pruning_keeps_the_newest() {
        let home = tempfile::tempdir().unwrap();
        let ring = KeyRing::open_or_create(home.path(), "shop", &clock()).unwrap();
        let kept = [ring.rotate().unwrap(), ring.rotate().unwrap()];
        let two = NonZeroUsize::new(2).unwrap();
        assert_eq!(ring.prune(two).unwrap(), 1);
        assert_eq!(ring.kids(), kept);
        assert_eq!(ring.prune(two).unwrap(), 0);
    }

    #[test]
    fn a_running_ring_keeps_its_keys_when_the_folder_goes_bad() {
        let home = tempfile::tempdir().unwrap();
        let clock = clock();
        let ring = KeyRing::open_or_create(home.path(), "shop", &clock).unwrap();
        let before = ring.kids();
        fs::remove_dir_all(home.path().join("shop")).unwrap();
        clock.advance(LOOK_EVERY);
        assert_eq!(ring.kids(), before);
        assert!(ring.signing().is_ok());
    }

    #[test]
    fn a_file_that_is_no_key_or_that_everyone_can_read_is_refused_by_name() {
        let home = tempfile::tempdir().unwrap();
        let ring = KeyRing::open_or_create(home.path(), "shop", &clock()).unwrap();
        let key = home
            .path()
            .join("shop")
            .join(format!("{}.pem", ring.kids()[0]));
        let refused = || {
            let refused = KeyRing::open(home.path(), "shop", &clock()).unwrap_err();
            refused.to_string()
        };

        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refused().contains("readable by everyone"), "{}", refused());
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(
            &key,
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        )
        .unwrap();
        assert!(refused().contains("is not an Ed25519 key"), "{}", refused());
        fs::rename(&key, home.path().join("shop/my-key.pem")).unwrap();
        assert!(refused().contains("my-key.pem"), "{}", refused());
    }

    #[test]
    fn a_service_name_that_leaves_the_folder_is_refused() {
        for name in ["", "..", "a/b", "/etc", "Shop", "a b"] {
            let refused = KeyRing::open_or_create(Path::new("/nowhere"), name, &clock());
            assert!(matches!(refused, Err(Error::BadService(_))), "{name}");
        }
    }
}
