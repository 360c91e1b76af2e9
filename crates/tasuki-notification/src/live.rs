//! Who follows an inbox hears of what is new in it at once, on whichever process it was delivered.
//!
//! A ring says that some inbox has something new; the process then asks once, for all the users
//! who are followed here, how far their inboxes are. Followers read what they miss from the
//! database by number, so a lost ring costs at most one poll, and never a notification.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use tasuki::worker::{Error, Tick, Wake, Worker};
use tokio::sync::watch;

use crate::store::inbox;

/// How late a follower hears when a ring got lost.
const POLL: Duration = Duration::from_secs(2);

/// The inboxes that are followed in this process. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Followed(Arc<Mutex<HashMap<String, watch::Sender<i64>>>>);

/// Follows one inbox.
#[derive(Debug)]
pub(crate) struct Follower {
    user: String,
    followed: Followed,
    head: watch::Receiver<i64>,
}

impl Followed {
    /// Follows the inbox of `user`.
    pub(crate) fn follow(&self, user: &str) -> Follower {
        let mut all = self.all();
        let sender = all
            .entry(user.to_owned())
            .or_insert_with(|| watch::Sender::new(0));
        Follower {
            user: user.to_owned(),
            followed: self.clone(),
            head: sender.subscribe(),
        }
    }

    fn users(&self) -> Vec<String> {
        self.all().keys().cloned().collect()
    }

    fn tell(&self, heads: Vec<(String, i64)>) {
        let all = self.all();
        for (user, head) in heads {
            if let Some(sender) = all.get(&user) {
                sender.send_if_modified(|known| {
                    let is_new = *known < head;
                    *known = head.max(*known);
                    is_new
                });
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<i64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut all = self.followed.all();
        // This one's receiver is still there: the last one has no other.
        if all
            .get(&self.user)
            .is_some_and(|sender| sender.receiver_count() <= 1)
        {
            all.remove(&self.user);
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

    #[tokio::test]
    async fn followers_hear_of_their_inbox_and_are_forgotten_when_they_leave() {
        let followed = Followed::default();
        let (mut a, mut b) = (followed.follow("a"), followed.follow("b"));
        followed.tell(vec![("a".to_owned(), 3), ("nobody".to_owned(), 9)]);
        let long = Duration::from_secs(60);
        a.something_after(2, long).await;
        b.something_after(0, Duration::from_millis(10)).await;
        let twin = followed.follow("a");
        drop(a);
        assert_eq!(followed.users().len(), 2, "the twin still follows");
        drop((twin, b));
        assert!(followed.users().is_empty());
    }
}
