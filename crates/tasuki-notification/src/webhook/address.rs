//! Where a webhook may go: to public addresses, and never into our own network.
//!
//! The URL comes from a customer, and our servers can reach what the customer can't: databases,
//! the metadata of the machine, other tenants. [`Guard`] judges the text, once when it is stored
//! and again before each request. [`Resolver`] judges what the name means at the moment of
//! connecting, and the connection uses exactly the addresses that were judged: nobody looks the
//! name up again, so a name that changes its meaning after the check gains nothing.
//!
//! Invariant: no connection is opened to an address that [`is_public`] denies, unless the guard
//! allows private ones.
//!
//! Not here: redirects. `send` follows none, so there is nothing to judge.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::net::lookup_host;

/// Bytes of a URL as it is written.
const MAX_LENGTH: usize = 2048;

/// Last labels of names that mean something only inside a machine or a network.
const PRIVATE_LABELS: [&str; 3] = ["internal", "local", "localhost"];

/// IPv4 networks, with the lengths of their prefixes, that are special by IANA's registry.
const SPECIAL_V4: &[(Ipv4Addr, u32)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8), // this network; 0.0.0.0 reaches this machine
    (Ipv4Addr::new(10, 0, 0, 0), 8), // private
    (Ipv4Addr::new(100, 64, 0, 0), 10), // behind a carrier's NAT
    (Ipv4Addr::new(127, 0, 0, 0), 8), // loopback
    (Ipv4Addr::new(169, 254, 0, 0), 16), // link-local, with the metadata of most clouds
    (Ipv4Addr::new(172, 16, 0, 0), 12), // private
    (Ipv4Addr::new(192, 0, 0, 0), 24), // protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24), // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24), // 6to4 relays
    (Ipv4Addr::new(192, 168, 0, 0), 16), // private
    (Ipv4Addr::new(198, 18, 0, 0), 15), // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24), // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24), // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 4), // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4), // reserved, with broadcast at its end
    // Not in the registry: on Azure it answers to the machine itself, with secrets of its own.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
];

/// IPv6 networks, with the lengths of their prefixes, that are special by IANA's registry.
const SPECIAL_V6: &[(Ipv6Addr, u32)] = &[
    (Ipv6Addr::UNSPECIFIED, 96), // `::`, `::1` and IPv4-compatible
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48), // translation inside a network
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64), // discard
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // protocol assignments, with Teredo
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
    (Ipv6Addr::new(0x5f00, 0, 0, 0, 0, 0, 0, 0), 16), // segment routing
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7), // unique local
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10), // link-local
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10), // site-local
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8), // multicast
];

/// The only IPv6 network from which public addresses are given out. What lies outside of it and
/// has no entry above is denied too: a range that gets a meaning tomorrow is closed today.
const GLOBAL_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Why a URL is not called. No message repeats the URL or says what a name resolved to: both go
/// to the customer, who must not learn our network from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the URL {}", self.rule())]
pub(crate) enum Refused {
    NotUrl,
    TooLong,
    Scheme,
    UserInfo,
    Fragment,
    Private,
}

impl Refused {
    /// What is wrong, to stand behind the name of what holds the URL.
    pub(crate) fn rule(self) -> &'static str {
        match self {
            Self::NotUrl => "is not a URL: write it like https://example.com/hooks",
            Self::TooLong => "is longer than 2048 bytes: shorten it",
            Self::Scheme => "must start with https://",
            Self::UserInfo => {
                "holds a user name or a password: remove it, deliveries are signed instead"
            }
            Self::Fragment => "has a fragment: remove the # and what follows",
            Self::Private => {
                "leads to a private or reserved network: use one that the internet can reach"
            }
        }
    }
}

/// What customers' URLs may be. The default allows nothing but `https` to public addresses; the
/// rest is for development.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    /// Whether addresses and names of private networks may be called.
    pub(crate) allow_private: bool,
    /// Whether `http` is good enough.
    pub(crate) allow_http: bool,
}

