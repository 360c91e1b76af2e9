//! A model of how an event travels: rows, relays, a broker, a consumer, and what can fail.
//!
//! What an action stands for in the code:
//!
//! | action | code |
//! | --- | --- |
//! | [`Claim`](Action::Claim) | `lease` claims a row that waits, or whose lease has expired, under a new token; of one ordering key only what no other claim is ahead of |
//! | [`Expire`](Action::Expire) | `lease_until` passes, whether its holder is dead, stalled or just slow |
//! | [`Publish`](Action::Publish) | `bus` publishes and hears the acknowledgement; `again`: the dedupe window has forgotten the id |
//! | [`Unheard`](Action::Unheard) | the acknowledgement does not arrive: the relay gives the row back, and with it what it holds back behind it |
//! | [`Settle`](Action::Settle) | `lease` settles the row by its token: `outbox_published`, with stream, `created` and sequence |
//! | [`Crash`](Action::Crash) | a process dies; its leases stay |
//! | [`Deliver`](Action::Deliver) | the consumer's transaction: `inbox` record and effect, then the ack; `acked: false`: it dies in between |
//! | [`LoseTail`](Action::LoseTail), [`Recreate`](Action::Recreate) | the broker loses what it had acknowledged: its end (sequences are used again), or the stream |
//! | [`Reconcile`](Action::Reconcile) | `outbox` finds another id, or none, or another stream at a stored position: the row waits again |
//!
//! A relay whose lease was taken goes on publishing and settling: it can't know. Claims of
//! single rows stand for claims of batches, because a relay may claim both rows before it
//! publishes either. Deliveries keep the order of a key and no other.
//!
//! Left out: attempts and backoff (time is an action here), retention (a row is reconciled
//! while it is kept), and renewal (a lease that does not expire).
//!
//! Faults are bounded, so that the space is finite and every path ends. A state in which
//! nothing but a fault can happen must have delivered everything: that is "eventually".

use stateright::{Model, Property};

/// No event has more than one effect.
pub(crate) const ONCE: &str = "an event has at most one effect";
/// A settled row was settled by its last claim.
pub(crate) const FENCED: &str = "a stale claim never settles";
/// Effects of one key come in order, unless the broker lost something.
pub(crate) const IN_ORDER: &str = "effects of one key are in order";
/// The same without the exception; only a strict model asks for it.
pub(crate) const IN_ORDER_DESPITE_LOSS: &str = "effects of one key are in order despite loss";
/// Where nothing is left to do, everything is done.
pub(crate) const DELIVERED: &str = "what comes to rest has been delivered";

const RELAYS: usize = 2;
const EVENTS: usize = 2;

/// What may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Faults {
    /// How many faults there are at most: relays and consumers that die, leases that expire
    /// although their holder lives, acknowledgements that are not heard, losses of the broker.
    pub(crate) budget: u8,
    /// Whether the broker may lose, once, what it acknowledged.
    pub(crate) broker_loses: bool,
}

impl Faults {
    pub(crate) const NONE: Self = Self {
        budget: 0,
        broker_loses: false,
    };
}

/// The rules that the protocol rests on. A test takes one away.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a rule that a test takes away"
)]
pub(crate) struct Rules {
    /// A settle or a give-back is refused when its token is not the row's.
    pub(crate) fence: bool,
    /// An effect is recorded with the event's id, and not repeated.
    pub(crate) inbox: bool,
    /// Stored positions are compared with the broker's messages.
    pub(crate) reconcile: bool,
    /// A row is not claimed while an earlier one of its key waits or is claimed by another.
    pub(crate) ordered_claims: bool,
    /// A relay does not publish behind an event of the same key that failed.
    pub(crate) hold_back: bool,
}

impl Rules {
    pub(crate) const ALL: Self = Self {
        fence: true,
        inbox: true,
        reconcile: true,
        ordered_claims: true,
        hold_back: true,
    };
}

