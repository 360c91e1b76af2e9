//! The statements, and the description of the table for the lease engine.

use crate::lease::{Letter, Table};

/// What was said to a saga, oldest first; NULL if nothing was. Alias `t` is the saga.
macro_rules! signals {
    ($of:literal) => {
        concat!(
            "(
        SELECT json_agg(json_build_object('name', s.name, 'payload', s.payload) ORDER BY s.signal_id)
        FROM {schema}.saga_signals AS s
        WHERE s.saga_id = ",
            $of,
            "
    )::text AS signals"
        )
    };
}

/// `$5` names and `$6` versions of the definitions that this process knows.
const PICK: &str = "
    SELECT t.ctid
    FROM {table} AS t
    WHERE {claimable}
        AND EXISTS (
            SELECT FROM unnest($5::text [], $6::int []) AS known (definition, version)
            WHERE known.definition = t.definition AND known.version = t.version
        )
    ORDER BY t.next_retry_at
    LIMIT $1
    FOR UPDATE OF t SKIP LOCKED";

pub(super) const SAGAS: Table = Table {
    name: "sagas",
    key: "saga_id",
    claimed: "PROCESSING",
    columns: concat!(
        "
    t.definition,
    t.version,
    t.moves,
    t.story::text AS story,
    t.traceparent,
    t.lost_count,
    extract(EPOCH FROM t.deadline_at - clock_timestamp())::float8 AS remaining,
    ",
        signals!("t.saga_id")
    ),
    with: "",
    pick: PICK,
    // No saga dies: it needs a person, and has a state for that.
    letter: Letter {
        queue: "definition",
        kind: "state",
        payload: "convert_to(story::text, 'UTF8')",
    },
    lost: Some("lost_count"),
};

