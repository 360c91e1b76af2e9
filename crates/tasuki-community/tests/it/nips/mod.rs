//! The protocol, edge by edge: each file is a NIP, and each test a sentence of it.

mod nip01_events;
mod nip01_filters;
mod nip01_subscriptions;
mod nip09;
mod nip40;
mod nip42;
mod nip45;
mod nip50;
mod nip70;
