//! Whom a request comes from when something stands before us: whatever ends TLS, or shares the load.
//!
//! Anybody can write `X-Forwarded-For`. It is believed only as far as those who wrote it are known
//! (`http.trusted-proxies`): from its end, over addresses that are ours, to the first that is not. Without
//! such a setting nobody is believed, and the peer of the connection is who calls.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::HeaderMap;
use ipnet::IpNet;

/// Where addresses are written, by each who passes a request on.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// Those who may say for whom they call.
#[derive(Clone, Debug)]
pub(super) struct Proxies(Arc<[IpNet]>);

impl Proxies {
    pub(super) fn new(networks: &[IpNet]) -> Self {
        Self(networks.into())
    }

    /// Who calls, by the connection's `peer` and the headers of the request.
    pub(super) fn caller(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut caller = peer.to_canonical();
        let said = headers.get_all(FORWARDED_FOR).into_iter();
        // A header that is no text says nothing, and ends what can be believed.
        let said: Vec<_> = said.map(|it| it.to_str().unwrap_or_default()).collect();
        let addresses = said.iter().rev().flat_map(|line| line.rsplit(','));
        for address in addresses {
            if !self.trusts(caller) {
                break;
            }
            match read(address.trim()) {
                Some(before) => caller = before.to_canonical(),
                None => break,
            }
        }
        caller
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// An address, with a port or without.
fn read(text: &str) -> Option<IpAddr> {
    let with_port = || text.parse().map(|address: SocketAddr| address.ip());
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    bare.parse().or_else(|_error| with_port()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(networks: &[&str], peer: &str, lines: &[&str]) -> String {
        let networks: Vec<IpNet> = networks.iter().map(|it| it.parse().unwrap()).collect();
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED_FOR, line.parse().unwrap());
        }
        let caller = Proxies::new(&networks).caller(peer.parse().unwrap(), &headers);
        caller.to_string()
    }

    #[test]
    fn nobody_is_believed_who_is_not_known() {
        assert_eq!(caller(&[], "10.0.0.1", &["203.0.113.7"]), "10.0.0.1");
        let ours = ["10.0.0.0/8", "fd00::/8"];
        assert_eq!(caller(&ours, "192.0.2.1", &["203.0.113.7"]), "192.0.2.1");
        assert_eq!(caller(&ours, "::ffff:192.0.2.1", &[]), "192.0.2.1");
    }

    #[test]
    fn what_is_known_is_passed_over_from_the_end() {
        let ours = ["10.0.0.0/8", "fd00::/8"];
        for (lines, who) in [
            (&[][..], "10.0.0.1"),
            (&["203.0.113.7"], "203.0.113.7"),
            (&["198.51.100.9, 203.0.113.7"], "203.0.113.7"),
            (&["198.51.100.9, 203.0.113.7, 10.2.3.4"], "203.0.113.7"),
            (&["198.51.100.9", "203.0.113.7,10.2.3.4"], "203.0.113.7"),
            (&["203.0.113.7:4711, [fd00::1]:80"], "203.0.113.7"),
            (&["2001:db8::7, fd00::1"], "2001:db8::7"),
            (&["::ffff:203.0.113.7"], "203.0.113.7"),
            // The last who is known is all that is known.
            (&["203.0.113.7, unknown, 10.2.3.4"], "10.2.3.4"),
            (&["10.9.9.9, 10.2.3.4"], "10.9.9.9"),
            (&[""], "10.0.0.1"),
        ] {
            assert_eq!(caller(&ours, "10.0.0.1", lines), who, "{lines:?}");
        }
    }
}