impl Guard {
    /// The URL, if it may be called as far as its text says: what a name in it means is judged
    /// by the [`Resolver`].
    pub(crate) fn check_url(&self, text: &str) -> Result<Url, Refused> {
        if text.len() > MAX_LENGTH {
            return Err(Refused::TooLong);
        }
        // The parser would drop these without a word: what we store would not be what we call.
        if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(Refused::NotUrl);
        }
        let url = Url::parse(text).map_err(|_parse_error| Refused::NotUrl)?;
        match url.scheme() {
            "https" => {}
            "http" if self.allow_http => {}
            _ => return Err(Refused::Scheme),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refused::UserInfo);
        }
        if url.fragment().is_some() {
            return Err(Refused::Fragment);
        }
        self.check_host(url.host_str().ok_or(Refused::NotUrl)?)?;
        Ok(url)
    }

    /// The parser has made one form of the many that an address can be written in, such as
    /// `0x7f.1` and `2130706433`. It matters here: the client connects to an address without
    /// asking the resolver.
    fn check_host(&self, host: &str) -> Result<(), Refused> {
        if self.allow_private {
            return Ok(());
        }
        // IPv6 stands in brackets.
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let is_private = match bare.parse::<IpAddr>() {
            Ok(ip) => !is_public(ip),
            Err(_) => is_private_name(host),
        };
        if is_private {
            Err(Refused::Private)
        } else {
            Ok(())
        }
    }

    /// All or nothing: of a mixed answer nobody knows which address the client would take.
    fn check_addresses(&self, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Refused> {
        if self.allow_private || found.iter().all(|address| is_public(address.ip())) {
            Ok(found)
        } else {
            Err(Refused::Private)
        }
    }
}

/// Looks names up for the HTTP client and gives it only what the guard accepts. A refusal is a
/// [`Refused`] among the causes of the client's error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolver(Guard);

impl Resolver {
    pub(crate) fn new(guard: Guard) -> Self {
        Self(guard)
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(look_up(name, self.0))
    }
}

async fn look_up(name: Name, guard: Guard) -> Result<Addrs, Box<dyn Error + Send + Sync>> {
    // The client puts the port of the URL in place of the 0.
    let found: Vec<SocketAddr> = lookup_host((name.as_str(), 0_u16)).await?.collect();
    let addresses: Addrs = Box::new(guard.check_addresses(found)?.into_iter());
    Ok(addresses)
}

/// Whether the address belongs to somebody on the internet. One that carries an IPv4 address is
/// as public as that one is.
pub(crate) fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => match carried_v4(ip) {
            Some(carried) => is_public_v4(carried),
            None => is_public_v6(ip),
        },
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    // Two addresses share as many bits as the front of their difference has zeros.
    let is_in = |&(network, prefix): &(Ipv4Addr, u32)| {
        (ip.to_bits() ^ network.to_bits()).leading_zeros() >= prefix
    };
    !SPECIAL_V4.iter().any(is_in)
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let is_in = |&(network, prefix): &(Ipv6Addr, u32)| {
        (ip.to_bits() ^ network.to_bits()).leading_zeros() >= prefix
    };
    is_in(&GLOBAL_V6) && !SPECIAL_V6.iter().any(is_in)
}

/// The IPv4 address in a mapped (`::ffff:0:0/96`), a translated (`64:ff9b::/96`) or a 6to4
/// (`2002::/16`) one.
fn carried_v4(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, _, _, _, _, _] => {
            let bits = (u32::from(high) << 16) | u32::from(low);
            Some(Ipv4Addr::from_bits(bits))
        }
        _ => None,
    }
}