/// The model: two relays, two events, a broker and a consumer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    rules: Rules,
    faults: Faults,
    /// Whether the events share an ordering key.
    one_key: bool,
    /// Whether to ask for more than is promised.
    strict: bool,
}

/// A row of the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Row {
    Pending,
    InFlight { token: u8, expired: bool },
    Published { token: u8, at: Position },
}

/// Where the broker said that a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Position {
    /// The stream's identity: its `created`.
    stream: u8,
    sequence: usize,
}

/// What a relay remembers of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Memory {
    #[default]
    Nothing,
    Claimed {
        token: u8,
    },
    Acknowledged {
        token: u8,
        at: Position,
    },
}

impl Row {
    fn token(mut self) -> Option<u8> {
        self.token_mut().copied()
    }

    fn token_mut(&mut self) -> Option<&mut u8> {
        match self {
            Self::Pending => None,
            Self::InFlight { token, .. } | Self::Published { token, .. } => Some(token),
        }
    }
}

impl Memory {
    fn token(mut self) -> Option<u8> {
        self.token_mut().copied()
    }

    fn token_mut(&mut self) -> Option<&mut u8> {
        match self {
            Self::Nothing => None,
            Self::Claimed { token } | Self::Acknowledged { token, .. } => Some(token),
        }
    }
}

/// A message in the stream. Its sequence is its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Message {
    event: usize,
    acked: bool,
}

/// Everything that is durable somewhere, or remembered by somebody.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct State {
    rows: [Row; EVENTS],
    /// The token of each row's last claim.
    tokens: [u8; EVENTS],
    relays: [[Memory; EVENTS]; RELAYS],
    stream: u8,
    log: Vec<Message>,
    inbox: [bool; EVENTS],
    effects: [u8; EVENTS],
    /// Faults that may still happen.
    left: u8,
    /// Whether the broker has lost something.
    lost: bool,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Claim {
        relay: usize,
        event: usize,
    },
    Expire {
        event: usize,
    },
    Publish {
        relay: usize,
        event: usize,
        again: bool,
    },
    Unheard {
        relay: usize,
        event: usize,
        stored: bool,
    },
    Settle {
        relay: usize,
        event: usize,
    },
    Crash {
        relay: usize,
    },
    Deliver {
        at: usize,
        acked: bool,
    },
    LoseTail {
        kept: usize,
    },
    Recreate,
    Reconcile {
        event: usize,
    },
}

impl Protocol {
    /// Events without an ordering key.
    pub(crate) const fn of_any_order(faults: Faults) -> Self {
        Self {
            rules: Rules::ALL,
            faults,
            one_key: false,
            strict: false,
        }
    }

    /// Events that share an ordering key; event 0 is the earlier one.
    pub(crate) const fn of_one_key(faults: Faults) -> Self {
        Self {
            one_key: true,
            ..Self::of_any_order(faults)
        }
    }

