//! Who follows an inbox hears of what is new in it at once, on whichever process it was delivered.
//!
//! A ring says that some inbox has something new; the process then asks once, for all the users
//! who are followed here, how far their inboxes are. Followers read what they miss from the
//! database by number, so a lost ring costs at most one poll, and never a notification. How many
//! may follow at a time is limited: each holds a connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use tasuki::worker::{Error, Tick, Wake, Worker};
use tokio::sync::watch;

use crate::config::LiveStream;
use crate::store::inbox;

/// Streams that are open in this process. No alert; compare it with
/// `notification.live-stream.per-process`.
const OPEN: &str = "tasuki_notification_streams_open";
/// How late a follower hears when a ring got lost.
const POLL: Duration = Duration::from_secs(2);

/// The inboxes that are followed in this process. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Followed {
    open: Arc<Mutex<Open>>,
    limits: LiveStream,
}

#[derive(Debug, Default)]
struct Open {
    inboxes: HashMap<String, Inbox>,
    followers: usize,
}

#[derive(Debug)]
struct Inbox {
    head: watch::Sender<i64>,
    followers: usize,
}

/// Follows one inbox.
#[derive(Debug)]
pub(crate) struct Follower {
    user: String,
    followed: Followed,
    head: watch::Receiver<i64>,
}

/// Why nobody more can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// This user has as many streams here as one may have.
    User,
    /// This process has as many as it may have.
    Process,
}

impl Followed {
    /// Nobody follows yet, and at most so many will.
    pub(crate) fn new(limits: LiveStream) -> Self {
        Self {
            open: Arc::default(),
            limits,
        }
    }

    /// Follows the inbox of `user`, unless too many do.
    pub(crate) fn follow(&self, user: &str) -> Result<Follower, Full> {
        let mut open = self.open();
        let of_user = open.inboxes.get(user).map_or(0, |it| it.followers);
        if of_user >= self.limits.per_user {
            return Err(Full::User);
        }
        if open.followers >= self.limits.per_process {
            return Err(Full::Process);
        }
        open.followers += 1;
        metrics::gauge!(OPEN).increment(1.0);
        let inbox = open
            .inboxes
            .entry(user.to_owned())
            .or_insert_with(|| Inbox {
                head: watch::Sender::new(0),
                followers: 0,
            });
        inbox.followers += 1;
        Ok(Follower {
            user: user.to_owned(),
            followed: self.clone(),
            head: inbox.head.subscribe(),
        })
    }

    fn users(&self) -> Vec<String> {
        self.open().inboxes.keys().cloned().collect()
    }

    fn tell(&self, heads: Vec<(String, i64)>) {
        let open = self.open();
        for (user, head) in heads {
            if let Some(inbox) = open.inboxes.get(&user) {
                inbox.head.send_if_modified(|known| {
                    let is_new = *known < head;
                    *known = head.max(*known);
                    is_new
                });
            }
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Follower {
    /// Waits until the inbox is known to have something after `sequence`, or for a while.
    pub(crate) async fn something_after(&mut self, sequence: i64, limit: Duration) {
        let news = self.head.wait_for(|head| *head > sequence);
        // Whether there is news or not, the reader looks.
        drop(tokio::time::timeout(limit, news).await);
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut open = self.followed.open();
        open.followers = open.followers.saturating_sub(1);
        metrics::gauge!(OPEN).decrement(1.0);
        let left = open.inboxes.get_mut(&self.user).map(|inbox| {
            inbox.followers = inbox.followers.saturating_sub(1);
            inbox.followers
        });
        if left == Some(0) {
            open.inboxes.remove(&self.user);
        }
    }
}

/// Tells the followers in this process.
pub(crate) struct Heads {
    pub(crate) followed: Followed,
    pub(crate) pool: PgPool,
    pub(crate) wake: Wake,
}

impl Worker for Heads {
    fn name(&self) -> &str {
        "notification.followers"
    }

    fn poll_interval(&self) -> Duration {
        POLL
    }

    fn wake(&self) -> Wake {
        self.wake.clone()
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let users = self.followed.users();
        if !users.is_empty() {
            let mut connection = self.pool.acquire().await?;
            self.followed
                .tell(inbox::heads(&mut connection, &users).await?);
        }
        Ok(Tick::Idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_most(per_user: usize, per_process: usize) -> Followed {
        Followed::new(LiveStream {
            lifetime: Duration::MAX,
            per_user,
            per_process,
        })
    }

    #[tokio::test]
    async fn followers_hear_of_their_inbox_and_are_forgotten_when_they_leave() {
        let followed = at_most(9, 9);
        let (mut a, mut b) = (followed.follow("a").unwrap(), followed.follow("b").unwrap());
        followed.tell(vec![("a".to_owned(), 3), ("nobody".to_owned(), 9)]);
        let long = Duration::from_secs(60);
        a.something_after(2, long).await;
        b.something_after(0, Duration::from_millis(10)).await;
        let twin = followed.follow("a").unwrap();
        drop(a);
        assert_eq!(followed.users().len(), 2, "the twin still follows");
        drop((twin, b));
        assert!(followed.users().is_empty());
    }

    #[test]
    fn whoever_leaves_makes_room_for_another() {
        let followed = at_most(2, 3);
        let full = |user: &str| followed.follow(user).err();
        let (first, _second) = (followed.follow("a").unwrap(), followed.follow("a").unwrap());
        assert_eq!(full("a"), Some(Full::User));
        let other = followed.follow("b").unwrap();
        assert_eq!(full("c"), Some(Full::Process));
        drop(first);
        assert_eq!(full("a"), None);
        drop(other);
        let _third = followed.follow("a").unwrap();
        assert_eq!(full("b"), None);
    }
}