/// Whether the name can only mean something near us, with or without the dot at its end.
fn is_private_name(name: &str) -> bool {
    let last = name.trim_end_matches('.').rsplit('.').next();
    last.is_some_and(|label| PRIVATE_LABELS.contains(&label.to_ascii_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRICT: Guard = Guard {
        allow_private: false,
        allow_http: true,
    };
    const OPEN: Guard = Guard {
        allow_private: true,
        allow_http: true,
    };

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn sockets(texts: &[&str]) -> Vec<SocketAddr> {
        let address = |text: &&str| SocketAddr::new(ip(text), 443);
        texts.iter().map(address).collect()
    }

    #[test]
    fn every_special_range_is_closed_from_its_first_address_to_its_last() {
        for (first, last) in [
            ("0.0.0.0", "0.255.255.255"),
            ("10.0.0.0", "10.255.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.0.0.0", "192.0.0.255"),
            ("192.0.2.0", "192.0.2.255"),
            ("192.88.99.0", "192.88.99.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("198.18.0.0", "198.19.255.255"),
            ("198.51.100.0", "198.51.100.255"),
            ("203.0.113.0", "203.0.113.255"),
            ("224.0.0.0", "239.255.255.255"),
            ("240.0.0.0", "255.255.255.255"),
            ("168.63.129.16", "168.63.129.16"),
            ("::", "::ffff:ffff"),
            ("64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff"),
            ("100::", "100::ffff:ffff:ffff:ffff"),
            ("2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("5f00::", "5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            assert!(!is_public(ip(first)), "{first}");
            assert!(!is_public(ip(last)), "{last}");
        }
    }

    #[test]
    fn the_neighbours_of_the_special_ranges_are_public() {
        for text in [
            "1.0.0.0",
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.88.98.255",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "203.0.114.0",
            "223.255.255.255",
            "168.63.129.17",
            "2001:200::1",
            "2001:db9::1",
            "2606:4700:4700::1111",
            "3ffe::1",
        ] {
            assert!(is_public(ip(text)), "{text}");
        }
    }

    #[test]
    fn an_address_in_disguise_is_judged_by_what_it_carries() {
        for (text, public) in [
            ("::ffff:127.0.0.1", false),
            ("::ffff:169.254.169.254", false),
            ("::ffff:1.1.1.1", true),
            ("64:ff9b::10.0.0.1", false),
            ("64:ff9b::1.1.1.1", true),
            ("2002:7f00:1::", false),
            ("2002:c0a8:101::5", false),
            ("2002:101:101::5", true),
            ("::127.0.0.1", false),
            ("::1.1.1.1", false),
            ("::ffff:0:127.0.0.1", false),
            ("2001:0:4136:e378:8000:63bf:3fff:fdd2", false),
            ("4000::1", false),
        ] {
            assert_eq!(is_public(ip(text)), public, "{text}");
        }
    }

    #[test]
    fn a_public_url_is_accepted_as_it_is() {
        for text in [
            "https://example.com/hooks?token=1",
            "https://example.com:8443/",
            "https://1.1.1.1/",
            "https://[2606:4700:4700::1111]/",
            "https://localhost.example.com/",
        ] {
            let url = Guard::default().check_url(text).unwrap();
            assert_eq!(url.as_str(), text);
        }
    }

    #[test]
    fn a_url_that_is_not_plain_is_refused() {
        let long = format!("https://example.com/{}", "a".repeat(MAX_LENGTH));
        for (text, why) in [
            ("", Refused::NotUrl),
            ("example.com", Refused::NotUrl),
            ("https://", Refused::NotUrl),
            (" https://example.com/", Refused::NotUrl),
            ("https://exam\nple.com/", Refused::NotUrl),
            ("https://example.com/\0", Refused::NotUrl),
            (long.as_str(), Refused::TooLong),
            ("http://example.com/", Refused::Scheme),
            ("file:///etc/passwd", Refused::Scheme),
            ("gopher://example.com/", Refused::Scheme),
            ("https://user@example.com/", Refused::UserInfo),
            ("https://:word@example.com/", Refused::UserInfo),
            ("https://example.com/#a", Refused::Fragment),
        ] {
            assert_eq!(Guard::default().check_url(text), Err(why), "{text}");
        }
    }

    #[test]
    fn no_way_of_writing_a_private_host_is_accepted() {
        for host in [
            "127.0.0.1",
            "127.0.0.1.",
            "127.1",
            "0x7f.1",
            "0177.0.0.1",
            "2130706433",
            "0x7f000001",
            "%31%32%37.0.0.1",
            "１２７.0.0.1",
            "0",
            "0.0.0.0",
            "169.254.169.254",
            "[::]",
            "[::1]",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[fd00:ec2::254]",
            "localhost",
            "LocalHost",
            "localhost.",
            "a.localhost",
            "metadata.google.internal",
            "printer.local.",
        ] {
            let text = format!("http://{host}:8080/");
            assert_eq!(STRICT.check_url(&text), Err(Refused::Private), "{text}");
            assert!(OPEN.check_url(&text).is_ok(), "{text}");
        }
    }

    #[test]
    fn one_private_address_spoils_the_whole_answer() {
        let public = sockets(&["1.1.1.1", "2606:4700:4700::1111"]);
        assert_eq!(STRICT.check_addresses(public.clone()), Ok(public));
        let mixed = sockets(&["1.1.1.1", "10.0.0.1"]);
        let refused = STRICT.check_addresses(mixed.clone());
        assert_eq!(refused, Err(Refused::Private));
        assert_eq!(OPEN.check_addresses(mixed.clone()), Ok(mixed));
    }

    #[tokio::test]
    async fn a_name_that_means_this_machine_is_refused_when_it_is_looked_up() {
        let ask = |guard, name: &str| Resolver::new(guard).resolve(name.parse().unwrap());
        let error = ask(STRICT, "localhost").await.err().unwrap();
        let refused = error.downcast_ref::<Refused>();
        assert_eq!(refused, Some(&Refused::Private));
        // Whether this one is found at all depends on the machine.
        assert!(ask(STRICT, "localhost.").await.is_err());

        let mut found = ask(OPEN, "localhost").await.ok().unwrap();
        assert!(found.all(|address| address.ip().is_loopback()));
    }
}
