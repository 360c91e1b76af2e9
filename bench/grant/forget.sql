-- What earlier rounds left behind that no history is: events that no relay took, and kept answers.
TRUNCATE entitlement.outbox_events, entitlement.idempotency_keys;
