//! The worker that says what has changed.
//!
//! It looks at those whose time has come, and at nobody else: the consumer marks whom a change concerns, and
//! whoever was looked at gets the time at which his value will have faded. Rows are locked while they are
//! looked at, so of several processes one looks; what is published commits with the row that says so, so a
//! process that dies has said nothing or is known to have said it.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use tasuki::begin;
use tasuki::seqlog::Log;
use tasuki::testing::crash_point;
use tasuki::worker::{Error, Tick, Worker};

use super::assertion::{Algorithm, Form, Next, Standing, Words, event, next, place};
use super::score::{Fading, Score};
use super::scores::Scores;
use crate::domain::Verdict;
use crate::ingest::Arrival;
use crate::node::{self, Keys};
use crate::nostr::{Event, Target};
use crate::store::trust::assertions::{self, Due, Latest, Looked, Spoken};
use crate::store::trust::scores::now;

/// How often it looks whether anybody's time has come.
const POLL: Duration = Duration::from_secs(1);
/// Assertions that were published.
const PUBLISHED: &str = "tasuki_community_assertions_total";
/// In how many seconds one that was not taken is tried again.
const LATER: i64 = 60;

/// The worker.
pub(crate) struct Speak {
    pub(crate) pool: PgPool,
    pub(crate) log: Log,
    pub(crate) keys: Keys,
    pub(crate) scores: Scores,
    /// How long an assertion holds, in seconds.
    pub(crate) life: i64,
    /// How far in the future an event may be, in seconds.
    pub(crate) ahead: i64,
    /// The address that clients know.
    pub(crate) relay: String,
    /// What assertions belong to.
    pub(crate) topic: String,
    /// Whether that has to be in a tag.
    pub(crate) is_topic_told: bool,
}

/// Somebody who is looked at.
struct Case<'a> {
    due: &'a Due,
    algorithm: Algorithm,
    subject: Target,
    score: Option<Score>,
    latest: Option<Latest>,
}

/// What is to be said of him.
struct Speech {
    event: Arc<Event>,
    words: Words,
    expires_at: i64,
}

impl Worker for Speak {
    fn name(&self) -> &str {
        "community.trust-assertions"
    }

    fn poll_interval(&self) -> Duration {
        POLL
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let mut tx = begin(&self.pool).await?;
        let due = assertions::due(&mut tx).await?;
        if due.is_empty() {
            tx.rollback().await?;
            return Ok(Tick::Idle);
        }
        let said = self.look(&mut tx, &due).await?;
        crash_point("community.trust.before_commit");
        tx.commit().await?;
        crash_point("community.trust.committed");
        if said > 0 {
            metrics::counter!(PUBLISHED).increment(said);
            self.log.ring();
        }
        Ok(Tick::Worked)
    }
}

impl Speak {
    /// Says what is to be said of those who are due; answers how much that was.
    async fn look(&self, tx: &mut PgConnection, due: &[Due]) -> sqlx::Result<u64> {
        let now = now(tx).await?;
        let cases = self.cases(tx, due, now).await?;
        let decided: Vec<_> = cases.iter().map(|case| self.decide(case, now)).collect();
        let speeches = decided.iter().filter_map(|(_, speech)| speech.as_ref());
        let arrivals: Vec<_> = speeches
            .map(|speech| Arrival {
                event: Arc::clone(&speech.event),
                topics: vec![self.topic.clone()],
            })
            .collect();
        let verdicts = node::publish(tx, &arrivals, self.ahead).await?;
        let mut verdicts = verdicts.into_iter();
        let (mut looked, mut said) = (Vec::with_capacity(cases.len()), 0);
        for (case, (next, speech)) in cases.iter().zip(decided) {
            let verdict = speech.as_ref().and_then(|_| verdicts.next());
            let is_taken = matches!(verdict, Some(Verdict::Stored | Verdict::Duplicate));
            if let (Some(verdict), false) = (verdict, is_taken) {
                tracing::warn!(
                    subject = %case.subject,
                    algorithm = case.algorithm.name(),
                    ?verdict,
                    "assertion not taken, tried again later",
                );
            }
            said += u64::from(is_taken);
            let is_refused = verdict.is_some() && !is_taken;
            looked.push(Looked {
                due: case.due,
                again_at: if is_refused {
                    Some(now + LATER)
                } else {
                    next.again_at
                },
                said: speech.filter(|_| is_taken).map(|speech| Spoken {
                    value: speech.words.value,
                    counted: speech.words.counted,
                    event: speech.event.id,
                    expires_at: speech.expires_at,
                }),
            });
        }
        // What can't be read is nobody's, and would be due for ever.
        let unread = due.iter().filter(|due| subject_of(due).is_none());
        looked.extend(unread.map(|due| Looked {
            due,
            again_at: None,
            said: None,
        }));
        assertions::looked(tx, &looked).await?;
        Ok(said)
    }

