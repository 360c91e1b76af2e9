//! Events, as Protocol Buffers. The schemas are in `proto/`.

/// `proto/tasuki/community/v1/community.proto`
pub mod community {
    #![expect(missing_docs, reason = "the schema has the words")]
    #![expect(clippy::doc_markdown, reason = "the words are the schema's")]

    include!(concat!(env!("OUT_DIR"), "/tasuki.community.v1.rs"));

    impl EventType {
        /// The name that headers, tables and people use.
        #[must_use]
        pub const fn name(self) -> Option<&'static str> {
            match self {
                Self::Unspecified => None,
                Self::ContentLabelled => Some("ContentLabelled"),
                Self::LabelWithdrawn => Some("LabelWithdrawn"),
            }
        }
    }
}

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

/// `proto/tasuki/shop/v1/shop.proto`
pub mod shop {
    #![expect(missing_docs, reason = "the schema has the words")]
    #![expect(clippy::doc_markdown, reason = "the words are the schema's")]

    include!(concat!(env!("OUT_DIR"), "/tasuki.shop.v1.rs"));

    impl EventType {
        /// The name that headers, tables and people use.
        #[must_use]
        pub const fn name(self) -> Option<&'static str> {
            match self {
                Self::Unspecified => None,
                Self::OrderCreated => Some("OrderCreated"),
                Self::PaymentCompleted => Some("PaymentCompleted"),
                Self::PaymentFailed => Some("PaymentFailed"),
                Self::PaymentRefunded => Some("PaymentRefunded"),
                Self::StockReserved => Some("StockReserved"),
                Self::StockFailed => Some("StockFailed"),
                Self::StockReleased => Some("StockReleased"),
                Self::EntitlementsGranted => Some("EntitlementsGranted"),
                Self::EntitlementsRevoked => Some("EntitlementsRevoked"),
                Self::ConfirmationFailed => Some("ConfirmationFailed"),
                Self::OrderCompleted => Some("OrderCompleted"),
                Self::OrderCancelled => Some("OrderCancelled"),
            }
        }
    }
}

pub use prost::{DecodeError, Message};