/// One write for many sagas, each fenced by the token of its claim and the number of its move: a saga
/// that somebody else has by now is left out, and so is missing in the answer.
///
/// `$1` ids, `$2` tokens, `$3` moves, `$4` what (`KEEP` it, let it `WAIT`, `END`), `$5` states, `$6`
/// steps, `$7` stories, `$8` pauses in seconds (NULL: for ever), `$9` whether the deadline ends the
/// wait, `$10` awaited signals, one to a line. `$11` lease in seconds, `$12` owner.
/// Births: `$13` ids, `$14` definitions, `$15` versions, `$16` what, `$17` states, `$18` steps, `$19`
/// stories, `$20` pauses, `$21` awaited signals, `$22` seconds until the deadline, `$23` traces,
/// `$24` tokens.
///
/// A saga in the hands of a process is due when its lease would end: claims don't come past those
/// that run. (The ids once more: a plan that was made on an empty table reads all of it otherwise.)
pub(super) const WRITE: &str = concat!(
    "
WITH mine AS (
    SELECT *
    FROM unnest(
        $1::uuid [], $2::uuid [], $3::int [], $4::text [], $5::text [], $6::text [], $7::text [],
        $8::float8 [], $9::boolean [], $10::text []
    ) AS mine (id, token, moves, what, state, step, story, pause, bounded, awaits)
),

moved AS (
    UPDATE {schema}.sagas AS t
    SET
        state = mine.state,
        step = mine.step,
        story = mine.story::json,
        moves = t.moves + 1,
        awaits = string_to_array(mine.awaits, E'\\n'),
        updated_at = clock_timestamp(),
        lost_count = 0,
        status = CASE WHEN mine.what = 'KEEP' THEN t.status ELSE 'PENDING' END,
        next_retry_at = CASE
            WHEN mine.what = 'KEEP' THEN t.next_retry_at
            WHEN mine.pause IS NULL THEN 'infinity'
            ELSE least(
                clock_timestamp() + make_interval(secs => mine.pause),
                CASE WHEN mine.bounded THEN t.deadline_at END
            )
        END,
        locked_by = CASE WHEN mine.what = 'KEEP' THEN t.locked_by END,
        locked_at = CASE WHEN mine.what = 'KEEP' THEN t.locked_at END,
        lease_until = CASE
            WHEN mine.what = 'KEEP' THEN clock_timestamp() + make_interval(secs => $11)
        END,
        claim_token = CASE WHEN mine.what = 'KEEP' THEN t.claim_token END
    FROM mine
    WHERE t.saga_id = mine.id
        AND t.claim_token = mine.token
        AND t.moves = mine.moves
        AND mine.what <> 'END'
        AND t.saga_id = ANY($1)
    RETURNING t.saga_id
),

gone AS (
    DELETE FROM {schema}.sagas AS t
    USING mine
    WHERE t.saga_id = mine.id
        AND t.claim_token = mine.token
        AND t.moves = mine.moves
        AND mine.what = 'END'
        AND t.saga_id = ANY($1)
    RETURNING
        t.saga_id, t.definition, t.version, t.moves, t.traceparent, t.created_at, t.locked_by,
        mine.state AS ended, mine.story AS told
),

kept AS (
    INSERT INTO {schema}.sagas_done (
        saga_id, definition, version, state, story, moves, traceparent, created_at, locked_by
    )
    SELECT
        saga_id, definition, version, ended, told::json, moves + 1, traceparent, created_at, locked_by
    FROM gone
),

unheard AS (
    DELETE FROM {schema}.saga_signals
    WHERE saga_id = ANY(ARRAY(SELECT gone.saga_id FROM gone))
),

births AS (
    SELECT *
    FROM unnest(
        $13::uuid [], $14::text [], $15::int [], $16::text [], $17::text [], $18::text [],
        $19::text [], $20::float8 [], $21::text [], $22::float8 [], $23::text [], $24::uuid []
    ) AS births (
        id, definition, version, what, state, step, story, pause, awaits, deadline, traceparent, token
    )
),

born AS (
    INSERT INTO {schema}.sagas (
        saga_id, definition, version, state, step, story, moves, awaits, deadline_at, traceparent,
        status, next_retry_at, locked_by, locked_at, lease_until, claim_token
    )
    SELECT
        id,
        definition,
        version,
        state,
        step,
        story::json,
        1,
        string_to_array(awaits, E'\\n'),
        clock_timestamp() + make_interval(secs => deadline),
        traceparent,
        CASE WHEN what = 'KEEP' THEN 'PROCESSING' ELSE 'PENDING' END,
        CASE
            WHEN what = 'KEEP' THEN clock_timestamp() + make_interval(secs => $11)
            WHEN pause IS NULL THEN 'infinity'
            ELSE least(
                clock_timestamp() + make_interval(secs => pause),
                clock_timestamp() + make_interval(secs => deadline)
            )
        END,
        CASE WHEN what = 'KEEP' THEN $12 END,
        CASE WHEN what = 'KEEP' THEN now() END,
        CASE WHEN what = 'KEEP' THEN clock_timestamp() + make_interval(secs => $11) END,
        CASE WHEN what = 'KEEP' THEN token END
    FROM births
    WHERE what <> 'END'
    ON CONFLICT (saga_id) DO NOTHING
    RETURNING saga_id
),

born_done AS (
    INSERT INTO {schema}.sagas_done (
        saga_id, definition, version, state, story, moves, traceparent, created_at, locked_by
    )
    SELECT id, definition, version, state, story::json, 1, traceparent, now(), $12
    FROM births
    WHERE what = 'END'
        AND NOT EXISTS (SELECT FROM {schema}.sagas_done AS d WHERE d.saga_id = births.id)
    RETURNING saga_id
)

SELECT moved.saga_id, ",
    signals!("moved.saga_id"),
    "
FROM moved
UNION ALL
SELECT saga_id, NULL FROM gone
UNION ALL
SELECT saga_id, NULL FROM born
UNION ALL
SELECT saga_id, NULL FROM born_done"
);

/// Those that are still ours, locked until the end of the transaction.
pub(super) const FENCE: &str = "
SELECT t.saga_id
FROM unnest($1::uuid [], $2::uuid [], $3::int []) AS mine (id, token, moves)
INNER JOIN {schema}.sagas AS t
    ON t.saga_id = mine.id AND t.claim_token = mine.token AND t.moves = mine.moves
WHERE t.saga_id = ANY($1)
FOR UPDATE OF t";

/// Whether a saga of this id is there, or was.
pub(super) const EXISTS: &str = "
SELECT
    EXISTS (SELECT FROM {schema}.sagas WHERE saga_id = $1)
    OR EXISTS (SELECT FROM {schema}.sagas_done WHERE saga_id = $1)";

