//! How often a client may do something: buckets that fill with time.

use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use moka::sync::Cache;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

/// Addresses and keys that are remembered at a time; whoever is forgotten begins with a full bucket.
const REMEMBERED: u64 = 100_000;
const MINUTE: Duration = Duration::from_secs(60);

/// So many a minute, all of them at once at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    per_minute: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A full one; 0 is no limit.
    pub(crate) fn new(per_minute: u32) -> Self {
        Self {
            per_minute: per_minute.into(),
            tokens: per_minute.into(),
            at: Instant::now(),
        }
    }

    /// Takes one, if there is one.
    pub(crate) fn take(&mut self) -> bool {
        let has = self.has();
        if has && self.per_minute > 0.0 {
            self.tokens -= 1.0;
        }
        has
    }

    /// Puts one back that was taken for nothing.
    pub(crate) fn give(&mut self) {
        self.tokens = (self.tokens + 1.0).min(self.per_minute);
    }

    /// Whether there is one.
    fn has(&mut self) -> bool {
        if self.per_minute == 0.0 {
            return true;
        }
        let now = Instant::now();
        let minutes = now.duration_since(self.at).as_secs_f64() / MINUTE.as_secs_f64();
        self.tokens = (self.tokens + minutes * self.per_minute).min(self.per_minute);
        self.at = now;
        self.tokens >= 1.0
    }
}

/// Whom an address belongs to, as far as limits go: of IPv6, one customer has a network of 2^64 addresses.
pub(crate) fn household(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// A bucket for each address, or key.
#[derive(Clone, Debug)]
pub(crate) struct Buckets<K: Hash + Eq + Send + Sync + 'static> {
    per_minute: u32,
    by: Cache<K, Arc<Mutex<Bucket>>>,
}

impl<K: Hash + Eq + Send + Sync + 'static> Buckets<K> {
    pub(crate) fn new(per_minute: u32) -> Self {
        let by = Cache::builder()
            .max_capacity(REMEMBERED)
            .time_to_idle(2 * MINUTE);
        Self {
            per_minute,
            by: by.build(),
        }
    }

    /// Whether there is one left; it stays.
    pub(crate) fn has(&self, who: K) -> bool {
        self.on(who, Bucket::has)
    }

    pub(crate) fn take(&self, who: K) -> bool {
        self.on(who, Bucket::take)
    }

    fn on(&self, who: K, ask: impl Fn(&mut Bucket) -> bool) -> bool {
        if self.per_minute == 0 {
            return true;
        }
        let full = || Arc::new(Mutex::new(Bucket::new(self.per_minute)));
        let bucket = self.by.get_with(who, full);
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        ask(&mut bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn so_many_at_once_and_then_as_time_goes_by() {
        let mut bucket = Bucket::new(60);
        assert!((0..60).all(|_| bucket.take()));
        assert!(!bucket.take());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(bucket.take() && !bucket.take());
        tokio::time::advance(Duration::from_secs(600)).await;
        assert!((0..60).all(|_| bucket.take()));
        assert!(!bucket.take(), "it is never fuller than full");
        bucket.give();
        assert!(bucket.take() && !bucket.take());
        let mut full = Bucket::new(1);
        full.give();
        assert!(full.take() && !full.take());
    }

    #[test]
    fn a_household_of_ipv6_is_a_network() {
        let of = |text: &str| household(text.parse().unwrap()).to_string();
        assert_eq!(of("203.0.113.7"), "203.0.113.7");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("2001:db8:1:2:ffff::1"), "2001:db8:1:2::");
    }

    #[tokio::test(start_paused = true)]
    async fn everybody_has_a_bucket_of_his_own_and_0_is_no_limit() {
        let buckets = Buckets::new(1);
        assert!(buckets.take("a") && !buckets.take("a") && buckets.take("b"));
        let free = Buckets::new(0);
        assert!((0..1000).all(|_| free.take("a")));
    }
}
