//! Events, as Protocol Buffers. The schemas are in `proto/`.

/// `proto/tasuki/entitlement/v1/entitlement.proto`
pub mod entitlement {
    #![expect(missing_docs, reason = "the schema has the words")]
    #![expect(clippy::doc_markdown, reason = "the words are the schema's")]

    include!(concat!(env!("OUT_DIR"), "/tasuki.entitlement.v1.rs"));

    impl EventType {
        /// The name that headers, tables and people use.
        #[must_use]
        pub const fn name(self) -> Option<&'static str> {
            match self {
                Self::Unspecified => None,
                Self::EntitlementGranted => Some("EntitlementGranted"),
                Self::EntitlementRevoked => Some("EntitlementRevoked"),
                Self::EntitlementConsumed => Some("EntitlementConsumed"),
            }
        }
    }
}

/// `proto/tasuki/matchmaking/v1/matchmaking.proto`
pub mod matchmaking {
    #![expect(missing_docs, reason = "the schema has the words")]
    #![expect(clippy::doc_markdown, reason = "the words are the schema's")]

    include!(concat!(env!("OUT_DIR"), "/tasuki.matchmaking.v1.rs"));

    impl EventType {
        /// The name that headers, tables and people use.
        #[must_use]
        pub const fn name(self) -> Option<&'static str> {
            match self {
                Self::Unspecified => None,
                Self::MatchFound => Some("MatchFound"),
            }
        }
    }
}

pub use prost::{DecodeError, Message};
