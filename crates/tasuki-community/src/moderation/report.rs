//! Reports of those who sign nothing: the node signs for them, and says for whom.

use std::sync::Arc;

use sqlx::PgConnection;

use super::definition::{Invalid, check_text};
use super::operator::published_in;
use super::{Error, Moderator, Refused};
use crate::config::Topics;
use crate::ingest::Arrival;
use crate::node::{self, Voice};
use crate::nostr::{Id, REPORT, Target, short_hash, word};
use crate::store::find;
use crate::store::moderation::{events, labels};

/// Bytes of a comment, and of who reports.
const COMMENT: usize = 2000;
const REPORTER: usize = 255;

/// What somebody reports.
#[derive(Clone, Debug)]
pub(crate) struct Reporting {
    pub(crate) target: String,
    pub(crate) reason: String,
    pub(crate) comment: Option<String>,
    pub(crate) reporter: Option<String>,
    pub(crate) topics: Vec<String>,
    /// Who brings it: whom to count where nobody is named.
    pub(crate) caller: String,
}

impl Moderator {
    /// Publishes a report; answers its event, and whether it is a new one. Whoever reports the same thing
    /// for the same reason again has reported it already.
    pub(crate) async fn report(
        &self,
        tx: &mut PgConnection,
        reporting: &Reporting,
        topics: &Topics,
    ) -> Result<(Id, bool), Error> {
        let target = reporting.target.parse::<Target>();
        let target = target.map_err(|problem| Refused::from(Invalid::new("target", problem)))?;
        check(reporting)?;
        let who = reporting.reporter.as_deref().unwrap_or(&reporting.caller);
        let text = target.to_string();
        let parts = [who, &reporting.reason, &text].map(|it| format!("{}:{it}", it.len()));
        let d = short_hash(&[b"report", parts.concat().as_bytes()]).to_string();
        labels::lock(tx, std::slice::from_ref(&d)).await?;
        let signer = self.keys.of(Voice::Moderation);
        let tag = |name: &str, value: &str| vec![name.to_owned(), value.to_owned()];
        let mut tags = vec![
            tag("d", &d),
            tag("target", &text),
            target.tag(),
            tag("reason", &reporting.reason),
        ];
        tags.extend(
            reporting
                .reporter
                .as_deref()
                .map(|who| tag("reporter", who)),
        );
        let named = published_in(
            &reporting.topics,
            topics,
            self.topics_of(tx, &target).await?,
        )?;
        tags.extend(named.iter().map(|topic| tag("t", topic)));
        let now = labels::standing(tx, &text, "").await?.now;
        let content = reporting.comment.clone().unwrap_or_default();
        let event = signer.event(now.unix_timestamp(), REPORT, tags, content);
        if let Some(coordinate) = event.coordinate()
            && let Some(current) = find::current(tx, &coordinate).await?
            && !events::seen(tx, &[current]).await?.is_empty()
        {
            return Ok((current, false));
        }
        let arrival = Arrival {
            event: Arc::new(event),
            topics: named,
        };
        let id = arrival.event.id;
        node::publish(tx, &[arrival], self.ahead).await?;
        Ok((id, true))
    }

    /// Where a target is.
    async fn topics_of(
        &self,
        tx: &mut PgConnection,
        target: &Target,
    ) -> Result<Vec<String>, Error> {
        let seen = self.seen(tx, target).await?;
        Ok(seen.map(|it| it.topics).unwrap_or_default())
    }
}

fn check(reporting: &Reporting) -> Result<(), Refused> {
    if word(&reporting.reason).as_deref() != Some(&*reporting.reason) {
        let problem = "is not one word of 1 to 64 lower-case letters, digits, - and _";
        return Err(Invalid::new("reason", problem).into());
    }
    if let Some(comment) = &reporting.comment
        && comment.len() > COMMENT
    {
        let problem = format!("is longer than {COMMENT} bytes");
        return Err(Invalid::new("comment", problem).into());
    }
    if let Some(reporter) = &reporting.reporter {
        check_text("reporter", reporter, REPORTER)?;
    }
    Ok(())
}