    pub(crate) const fn with(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// Asks for order even from a broker that loses.
    pub(crate) const fn strict(self) -> Self {
        Self {
            strict: true,
            ..self
        }
    }

    /// The event that must go before this one.
    fn before(&self, event: usize) -> Option<usize> {
        event.checked_sub(1).filter(|_| self.one_key)
    }

    /// The event that must go after this one.
    fn behind(&self, event: usize) -> Option<usize> {
        Some(event + 1).filter(|behind| self.one_key && *behind < EVENTS)
    }

    fn can_claim(&self, state: &State, relay: usize, event: usize) -> bool {
        let is_free = match state.rows[event] {
            Row::Pending => true,
            Row::InFlight { expired, .. } => expired,
            Row::Published { .. } => false,
        };
        // A claim while the same relay still works under its old one is another task of the
        // same process: the other relay stands for it.
        if !is_free || state.relays[relay][event] != Memory::Nothing {
            return false;
        }
        match self.before(event) {
            Some(before) if self.rules.ordered_claims => match state.rows[before] {
                Row::Published { .. } => true,
                // In one batch.
                Row::InFlight { token, expired } => {
                    !expired && state.relays[relay][before] == Memory::Claimed { token }
                }
                Row::Pending => false,
            },
            _ => true,
        }
    }

    fn can_publish(&self, state: &State, relay: usize, event: usize) -> bool {
        let before = self.before(event).map(|before| state.relays[relay][before]);
        let is_first = !matches!(before, Some(Memory::Claimed { .. }));
        let is_held = self.rules.ordered_claims && !is_first;
        matches!(state.relays[relay][event], Memory::Claimed { .. }) && !is_held
    }

    /// What goes on by itself, sooner or later.
    fn progress(&self, state: &State, actions: &mut Vec<Action>) {
        for event in 0..EVENTS {
            for relay in state.different_relays() {
                if self.can_claim(state, relay, event) {
                    actions.push(Action::Claim { relay, event });
                }
                if self.can_publish(state, relay, event) {
                    // The window may have forgotten what is in the stream, at any time.
                    let ways = [false, true].into_iter();
                    let ways = ways.filter(|again| !again || state.find(event).is_some());
                    actions.extend(ways.map(|again| Action::Publish {
                        relay,
                        event,
                        again,
                    }));
                }
                if matches!(state.relays[relay][event], Memory::Acknowledged { .. }) {
                    actions.push(Action::Settle { relay, event });
                }
            }
            if state.is_orphan(event) {
                actions.push(Action::Expire { event });
            }
            if self.rules.reconcile && state.is_lost(event) {
                actions.push(Action::Reconcile { event });
            }
        }
        for at in 0..state.log.len() {
            if self.can_deliver(state, at) {
                actions.push(Action::Deliver { at, acked: true });
            }
        }
    }

    /// What may go wrong, while it may.
    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        for relay in state.different_relays() {
            let is_working = state.relays[relay] != [Memory::Nothing; EVENTS];
            if is_working {
                actions.push(Action::Crash { relay });
            }
            for event in 0..EVENTS {
                if !self.can_publish(state, relay, event) {
                    continue;
                }
                actions.extend([true, false].map(|stored| Action::Unheard {
                    relay,
                    event,
                    stored,
                }));
            }
        }
        for event in 0..EVENTS {
            let is_held = matches!(state.rows[event], Row::InFlight { expired: false, .. });
            if is_held && !state.is_orphan(event) {
                actions.push(Action::Expire { event });
            }
        }
        let all = (0..state.log.len()).filter(|at| self.can_deliver(state, *at));
        actions.extend(all.map(|at| Action::Deliver { at, acked: false }));
        if self.faults.broker_loses && !state.lost && !state.log.is_empty() {
            actions.extend((0..state.log.len()).map(|kept| Action::LoseTail { kept }));
            actions.push(Action::Recreate);
        }
    }

    /// Messages of one key are delivered in order; of different keys, in any.
    fn can_deliver(&self, state: &State, at: usize) -> bool {
        let is_behind = self.one_key && state.log[..at].iter().any(|message| !message.acked);
        !state.log[at].acked && !is_behind
    }
}

impl State {
    /// The relays, but for those that are just like the one before.
    fn different_relays(&self) -> impl Iterator<Item = usize> {
        (0..RELAYS).filter(|relay| *relay == 0 || self.relays[*relay] != self.relays[relay - 1])
    }

    /// Whether the row is claimed, and nobody remembers that claim.
    fn is_orphan(&self, event: usize) -> bool {
        let Row::InFlight { token, expired } = self.rows[event] else {
            return false;
        };
        let remembers = |relay: &[Memory; EVENTS]| relay[event].token() == Some(token);
        !expired && !self.relays.iter().any(remembers)
    }

