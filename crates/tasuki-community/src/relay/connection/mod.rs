//! One client: what it says, and what it is told.
//!
//! One task does all of it, so a subscription is registered before its stored events are looked for, and
//! whatever comes meanwhile waits behind them: nothing is missing around EOSE, and nothing comes twice.
//! Events are verified and stored beside it, many at a time; whoever sends faster than that is not read.

mod asked;
mod told;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use futures_util::stream::FuturesUnordered;
use futures_util::{SinkExt as _, StreamExt as _};
use tasuki_service::shutdown::Phases;
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::App;
use super::auth::Proof;
use super::limits::Bucket;
use super::live::{Listening, Told};
use super::outgoing::{Cut, LiveEvent, Scissors, queue};
use super::stored::Ready;
use super::subscriptions::{Subscription, Subscriptions};
use crate::nostr::{Answer, Count, Id, Refusal};

/// Events and searches of one client that are worked on at a time.
const IN_FLIGHT: usize = 128;
/// Searches of one client at a time; others wait for their turn.
const SEARCHES: usize = 2;
/// How long a count waits for its turn.
const TURN: Duration = Duration::from_secs(30);
/// How long a client may take to read what is stored.
const SENT: Duration = Duration::from_secs(60);
/// How long the store may take to say what is still there.
const ASKED: Duration = Duration::from_secs(10);
/// How long a client that is cut may take to be told why.
const LAST_WORD: Duration = Duration::from_secs(2);
/// How long what is under way may take when the relay stops.
const LAST_WORK: Duration = Duration::from_secs(2);
/// How long it is remembered what was found in the store, for what comes again as news.
const REMEMBER: Duration = Duration::from_secs(10 * 60);
/// Events that go into one packet, before anything else has its turn.
const TOGETHER: usize = 64;

/// Clients that are connected.
const CLIENTS: &str = "tasuki_community_clients";

/// Where a client comes from.
pub(in crate::relay) struct Surroundings {
    pub(in crate::relay) peer: IpAddr,
    pub(in crate::relay) address: Option<String>,
    pub(in crate::relay) phases: Phases,
}

/// A connected client.
pub(in crate::relay) struct Client {
    app: App,
    socket: WebSocket,
    peer: IpAddr,
    phases: Phases,
    proof: Proof,
    is_challenged: bool,
    events: Bucket,
    reqs: Bucket,
    /// Ends when the event that came last has its place among those to be stored.
    last_event: Option<oneshot::Receiver<()>>,
    subscriptions: Arc<Subscriptions>,
    open: HashMap<String, Open>,
    last_number: u64,
    coming: Receiver<LiveEvent>,
    scissors: Scissors,
    work: FuturesUnordered<futures_util::future::BoxFuture<'static, Done>>,
    /// Searches go on whatever this task waits for: none keeps a connection of the pool that nobody uses.
    searches: JoinSet<Done>,
    turns: Arc<Semaphore>,
    counts: Arc<Semaphore>,
    is_heard: bool,
    _listening: Listening,
}

/// A subscription of this client.
struct Open {
    number: u64,
    /// Its name as JSON.
    name: String,
    topics: usize,
    phase: Phase,
}

enum Phase {
    /// Stored events are looked for; what comes meanwhile waits.
    Looking(Vec<Arc<Told>>),
    /// Stored events were sent: these must not be sent again.
    Live { sent: HashSet<Id>, until: Instant },
}

impl Open {
    /// What was sent long ago does not come again as news.
    fn forget_old(&mut self) {
        if let Phase::Live { sent, until } = &mut self.phase
            && !sent.is_empty()
            && Instant::now() >= *until
        {
            *sent = HashSet::new();
        }
    }
}

/// What has come of something.
enum Done {
    Published(Answer),
    /// With its turn: the next search waits until this one has been sent.
    Found(
        Subscription,
        Result<Vec<Ready>, Refusal>,
        Option<OwnedSemaphorePermit>,
    ),
    Counted(String, Result<Count, Refusal>),
}

/// Why a connection ends.
enum End {
    /// The client has left, or can't be reached.
    Gone,
    /// It is told why, and cut.
    Cut(u16, &'static str),
}

impl Client {
    pub(in crate::relay) fn new(app: App, socket: WebSocket, around: Surroundings) -> Self {
        let own = &app.settings;
        let (outbound, coming, scissors) = queue(own.relay.queue);
        let subscriptions = Arc::new(Subscriptions::new(outbound));
        let challenge = Uuid::new_v4().simple().to_string();
        let proof = Proof::new(around.address, challenge, app.auth, app.clock.now());
        let limits = own.limits;
        metrics::gauge!(CLIENTS).increment(1.0);
        Self {
            _listening: app.live.listen(Arc::clone(&subscriptions)),
            socket,
            peer: around.peer,
            phases: around.phases,
            proof,
            is_challenged: false,
            events: Bucket::new(limits.events_per_minute),
            reqs: Bucket::new(limits.reqs_per_minute),
            last_event: None,
            subscriptions,
            open: HashMap::new(),
            last_number: 0,
            coming,
            scissors,
            work: FuturesUnordered::new(),
            searches: JoinSet::new(),
            turns: Arc::new(Semaphore::new(SEARCHES)),
            counts: Arc::new(Semaphore::new(1)),
            is_heard: true,
            app,
        }
    }