    /// Those who are due, with their scores and what is said of them now.
    async fn cases<'a>(
        &self,
        tx: &mut PgConnection,
        due: &'a [Due],
        now: i64,
    ) -> sqlx::Result<Vec<Case<'a>>> {
        let cases = due.iter().filter_map(|due| {
            let (algorithm, subject) = subject_of(due)?;
            Some(Case {
                due,
                algorithm,
                subject,
                score: None,
                latest: None,
            })
        });
        let mut cases: Vec<_> = cases.collect();
        let places = cases
            .iter()
            .map(|case| place(self.keys.of(case.algorithm.voice()), &case.subject));
        let latest = assertions::latest(tx, &places.collect::<Vec<_>>()).await?;
        for (case, latest) in cases.iter_mut().zip(latest) {
            case.latest = latest;
        }
        self.rate(tx, &mut cases, now).await?;
        Ok(cases)
    }

    async fn rate(
        &self,
        tx: &mut PgConnection,
        cases: &mut [Case<'_>],
        now: i64,
    ) -> sqlx::Result<()> {
        let risky = cases.iter().filter(|it| it.algorithm == Algorithm::Risk);
        let risky: Vec<_> = risky.map(|it| it.subject.clone()).collect();
        let talking = cases
            .iter()
            .filter_map(|it| match (it.algorithm, &it.subject) {
                (Algorithm::Density, Target::Author(key)) => Some(*key),
                _ => None,
            });
        let talking: Vec<_> = talking.collect();
        let mut risks = self.scores.risks(tx, &risky, now).await?.into_iter();
        let densities = self.scores.densities(tx, &talking, now).await?;
        let mut densities = densities.into_iter();
        for case in cases {
            case.score = match (case.algorithm, &case.subject) {
                (Algorithm::Risk, _) => risks.next(),
                (Algorithm::Density, Target::Author(_)) => densities.next(),
                (Algorithm::Density, _) => None,
            };
        }
        Ok(())
    }

    fn decide(&self, case: &Case<'_>, now: i64) -> (Next, Option<Speech>) {
        let Some(score) = case.score else {
            let (is_said, again_at) = (false, None);
            return (Next { is_said, again_at }, None);
        };
        let words = Words {
            value: score.value(),
            counted: score.counted,
        };
        let fades_in = score.fades_in(self.fading(case.algorithm));
        let next = next(now, words, case.standing(), self.life, fades_in);
        if !next.is_said {
            return (next, None);
        }
        let signer = self.keys.of(case.algorithm.voice());
        let form = Form {
            // Later than the version whose place it takes.
            created_at: case
                .latest
                .as_ref()
                .map_or(now, |it| now.max(it.created_at + 1)),
            expires_at: now + self.life,
            relay: &self.relay,
            topic: self.is_topic_told.then_some(&*self.topic),
        };
        let event = event(signer, case.algorithm, &case.subject, words, &form);
        let speech = Speech {
            event: Arc::new(event),
            words,
            expires_at: form.expires_at,
        };
        (next, Some(speech))
    }

    const fn fading(&self, algorithm: Algorithm) -> &Fading {
        match algorithm {
            Algorithm::Risk => &self.scores.risk,
            Algorithm::Density => &self.scores.density,
        }
    }
}

fn subject_of(due: &Due) -> Option<(Algorithm, Target)> {
    let algorithm = Algorithm::parse(&due.algorithm)?;
    Some((algorithm, due.subject.parse().ok()?))
}

impl Case<'_> {
    /// What anybody can see of it, if that is what we have said.
    fn standing(&self) -> Option<Standing> {
        let latest = self.latest.as_ref()?;
        let is_ours = self.due.event_id.as_deref() == Some(latest.id.0.as_slice());
        let words = Words {
            value: u8::try_from(self.due.value?).ok()?,
            counted: u32::try_from(self.due.counted?).ok()?,
        };
        let expires_at = latest.ends_at.filter(|_| is_ours)?;
        Some(Standing { words, expires_at })
    }
}