    /// Whether the broker does not have at the stored position what it said it had.
    fn is_lost(&self, event: usize) -> bool {
        let Row::Published { at, .. } = self.rows[event] else {
            return false;
        };
        let found = self.log.get(at.sequence);
        at.stream != self.stream || found.is_none_or(|message| message.event != event)
    }

    /// Where the stream has a message of this event.
    fn find(&self, event: usize) -> Option<usize> {
        self.log.iter().position(|message| message.event == event)
    }

    fn store(&mut self, event: usize) -> Position {
        let acked = false;
        self.log.push(Message { event, acked });
        self.position(self.log.len() - 1)
    }

    fn position(&self, sequence: usize) -> Position {
        Position {
            stream: self.stream,
            sequence,
        }
    }

    /// Changes a row on behalf of a claim, unless that was lost.
    fn change(&mut self, rules: Rules, event: usize, token: u8, row: Row) {
        let current =
            matches!(self.rows[event], Row::InFlight { token: last, .. } if last == token);
        if current || !rules.fence {
            self.rows[event] = row;
        }
    }

    /// Gives a claim back, if it is one that has published nothing yet.
    fn give_back(&mut self, rules: Rules, relay: usize, event: usize) {
        if let Memory::Claimed { token } = self.relays[relay][event] {
            self.relays[relay][event] = Memory::Nothing;
            self.change(rules, event, token, Row::Pending);
        }
    }

    /// Makes states equal that differ in nothing that matters: which relay remembers what, and
    /// how many claims came before those that somebody still knows.
    fn forget_differences(&mut self) {
        self.relays.sort_unstable();
        for event in 0..EVENTS {
            let mut known = vec![self.tokens[event]];
            known.extend(self.relays.iter().filter_map(|relay| relay[event].token()));
            known.extend(self.rows[event].token());
            known.sort_unstable();
            known.dedup();
            let rank = |token: &mut u8| {
                let place = known.iter().position(|known| known == token);
                *token = place
                    .and_then(|place| u8::try_from(place).ok())
                    .unwrap_or(0);
            };
            rank(&mut self.tokens[event]);
            self.rows[event].token_mut().map(rank);
            for relay in &mut self.relays {
                relay[event].token_mut().map(rank);
            }
        }
    }

    fn with_events_swapped(&self) -> Self {
        let mut twin = self.clone();
        twin.rows.reverse();
        twin.tokens.reverse();
        twin.inbox.reverse();
        twin.effects.reverse();
        twin.relays.iter_mut().for_each(|relay| relay.reverse());
        twin.relays.sort_unstable();
        for message in &mut twin.log {
            message.event = EVENTS - 1 - message.event;
        }
        twin
    }

    fn is_in_order(&self) -> bool {
        self.effects[0] > 0 || self.effects[1] == 0
    }

    fn is_delivered(&self) -> bool {
        let settled =
            |event| matches!(self.rows[event], Row::Published { .. }) && self.effects[event] == 1;
        (0..EVENTS).all(settled) && self.log.iter().all(|message| message.acked)
    }

    fn has_stale_claim(&self) -> bool {
        let is_stale = |relay: &[Memory; EVENTS]| {
            let mut pairs = relay.iter().zip(self.tokens);
            pairs.any(|(memory, last)| memory.token().is_some_and(|token| token < last))
        };
        self.relays.iter().any(is_stale)
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            rows: [Row::Pending; EVENTS],
            tokens: [0; EVENTS],
            relays: [[Memory::Nothing; EVENTS]; RELAYS],
            stream: 0,
            log: Vec::new(),
            inbox: [false; EVENTS],
            effects: [0; EVENTS],
            left: self.faults.budget,
            lost: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.progress(state, actions);
        if state.left > 0 {
            self.faults(state, actions);
        }
    }

