//! The protocol of claim, lease, publish, settle and dedupe, checked in every order in which
//! its steps and faults can happen.
//!
//! [`protocol`] is the model and says what in it stands for what in the code. Here are the
//! promises, and the proof that the model could break them: each rule that the protocol rests
//! on is taken away in turn, and the checker must find what goes wrong then.

#![expect(
    clippy::indexing_slicing,
    reason = "a model that leaves its own bounds is a failed test"
)]

mod protocol;

use protocol::{Faults, Protocol, Rules};
use stateright::{Checker, HasDiscoveries, Model};

/// Any two faults, one of which may be a loss of the broker.
const ALL: Faults = Faults {
    budget: 2,
    broker_loses: true,
};

/// Any three faults of everybody but the broker.
const KEPT: Faults = Faults {
    budget: 3,
    broker_loses: false,
};

/// Explores everything; every promise must hold, and everything that the model is about must
/// have happened somewhere.
fn holds(model: Protocol) {
    let checker = model.checker().threads(2).spawn_dfs().join();
    assert!(checker.is_done());
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Some order of steps breaks the promise `name`.
fn breaks(name: &'static str, model: Protocol) {
    let first = HasDiscoveries::AnyOf([name].into());
    let checker = model.checker().threads(2).finish_when(first).spawn_bfs();
    let path = checker.join().assert_any_discovery(name);
    println!(
        "{} steps: {:#?}",
        path.clone().into_actions().len(),
        path.into_actions()
    );
}

#[test]
fn every_promise_holds_for_events_that_go_in_any_order() {
    holds(Protocol::of_any_order(ALL));
}

#[test]
fn every_promise_holds_for_events_of_one_key() {
    holds(Protocol::of_one_key(ALL));
}

#[test]
fn every_promise_holds_when_leases_are_lost_again_and_again() {
    holds(Protocol::of_one_key(KEPT));
}

#[test]
fn without_the_token_a_stale_claim_settles() {
    let rules = Rules {
        fence: false,
        ..Rules::ALL
    };
    breaks(protocol::FENCED, Protocol::of_any_order(ALL).with(rules));
}

#[test]
fn without_the_inbox_the_window_of_the_broker_lets_a_second_effect_through() {
    let rules = Rules {
        inbox: false,
        ..Rules::ALL
    };
    breaks(protocol::ONCE, Protocol::of_any_order(ALL).with(rules));
}

#[test]
fn without_reconciliation_what_the_broker_lost_stays_lost() {
    let rules = Rules {
        reconcile: false,
        ..Rules::ALL
    };
    breaks(protocol::DELIVERED, Protocol::of_any_order(ALL).with(rules));
}

#[test]
fn without_ordered_claims_a_later_event_overtakes_an_earlier_one() {
    let rules = Rules {
        ordered_claims: false,
        ..Rules::ALL
    };
    let faultless = Faults::NONE;
    breaks(
        protocol::IN_ORDER,
        Protocol::of_one_key(faultless).with(rules),
    );
}

#[test]
fn without_holding_back_a_lost_acknowledgement_reorders_a_batch() {
    let rules = Rules {
        hold_back: false,
        ..Rules::ALL
    };
    breaks(protocol::IN_ORDER, Protocol::of_one_key(KEPT).with(rules));
}

/// Not promised, and here is why: the later event can reach its consumer between the loss of the
/// earlier one and its discovery. Consumers that need more compare versions.
#[test]
fn a_broker_that_loses_what_it_acknowledged_can_reorder_even_one_key() {
    breaks(
        protocol::IN_ORDER_DESPITE_LOSS,
        Protocol::of_one_key(ALL).strict(),
    );
}