    /// Serves it until it leaves or is cut.
    pub(in crate::relay) async fn run(mut self) {
        let end = self.serve().await;
        metrics::gauge!(CLIENTS).decrement(1.0);
        if let Err(End::Cut(code, why)) = end {
            let words = Answer::Notice(format!("error: {why}")).to_string();
            let frame = CloseFrame {
                code,
                reason: why.into(),
            };
            let last = async {
                self.socket.feed(Message::text(words)).await?;
                self.socket.send(Message::Close(Some(frame))).await
            };
            // It may not read any more.
            timeout(LAST_WORD, last).await.map(drop).unwrap_or_default();
        }
    }

    async fn serve(&mut self) -> Result<(), End> {
        if self.app.auth.mode == crate::config::AuthMode::Required {
            self.challenge().await?;
            self.flush().await?;
        }
        let mut ping = tokio::time::interval(self.app.settings.relay.ping);
        ping.reset();
        let phases = self.phases.clone();
        loop {
            let has_room = self.work.len() + self.searches.len() < IN_FLIGHT;
            let overdue = self.until_overdue();
            tokio::select! {
                biased;
                why = self.scissors.cut_off() => return Err(cut(why)),
                Some(done) = self.work.next(), if !self.work.is_empty() => self.done(done).await?,
                Some(done) = self.searches.join_next() => if let Ok(done) = done {
                    self.done(done).await?;
                },
                Some(live) = self.coming.recv() => self.live(live).await?,
                message = self.socket.recv(), if has_room => {
                    let message = message.ok_or(End::Gone)?;
                    self.hear(message).await?;
                }
                () = tokio::time::sleep(overdue) => {
                    return Err(End::Cut(close_code::POLICY, "auth-required: nothing was proven in time"));
                }
                _ = ping.tick() => self.ping().await?,
                () = phases.draining() => return self.farewell().await,
            }
            // What else is there goes into the same packet.
            for _ in 0..TOGETHER {
                let Ok(live) = self.coming.try_recv() else {
                    break;
                };
                self.live(live).await?;
            }
            self.flush().await?;
        }
    }

    /// The relay stops: what it has been asked for is done, as far as that is soon.
    async fn farewell(&mut self) -> Result<(), End> {
        let rest = async {
            while let Some(done) = self.work.next().await {
                self.done(done).await?;
            }
            Ok(())
        };
        timeout(LAST_WORK, rest).await.unwrap_or(Ok(()))?;
        Err(End::Cut(
            close_code::RESTART,
            "the relay restarts, connect again",
        ))
    }

    /// How long until it is cut because it has proven nothing.
    fn until_overdue(&self) -> Duration {
        let deadline = self.proof.deadline();
        let left = deadline.map(|deadline| deadline - self.app.clock.now());
        // A day is as good as never: it is asked again after whatever comes first.
        let day = Duration::from_secs(24 * 60 * 60);
        left.map_or(day, |left| {
            Duration::try_from(left).unwrap_or_default().min(day)
        })
    }

    async fn ping(&mut self) -> Result<(), End> {
        if !std::mem::take(&mut self.is_heard) {
            return Err(End::Gone);
        }
        for open in self.open.values_mut() {
            open.forget_old();
        }
        self.feed(Message::Ping(bytes::Bytes::new())).await
    }

    async fn hear(&mut self, message: Result<Message, axum::Error>) -> Result<(), End> {
        self.is_heard = true;
        match message {
            Ok(Message::Text(text)) => self.asked(text.as_str()).await,
            Ok(Message::Binary(_)) => {
                let words = Refusal::invalid("messages are texts").to_string();
                self.unread(Answer::Notice(words)).await
            }
            Ok(Message::Ping(_) | Message::Pong(_)) => Ok(()),
            Ok(Message::Close(_)) => Err(End::Gone),
            Err(error) if error.to_string().contains("too long") => {
                Err(End::Cut(close_code::SIZE, "the message is too long"))
            }
            Err(_error) => Err(End::Gone),
        }
    }

    /// Asks for a proof, once.
    async fn challenge(&mut self) -> Result<(), End> {
        if std::mem::replace(&mut self.is_challenged, true) {
            return Ok(());
        }
        self.answer(&Answer::Auth(self.proof.challenge.clone()))
            .await
    }

    async fn answer(&mut self, answer: &Answer) -> Result<(), End> {
        self.feed(Message::text(answer.to_string())).await
    }

    /// Puts a message on its way. A client that does not take it is cut, when too much waits for it.
    async fn feed(&mut self, message: Message) -> Result<(), End> {
        tokio::select! {
            fed = self.socket.feed(message) => fed.map_err(|_error| End::Gone),
            why = self.scissors.cut_off() => Err(cut(why)),
        }
    }

    async fn flush(&mut self) -> Result<(), End> {
        tokio::select! {
            flushed = self.socket.flush() => flushed.map_err(|_error| End::Gone),
            why = self.scissors.cut_off() => Err(cut(why)),
        }
    }
}

const fn too_slow() -> End {
    End::Cut(
        close_code::POLICY,
        "too slow: events came faster than they were read",
    )
}

const fn cut(why: Cut) -> End {
    match why {
        Cut::Slow => too_slow(),
        Cut::Missed => End::Cut(
            close_code::RESTART,
            "events may have been missed, connect again",
        ),
    }
}
