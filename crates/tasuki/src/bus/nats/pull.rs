//! The pull protocol: a request for messages, the messages, and a status when there are no
//! more.

use std::time::Duration;

use async_nats::{Message, StatusCode, Subject, Subscriber};
use futures_util::StreamExt;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::api::{Api, Failure, api_subject};
use crate::bus::StreamError;

/// How long after its end a waiting request may still be answered: the broker's clock starts
/// later than ours.
const GRACE: Duration = Duration::from_secs(2);

/// The shortest wait: without any, a request that can't be answered now would stay.
const SHORTEST: Duration = Duration::from_millis(1);

/// Fetches from one consumer, through an inbox of its own.
pub(super) struct Pull<'a> {
    api: &'a Api,
    stream: &'a str,
    next: Subject,
    inbox: String,
    answers: Subscriber,
}

/// How a request for messages ended.
#[derive(Debug)]
enum End {
    /// There are no more, or as many came as were asked for.
    Done,
    /// Something else; what came before it is good.
    Failed(StreamError),
}

impl<'a> Pull<'a> {
    /// Opens an inbox for the messages of `consumer`.
    pub(super) async fn open(
        api: &'a Api,
        stream: &'a str,
        consumer: &str,
    ) -> Result<Self, StreamError> {
        let inbox = api.client().new_inbox();
        let subscribed = api.in_time(async {
            let subscriber = api.client().subscribe(inbox.clone()).await;
            subscriber.map_err(|error| Failure::Silence(error.into()))
        });
        let answers = subscribed.await.map_err(|failure| failure.about(stream))?;
        Ok(Self {
            api,
            stream,
            next: api_subject(&format!("CONSUMER.MSG.NEXT.{stream}.{consumer}")),
            inbox,
            answers,
        })
    }

    /// Up to `max` messages: those that are there now, or else the first to come within
    /// `wait` and whatever came with it.
    pub(super) async fn fetch(
        &mut self,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Message>, StreamError> {
        let started = Instant::now();
        // With both, the server waits only while it has nothing.
        let request = json!({ "batch": max, "no_wait": true, "expires": nanos(wait) });
        let messages = self.ask(&request, max, wait).await?;
        let left = wait.saturating_sub(started.elapsed());
        if !messages.is_empty() || left < SHORTEST {
            return Ok(messages);
        }
        // There are messages, but as many deliveries are open as may be, and somebody else
        // waits already: then the server waits only for those who ask for it.
        let request = json!({ "batch": 1, "expires": nanos(left) });
        self.ask(&request, 1, left).await
    }

    async fn ask(
        &mut self,
        request: &serde_json::Value,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Message>, StreamError> {
        let (next, inbox) = (self.next.clone(), self.inbox.clone());
        let client = self.api.client();
        let sent = self.api.in_time(async {
            let payload = request.to_string().into();
            let sent = client.publish_with_reply(next, inbox, payload).await;
            sent.map_err(|error| Failure::Silence(error.into()))
        });
        sent.await.map_err(|failure| failure.about(self.stream))?;

        let limit = wait.max(SHORTEST) + GRACE.min(self.api.timeout());
        let deadline = Instant::now() + limit;
        let mut messages = Vec::new();
        while messages.len() < max {
            let end = match timeout_at(deadline, self.answers.next()).await {
                Ok(Some(message)) => match self.end(&message) {
                    None => {
                        messages.push(message);
                        continue;
                    }
                    Some(end) => end,
                },
                Ok(None) => End::Failed(StreamError::unreachable("the subscription has ended")),
                Err(_elapsed) => {
                    let why = format!("no messages and no word within {limit:?}");
                    End::Failed(StreamError::unreachable(why))
                }
            };
            match end {
                // What has been delivered must be worked on; the next request meets the
                // same trouble.
                End::Done | End::Failed(_) if !messages.is_empty() => break,
                End::Done => break,
                End::Failed(error) => return Err(error),
            }
        }
        Ok(messages)
    }

    /// Whether this is no message but the end of them.
    fn end(&self, message: &Message) -> Option<End> {
        let status = message.status?;
        let text = message.description.as_deref().unwrap_or_default();
        let end = match status {
            StatusCode::OK => return None,
            StatusCode::NOT_FOUND | StatusCode::TIMEOUT => End::Done,
            // Everything that may be open at once is open, in this process or another.
            _ if text.contains("MaxAckPending") => End::Done,
            StatusCode::NO_RESPONDERS => End::Failed(StreamError::not_found(self.stream)),
            _ if text.contains("Consumer Deleted") => {
                End::Failed(StreamError::not_found(self.stream))
            }
            _ => End::Failed(StreamError::unreachable(format!("{status}: {text}"))),
        };
        Some(end)
    }
}

fn nanos(wait: Duration) -> u64 {
    let nanos = wait.max(SHORTEST).as_nanos();
    // The server counts in signed numbers.
    u64::try_from(nanos).unwrap_or(u64::MAX).min(u64::MAX >> 1)
}
