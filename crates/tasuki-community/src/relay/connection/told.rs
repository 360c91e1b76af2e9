//! What a client is told: answers, stored events, news.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::ws::Message;
use tokio::time::{Instant, timeout};

use super::super::live::Told;
use super::super::outgoing::LiveEvent;
use super::super::stored::{self, Ready};
use super::super::subscriptions::Subscription;
use super::{ASKED, Client, Done, End, Phase, REMEMBER, SENT, too_slow};
use crate::nostr::{Answer, Id, Prefix, Refusal};

impl Client {
    pub(super) async fn done(&mut self, done: Done) -> Result<(), End> {
        match done {
            Done::Published(answer) => self.answer(&answer).await,
            Done::Counted(name, Ok(count)) => self.answer(&Answer::Count(name, count)).await,
            Done::Counted(name, Err(refusal)) => self.close(name, refusal).await,
            Done::Found(subscription, Ok(found), _turn) => self.found(subscription, found).await,
            Done::Found(subscription, Err(refusal), _turn) => {
                if self.is_open(&subscription) {
                    self.close(subscription.name, refusal).await?;
                }
                Ok(())
            }
        }
    }

    fn is_open(&self, subscription: &Subscription) -> bool {
        let open = self.open.get(&subscription.name);
        open.is_some_and(|open| open.number == subscription.number)
    }

    /// Sends what is stored, EOSE, and what has come meanwhile.
    async fn found(&mut self, subscription: Subscription, found: Vec<Ready>) -> Result<(), End> {
        if !self.is_open(&subscription) {
            return Ok(());
        }
        let name = serde_json::to_string(&subscription.name).unwrap_or_default();
        let Ok(sending) = timeout(SENT, self.send_stored(&name, found)).await else {
            return Err(too_slow());
        };
        let handed_over = match sending? {
            Some(sent) => {
                let news = self.still_news(&subscription, &sent).await?;
                news.map(|news| (sent, news))
            }
            None => None,
        };
        let Some((sent, news)) = handed_over else {
            let words = "the events could not be read, ask again";
            let refusal = Refusal::new(Prefix::Error, words);
            return self.close(subscription.name, refusal).await;
        };
        self.answer(&Answer::Eose(subscription.name.clone()))
            .await?;
        if let Some(open) = self.open.get_mut(&subscription.name) {
            let until = Instant::now() + REMEMBER;
            open.phase = Phase::Live { sent, until };
        }
        for event in news {
            let subscription = subscription.clone();
            self.live(LiveEvent {
                subscription,
                event,
            })
            .await?;
        }
        Ok(())
    }

    /// Sends stored events; answers which, or nothing when they could not be read.
    async fn send_stored(
        &mut self,
        name: &str,
        found: Vec<Ready>,
    ) -> Result<Option<HashSet<Id>>, End> {
        let mut sent = HashSet::with_capacity(found.len());
        let mut found = found.into_iter();
        while found.len() > 0 {
            let chunk = stored::chunk(&mut found);
            let Ok(events) = stored::bodies(&self.app.pool, chunk).await else {
                return Ok(None);
            };
            for (id, body) in events {
                sent.insert(id);
                let text = format!(r#"["EVENT",{name},{body}]"#);
                self.feed(Message::text(text)).await?;
            }
        }
        Ok(Some(sent))
    }

    /// What has come meanwhile, was not `sent`, and is still there; nothing when the store can't be asked.
    /// What has replaced or deleted the rest may be among what was sent, and behind that it would be taken
    /// for new.
    async fn still_news(
        &mut self,
        subscription: &Subscription,
        sent: &HashSet<Id>,
    ) -> Result<Option<Vec<Arc<Told>>>, End> {
        let mut waiting = Vec::new();
        if let Some(open) = self.open.get_mut(&subscription.name)
            && let Phase::Looking(came) = &mut open.phase
        {
            waiting = std::mem::take(came);
        }
        // What is in the queue may be as old.
        for _ in 0..self.coming.len() {
            match self.coming.try_recv() {
                Ok(live) if live.subscription == *subscription => waiting.push(live.event),
                Ok(live) => self.live(live).await?,
                Err(_none) => break,
            }
        }
        waiting.retain(|told| !sent.contains(&told.event.id));
        let asking = stored::retain_visible(&self.app.pool, &mut waiting);
        let asked = timeout(ASKED, asking).await;
        Ok(matches!(asked, Ok(Ok(_))).then_some(waiting))
    }

    /// News for a subscription. What was replaced or deleted while it was in the queue is told: so is, behind
    /// it, what has done that, and no client that reads at once hears anything else. What has ended is not.
    pub(super) async fn live(&mut self, live: LiveEvent) -> Result<(), End> {
        let most = self.app.settings.relay.queue;
        let Some(open) = self.open.get_mut(&live.subscription.name) else {
            return Ok(());
        };
        if open.number != live.subscription.number {
            return Ok(());
        }
        if live.event.has_ended(self.app.clock.now().unix_timestamp()) {
            return Ok(());
        }
        open.forget_old();
        match &mut open.phase {
            // The store is slow, not the client: it may ask again, and the others go on.
            Phase::Looking(waiting) if waiting.len() >= most => {
                let words = "too much came while stored events were looked for, ask again";
                let refusal = Refusal::new(Prefix::Error, words);
                return self.close(live.subscription.name, refusal).await;
            }
            Phase::Looking(waiting) => {
                waiting.push(live.event);
                return Ok(());
            }
            Phase::Live { sent, .. } if sent.contains(&live.event.event.id) => return Ok(()),
            Phase::Live { .. } => {}
        }
        let text = format!(r#"["EVENT",{},{}]"#, open.name, live.event.json);
        self.feed(Message::text(text)).await
    }

    /// Ends a subscription that can't go on, or never began.
    pub(super) async fn close(&mut self, name: String, refusal: Refusal) -> Result<(), End> {
        self.forget(&name);
        self.refuse(name, refusal).await
    }

    pub(super) async fn refuse(&mut self, name: String, refusal: Refusal) -> Result<(), End> {
        // First what it needs to do something about it (NIP-42).
        if refusal.prefix == Prefix::AuthRequired {
            self.challenge().await?;
        }
        self.answer(&Answer::Closed(name, refusal.to_string()))
            .await
    }
}
