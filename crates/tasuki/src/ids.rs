//! Typed ids: `UUIDv7` values that the compiler keeps apart.

/// Declares id types: `UUIDv7` newtypes that sort by the time they were made, read and
/// written as plain UUIDs in JSON and PostgreSQL.
///
/// ```
/// tasuki::typed_ids! {
///     /// One order.
///     OrderId;
///     /// One payment.
///     PaymentId;
/// }
/// let clock = tasuki::Clock::system();
/// let id = OrderId::new(&clock);
/// assert_eq!(id, id.to_string().parse().unwrap());
/// ```
///
/// Swapping two of them does not compile:
///
/// ```compile_fail
/// # tasuki::typed_ids! { /// One order.
/// # OrderId; /// One payment.
/// # PaymentId; }
/// fn pay(order: OrderId) {}
/// pay(PaymentId::new(&tasuki::Clock::system()));
/// ```
#[macro_export]
macro_rules! typed_ids {
    ($($(#[$meta:meta])* $name:ident;)+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($crate::__private::uuid::Uuid);

        impl $name {
            /// A new id; its time part comes from `clock`.
            #[must_use]
            pub fn new(clock: &$crate::Clock) -> Self {
                Self($crate::uuid_v7(clock))
            }

            /// The plain UUID.
            #[must_use]
            pub const fn as_uuid(&self) -> $crate::__private::uuid::Uuid {
                self.0
            }
        }

        impl From<$crate::__private::uuid::Uuid> for $name {
            fn from(id: $crate::__private::uuid::Uuid) -> Self {
                Self(id)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.0, f)
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::__private::uuid::Error;

            fn from_str(text: &str) -> ::std::result::Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }

        impl $crate::__private::serde::Serialize for $name {
            fn serialize<S: $crate::__private::serde::Serializer>(
                &self,
                serializer: S,
            ) -> ::std::result::Result<S::Ok, S::Error> {
                $crate::__private::serde::Serialize::serialize(&self.0, serializer)
            }
        }

        impl<'de> $crate::__private::serde::Deserialize<'de> for $name {
            fn deserialize<D: $crate::__private::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> ::std::result::Result<Self, D::Error> {
                $crate::__private::serde::Deserialize::deserialize(deserializer).map(Self)
            }
        }

        $crate::typed_ids!(@postgres $name);
    )+};
    (@postgres $name:ident) => {
        const _: () = {
            use $crate::__private::sqlx::{
                Decode, Encode, Postgres, Type, encode::IsNull, error::BoxDynError,
                postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueRef},
            };
            use $crate::__private::uuid::Uuid;

            impl Type<Postgres> for $name {
                fn type_info() -> PgTypeInfo {
                    <Uuid as Type<Postgres>>::type_info()
                }
            }

            impl PgHasArrayType for $name {
                fn array_type_info() -> PgTypeInfo {
                    <Uuid as PgHasArrayType>::array_type_info()
                }
            }

            impl Encode<'_, Postgres> for $name {
                fn encode_by_ref(
                    &self,
                    buf: &mut PgArgumentBuffer,
                ) -> ::std::result::Result<IsNull, BoxDynError> {
                    <Uuid as Encode<'_, Postgres>>::encode_by_ref(&self.0, buf)
                }
            }

            impl<'r> Decode<'r, Postgres> for $name {
                fn decode(value: PgValueRef<'r>) -> ::std::result::Result<Self, BoxDynError> {
                    <Uuid as Decode<'r, Postgres>>::decode(value).map(Self)
                }
            }
        };
    };
}

/// A `UUIDv7` whose time part comes from `clock`; ids made by one process in the same
/// millisecond still ascend.
#[doc(hidden)]
#[must_use]
pub fn uuid_v7(clock: &crate::Clock) -> uuid::Uuid {
    static CONTEXT: std::sync::Mutex<uuid::ContextV7> =
        std::sync::Mutex::new(uuid::ContextV7::new());
    let now = clock.now();
    let seconds = u64::try_from(now.unix_timestamp()).unwrap_or(0);
    uuid::Uuid::new_v7(uuid::Timestamp::from_unix(
        &CONTEXT,
        seconds,
        now.nanosecond(),
    ))
}

#[cfg(test)]
mod tests {
    use crate::Clock;

    #[test]
    fn ids_of_one_process_ascend_even_within_one_instant() {
        let clock = Clock::held_at(time::OffsetDateTime::UNIX_EPOCH);
        let ids: Vec<_> = (0..1000).map(|_| super::uuid_v7(&clock)).collect();
        assert!(ids.is_sorted() && ids.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
