//! The statements of the log, as text: `{schema}` is rendered once.

pub(super) const LOG: &str = "SELECT log_id FROM {schema}.twopc_log";

/// The coordinator claims its own row: nobody else takes it for as long as the lease holds.
pub(super) const OPEN: &str = "
INSERT INTO {schema}.twopc_transactions (
    transaction_id, name, branches, status, locked_by, locked_at, lease_until, claim_token
)
VALUES (
    $1, $2, $3, 'PROCESSING', $4, now(), clock_timestamp() + make_interval(secs => $5), $6
)";

/// The one statement that commits. Whoever decided before, recovery or a person, has changed what
/// it looks for.
pub(super) const COMMIT: &str = "
UPDATE {schema}.twopc_transactions
SET
    decision = 'COMMIT',
    decided_at = clock_timestamp(),
    branches = $2,
    lease_until = CASE
        WHEN claim_token = $3 THEN clock_timestamp() + make_interval(secs => $4)
        ELSE lease_until
    END
WHERE transaction_id = $1 AND decision IS NULL";

/// And the one that aborts.
pub(super) const ABORT: &str = "
UPDATE {schema}.twopc_transactions
SET decision = 'ABORT', decided_at = clock_timestamp()
WHERE transaction_id = $1 AND decision IS NULL
RETURNING branches";

pub(super) const STANDING: &str = "
SELECT decision, branches FROM {schema}.twopc_transactions WHERE transaction_id = $1
UNION ALL
SELECT decision, branches FROM {schema}.twopc_finished WHERE transaction_id = $1
LIMIT 1";

/// What participants have answered, beside what a person may have said of others meanwhile.
pub(super) const RECORD: &str = "
UPDATE {schema}.twopc_transactions
SET branches = branches || $3
WHERE transaction_id = $1 AND claim_token = $2";

/// Does not wait for the disk: if it is lost in a crash, everybody is told once more.
pub(super) const FINISH: &str = "
WITH gone AS (
    DELETE FROM {schema}.twopc_transactions AS t
    USING unnest($1::uuid [], $2::uuid [], $3::jsonb []) AS mine (id, token, told)
    WHERE t.transaction_id = mine.id
        AND t.claim_token = mine.token
        AND t.transaction_id = ANY($1)
        AND (SELECT set_config('synchronous_commit', 'off', TRUE)) = 'off'
    RETURNING t.*, t.branches || mine.told AS ended
)

INSERT INTO {schema}.twopc_finished (
    transaction_id, name, decision, decided_at, branches, attempt_count, last_error, locked_by,
    created_at, written_off
)
SELECT
    transaction_id,
    name,
    decision,
    decided_at,
    ended,
    attempt_count,
    last_error,
    locked_by,
    created_at,
    jsonb_path_exists(ended, '$.*.state ? (@ == \"WRITTEN_OFF\")')
FROM gone
RETURNING transaction_id";

/// What is known of branches that somebody found prepared: `$1` their transactions, `$2` their names. One
/// that a transaction waits for no longer ends as was decided, though the transaction is open.
pub(super) const KNOWN: &str = "
SELECT
    found.gid,
    CASE
        WHEN jsonb_path_exists(
            t.branches,
            '$.* ? (@.gid == $gid).state
                ? (@ == \"COMMITTED\" || @ == \"ABORTED\" || @ == \"WRITTEN_OFF\")',
            jsonb_build_object('gid', found.gid)
        ) THEN t.decision
    END AS decision
FROM unnest($1::uuid [], $2::text []) AS found (id, gid)
INNER JOIN {schema}.twopc_transactions AS t ON t.transaction_id = found.id
WHERE t.transaction_id = ANY($1)
UNION ALL
SELECT found.gid, f.decision
FROM unnest($1::uuid [], $2::text []) AS found (id, gid)
INNER JOIN {schema}.twopc_finished AS f ON f.transaction_id = found.id
WHERE f.transaction_id = ANY($1)";

pub(super) const LIST_OPEN: &str = "
SELECT {open} FROM {schema}.twopc_transactions AS t
WHERE ($1::uuid IS NULL OR t.transaction_id < $1)
ORDER BY t.transaction_id DESC
LIMIT $2";

pub(super) const LIST_FINISHED: &str = "
SELECT {finished} FROM {schema}.twopc_finished AS t
WHERE ($1::uuid IS NULL OR t.transaction_id < $1)
ORDER BY t.transaction_id DESC
LIMIT $2";

pub(super) const SHOW: &str = "
SELECT {open} FROM {schema}.twopc_transactions AS t WHERE t.transaction_id = $1
UNION ALL
SELECT {finished} FROM {schema}.twopc_finished AS t WHERE t.transaction_id = $1
LIMIT 1";

/// The columns of a transaction that is open.
pub(super) const OPEN_COLUMNS: &str = "t.transaction_id, t.name, t.decision, t.decided_at,
    t.branches, t.attempt_count, t.last_error, t.locked_by, t.created_at, t.next_retry_at,
    NULL::timestamptz AS finished_at";

/// And of one that is finished.
pub(super) const FINISHED_COLUMNS: &str = "t.transaction_id, t.name, t.decision, t.decided_at,
    t.branches, t.attempt_count, t.last_error, t.locked_by, t.created_at,
    NULL::timestamptz AS next_retry_at, t.finished_at";

pub(super) const TRAIL: &str = "
SELECT action, participant, actor, reason, acted_at
FROM {schema}.twopc_audit
WHERE transaction_id = $1
ORDER BY acted_at, audit_id";

pub(super) const LOCK: &str = "
SELECT decision, branches FROM {schema}.twopc_transactions
WHERE transaction_id = $1
FOR UPDATE";

/// Takes the row from whoever has it, and makes it due: the next claim acts on what a person said. No
/// statement changes a decision, nor does this one.
pub(super) const RESOLVE: &str = "
UPDATE {schema}.twopc_transactions
SET
    decision = $2,
    decided_at = coalesce(decided_at, clock_timestamp()),
    branches = $3,
    status = 'PENDING',
    next_retry_at = clock_timestamp(),
    locked_by = NULL,
    locked_at = NULL,
    lease_until = NULL,
    claim_token = NULL
WHERE transaction_id = $1 AND coalesce(decision, $2) = $2";

pub(super) const AUDIT: &str = "
INSERT INTO {schema}.twopc_audit (audit_id, transaction_id, action, participant, actor, reason)
VALUES (gen_random_uuid(), $1, $2, $3, $4, $5)";
