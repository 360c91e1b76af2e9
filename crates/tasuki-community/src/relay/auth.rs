//! Who a client is: keys that it has proven (NIP-42).

use std::collections::HashSet;
use std::time::Duration;

use http::Uri;
use time::OffsetDateTime;

use crate::config::{Auth, AuthMode};
use crate::nostr::{AUTH, Event, Fault, Key};

/// What a client has proven, and what it must.
#[derive(Debug)]
pub(crate) struct Proof {
    pub(crate) challenge: String,
    keys: HashSet<Key>,
    /// What clients call this relay ([`address_of`]). Without it a proof could be meant for anybody.
    address: Option<String>,
    settings: Auth,
    connected_at: OffsetDateTime,
}

impl Proof {
    pub(crate) fn new(
        address: Option<String>,
        challenge: String,
        settings: Auth,
        now: OffsetDateTime,
    ) -> Self {
        Self {
            challenge,
            keys: HashSet::new(),
            address,
            settings,
            connected_at: now,
        }
    }

    pub(crate) fn has(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    /// Whether any key has been proven.
    pub(crate) fn is_given(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Whether it must prove a key before anything else is done.
    pub(crate) fn is_owed(&self, now: OffsetDateTime) -> bool {
        let until = self.deadline().is_some_and(|deadline| {
            // Who was there before has until the end of the time of grace; who comes later, none.
            let from = enforced_since(&self.settings);
            if self.connected_at < from {
                now >= deadline
            } else {
                now >= from
            }
        });
        self.keys.is_empty() && until
    }

    /// When it is cut if it has proven nothing by then.
    pub(crate) fn deadline(&self) -> Option<OffsetDateTime> {
        if self.settings.mode == AuthMode::Off || !self.keys.is_empty() {
            return None;
        }
        let from = enforced_since(&self.settings);
        let time = if self.connected_at < from {
            from.saturating_add(signed(self.settings.grace))
        } else {
            self.connected_at
                .saturating_add(signed(self.settings.timeout))
        };
        Some(time)
    }

    /// Takes a proof; its signature has been verified.
    pub(crate) fn take(&mut self, event: &Event, now: OffsetDateTime) -> Result<(), Fault> {
        let value = |name: &str| {
            let mut tags = event.tags.iter();
            let tag = tags.find(|tag| tag.first().is_some_and(|it| it == name));
            tag.and_then(|tag| tag.get(1)).map_or("", String::as_str)
        };
        if event.kind != AUTH {
            return Err(Fault::new(format!("kind is not {AUTH}")));
        }
        if value("challenge") != self.challenge {
            return Err(Fault::new("challenge is not the one of this connection"));
        }
        let Some(address) = &self.address else {
            return Err(Fault::new("this relay has no address to prove a key for"));
        };
        if address_of(value("relay")).as_ref() != Some(address) {
            return Err(Fault::new(format!("relay is not {address}")));
        }
        let apart = now.unix_timestamp().abs_diff(event.created_at);
        if apart > self.settings.clock.as_secs() {
            return Err(Fault::new("created_at is too far from now"));
        }
        self.keys.insert(event.author);
        Ok(())
    }
}

/// From when on a key has to be proven, where one has to be.
pub(super) fn enforced_since(auth: &Auth) -> OffsetDateTime {
    auth.enforce_at.unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// Host, port and path of an address, without what is usual: so `wss://a.example/` and
/// `wss://A.example:443` are one. On another path is another relay.
pub(crate) fn address_of(url: &str) -> Option<String> {
    let url: Uri = url.trim().parse().ok()?;
    let usual = match &*url.scheme_str()?.to_ascii_lowercase() {
        "wss" | "https" => 443,
        "ws" | "http" => 80,
        _ => return None,
    };
    let host = url.host()?.trim_end_matches('.').to_lowercase();
    let path = url.path().trim_end_matches('/');
    Some(match url.port_u16().filter(|port| *port != usual) {
        Some(port) => format!("{host}:{port}{path}"),
        None => format!("{host}{path}"),
    })
}

fn signed(time: Duration) -> time::Duration {
    time::Duration::try_from(time).unwrap_or(time::Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::Signer;

    const MODE: Auth = Auth {
        mode: AuthMode::Required,
        enforce_at: None,
        grace: Duration::from_secs(900),
        timeout: Duration::from_secs(10),
        clock: Duration::from_secs(600),
    };

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(seconds).unwrap()
    }

    fn proof() -> Proof {
        Proof::new(
            Some("relay.example".to_owned()),
            "abc".to_owned(),
            MODE,
            at(1_000),
        )
    }

    fn event(kind: u16, relay: &str, challenge: &str, created_at: i64) -> Event {
        let tags = [["relay", relay], ["challenge", challenge]];
        let tags = tags
            .iter()
            .map(|tag| tag.map(str::to_owned).to_vec())
            .collect();
        Signer::random().event(created_at, kind, tags, String::new())
    }

    #[test]
    fn only_a_proof_for_this_connection_here_and_now_counts() {
        for (wrong, words) in [
            (event(1, "wss://relay.example", "abc", 1_000), "kind"),
            (
                event(AUTH, "wss://relay.example", "abd", 1_000),
                "challenge",
            ),
            (event(AUTH, "wss://relay.example", "", 1_000), "challenge"),
            (event(AUTH, "wss://other.example", "abc", 1_000), "relay"),
            (
                event(AUTH, "wss://relay.example:8443", "abc", 1_000),
                "relay",
            ),
            (event(AUTH, "relay.example", "abc", 1_000), "relay"),
            (
                event(AUTH, "wss://relay.example/inbox", "abc", 1_000),
                "relay",
            ),
            (event(AUTH, "", "abc", 1_000), "relay"),
            (event(AUTH, "wss://relay.example", "abc", 399), "created_at"),
            (
                event(AUTH, "wss://relay.example", "abc", 1_601),
                "created_at",
            ),
        ] {
            let fault = proof().take(&wrong, at(1_000)).unwrap_err();
            assert!(fault.to_string().starts_with(words), "{fault}");
        }
        for right in [
            event(AUTH, "wss://relay.example", "abc", 400),
            event(AUTH, "wss://Relay.Example:443/", "abc", 1_600),
            event(AUTH, "ws://relay.example?from=here", "abc", 1_000),
        ] {
            let mut proof = proof();
            proof.take(&right, at(1_000)).unwrap();
            assert!(proof.has(&right.author));
        }
    }

    #[test]
    fn several_keys_may_be_proven() {
        let mut proof = proof();
        let events = [1, 2].map(|_| event(AUTH, "wss://relay.example", "abc", 1_000));
        for event in &events {
            proof.take(event, at(1_000)).unwrap();
        }
        assert!(events.iter().all(|event| proof.has(&event.author)));
    }

    #[test]
    fn who_was_there_before_has_a_time_of_grace() {
        let later = Auth {
            enforce_at: Some(at(2_000)),
            ..MODE
        };
        let host = || (Some("h".to_owned()), "c".to_owned());
        let (name, challenge) = host();
        let before = Proof::new(name, challenge, later, at(1_000));
        assert!(!before.is_owed(at(2_899)) && before.is_owed(at(2_900)));
        assert_eq!(before.deadline(), Some(at(2_900)));
        let (name, challenge) = host();
        let after = Proof::new(name, challenge, later, at(2_000));
        assert!(after.is_owed(at(2_000)));
        assert_eq!(after.deadline(), Some(at(2_010)));
        let (name, challenge) = host();
        let off = Auth {
            mode: AuthMode::Off,
            ..MODE
        };
        let never = Proof::new(name, challenge, off, at(0));
        assert!(!never.is_owed(at(i64::from(u32::MAX))) && never.deadline().is_none());
    }
}
