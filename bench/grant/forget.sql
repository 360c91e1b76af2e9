-- What earlier rounds left behind that no history is: events and how far they went, kept answers,
-- notifications.
TRUNCATE entitlement.outbox_events, entitlement.outbox_published, entitlement.idempotency_keys,
    notification.processed_events, notification.notifications_live,
    notification.notifications_sent, notification.sweeps, notification.consumer_places;