    #[expect(
        clippy::too_many_lines,
        reason = "the protocol as one table: splitting it would hide it"
    )]
    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Claim { relay, event } => {
                next.tokens[event] += 1;
                let token = next.tokens[event];
                let expired = false;
                next.rows[event] = Row::InFlight { token, expired };
                next.relays[relay][event] = Memory::Claimed { token };
            }
            Action::Expire { event } => {
                if !state.is_orphan(event) {
                    next.left -= 1;
                }
                if let Row::InFlight { expired, .. } = &mut next.rows[event] {
                    *expired = true;
                }
            }
            Action::Publish {
                relay,
                event,
                again,
            } => {
                let Memory::Claimed { token } = state.relays[relay][event] else {
                    return None;
                };
                let at = match state.find(event) {
                    // The window knows the id: the acknowledgement names the first message.
                    Some(first) if !again => next.position(first),
                    _ => next.store(event),
                };
                next.relays[relay][event] = Memory::Acknowledged { token, at };
            }
            Action::Unheard {
                relay,
                event,
                stored,
            } => {
                next.left -= 1;
                if stored {
                    next.store(event);
                }
                next.give_back(self.rules, relay, event);
                if let Some(behind) = self.behind(event)
                    && self.rules.hold_back
                {
                    next.give_back(self.rules, relay, behind);
                }
            }
            Action::Settle { relay, event } => {
                let Memory::Acknowledged { token, at } = state.relays[relay][event] else {
                    return None;
                };
                next.relays[relay][event] = Memory::Nothing;
                next.change(self.rules, event, token, Row::Published { token, at });
            }
            Action::Crash { relay } => {
                next.left -= 1;
                next.relays[relay] = [Memory::Nothing; EVENTS];
            }
            Action::Deliver { at, acked } => {
                let event = state.log[at].event;
                if !(self.rules.inbox && state.inbox[event]) {
                    next.effects[event] += 1;
                    next.inbox[event] = true;
                }
                next.log[at].acked = acked;
                if !acked {
                    next.left -= 1;
                }
            }
            Action::LoseTail { kept } => {
                next.left -= 1;
                next.lost = true;
                next.log.truncate(kept);
            }
            Action::Recreate => {
                next.left -= 1;
                next.lost = true;
                next.stream += 1;
                next.log.clear();
            }
            Action::Reconcile { event } => next.rows[event] = Row::Pending,
        }
        next.forget_differences();
        if self.one_key {
            return Some(next);
        }
        // Events without a key are alike, too.
        let twin = next.with_events_swapped();
        Some(next.min(twin))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::always(ONCE, |_, state| {
                state.effects.iter().all(|effects| *effects <= 1)
            }),
            Property::<Self>::always(FENCED, |_, state| {
                let by_last = |(row, last): (&Row, &u8)| match row {
                    Row::Published { token, .. } => token == last,
                    Row::Pending | Row::InFlight { .. } => true,
                };
                state.rows.iter().zip(&state.tokens).all(by_last)
            }),
            Property::<Self>::always(IN_ORDER, |model, state| {
                !model.one_key || state.lost || state.is_in_order()
            }),
            Property::<Self>::always(DELIVERED, |model, state| {
                let mut going_on = Vec::new();
                state.is_delivered() || {
                    model.progress(state, &mut going_on);
                    !going_on.is_empty()
                }
            }),
            // What the model is about does happen in it.
            Property::<Self>::sometimes("all is delivered", |_, state| state.is_delivered()),
            Property::<Self>::sometimes("a claim goes stale", |_, state| state.has_stale_claim()),
            Property::<Self>::sometimes("a duplicate is absorbed", |_, state| {
                state.is_delivered() && state.log.len() > EVENTS
            }),
        ];
        if self.faults.broker_loses {
            properties.push(Property::<Self>::sometimes(
                "a loss is repaired",
                |_, state| state.lost && state.is_delivered() && state.log.len() >= EVENTS,
            ));
        }
        if self.strict {
            properties.push(Property::<Self>::always(
                IN_ORDER_DESPITE_LOSS,
                |_, state| state.is_in_order(),
            ));
        }
        properties
    }
}