/// Says something to a live saga.
pub(super) const SIGNAL: &str = "
INSERT INTO {schema}.saga_signals (saga_id, name, payload)
SELECT saga_id, $2, $3::json FROM {schema}.sagas
WHERE saga_id = $1";

/// Makes those due that wait for what was said to them.
pub(super) const CALL: &str = "
UPDATE {schema}.sagas AS t
SET next_retry_at = clock_timestamp()
WHERE t.ctid = ANY (ARRAY(
    SELECT called.ctid
    FROM {schema}.saga_signals AS s
    CROSS JOIN LATERAL (
        SELECT w.ctid
        FROM {schema}.sagas AS w
        WHERE w.saga_id = s.saga_id
            AND s.name = ANY(w.awaits)
            AND w.status = 'PENDING'
            AND w.next_retry_at > now()
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS called
))";

/// The leases of an owner that has died end now.
pub(super) const BEREAVE: &str = "
UPDATE {schema}.sagas AS t
SET lease_until = now(), next_retry_at = least(t.next_retry_at, now())
WHERE t.ctid = ANY (ARRAY(
    SELECT s.ctid
    FROM {schema}.sagas AS s
    WHERE s.locked_by = ANY($1) AND s.status = 'PROCESSING'
    FOR UPDATE SKIP LOCKED
))";

/// A live saga for a person who is about to change it.
pub(super) const HOLD: &str = "
SELECT definition, version, moves, story::text AS story
FROM {schema}.sagas
WHERE saga_id = $1 AND state = 'NEEDS_ATTENTION'
FOR UPDATE";

/// What a person decided.
pub(super) const AMEND: &str = "
UPDATE {schema}.sagas
SET
    state = $2,
    step = $3,
    story = $4::json,
    moves = moves + 1,
    updated_at = clock_timestamp(),
    next_retry_at = CASE WHEN $2 = 'NEEDS_ATTENTION' THEN 'infinity'::timestamptz ELSE now() END
WHERE saga_id = $1";

/// Ends a saga as a person decided.
pub(super) const CLOSE: &str = "
WITH gone AS (
    DELETE FROM {schema}.sagas
    WHERE saga_id = $1
    RETURNING *
),

unheard AS (
    DELETE FROM {schema}.saga_signals
    WHERE saga_id = $1
)

INSERT INTO {schema}.sagas_done (
    saga_id, definition, version, state, story, moves, traceparent, created_at, locked_by
)
SELECT saga_id, definition, version, $2, $3::json, moves + 1, traceparent, created_at, locked_by
FROM gone";

pub(super) const GET: &str = "
SELECT
    saga_id, definition, version, state, step, story::text AS story, traceparent, created_at,
    updated_at, NULL::timestamptz AS finished_at, deadline_at,
    CASE WHEN status = 'PENDING' THEN nullif(next_retry_at, 'infinity') END AS due_at, locked_by
FROM {schema}.sagas
WHERE saga_id = $1
UNION ALL
SELECT
    saga_id, definition, version, state, NULL, story::text, traceparent, created_at,
    finished_at, finished_at, NULL, NULL, locked_by
FROM {schema}.sagas_done
WHERE saga_id = $1
LIMIT 1";

/// `$1` state or step, `$2` definition, `$3` before this id, `$4` at most; newest first.
pub(super) const LIST: &str = "
(
    SELECT
        saga_id, definition, version, state, step, created_at, updated_at,
        NULL::timestamptz AS finished_at,
        coalesce(story #>> '{stuck,reason}', story #>> '{failure,reason}') AS reason
    FROM {schema}.sagas
    WHERE ($1::text IS NULL OR state = $1 OR (state = 'STARTED' AND step = $1))
        AND ($2::text IS NULL OR definition = $2)
        AND ($3::uuid IS NULL OR saga_id < $3)
    ORDER BY saga_id DESC
    LIMIT $4
)
UNION ALL
(
    SELECT
        saga_id, definition, version, state, NULL, created_at, finished_at, finished_at,
        story #>> '{failure,reason}'
    FROM {schema}.sagas_done
    WHERE ($1::text IS NULL OR state = $1)
        AND ($2::text IS NULL OR definition = $2)
        AND ($3::uuid IS NULL OR saga_id < $3)
    ORDER BY saga_id DESC
    LIMIT $4
)
ORDER BY saga_id DESC
LIMIT $4";
