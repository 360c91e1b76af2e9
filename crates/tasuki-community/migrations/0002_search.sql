-- Why:   events are found by what they say.
-- Phase: expand. Nothing reads these tables yet.
-- Lock:  none on existing tables.
-- Undo:  DROP TABLE cn_relay.search_documents;

-- One document for every event that can be seen and searched. A rebuild fills another table beside it,
-- which then takes its place and its name.
CREATE TABLE cn_relay.search_documents (
    event_id bytea PRIMARY KEY,
    created_at bigint NOT NULL,
    terms tsvector NOT NULL
);

CREATE INDEX search_documents_terms_idx ON cn_relay.search_documents USING gin (terms);
CREATE INDEX search_documents_created_idx
    ON cn_relay.search_documents (created_at DESC, event_id);
