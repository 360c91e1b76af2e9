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

/// A part of a story as text. A NUL is good JSON, and no text of PostgreSQL: one in any input or output
/// would fail the reading of whatever else is in the story.
macro_rules! told {
    ($path:literal) => {
        concat!(
            "replace(story::text, '\\u0000', '\\ufffd')::json #>> '",
            $path,
            "'"
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
    -- Rounded up: a move has its due time a moment before this one.
    extract(EPOCH FROM clock_timestamp() - t.updated_at)::float8 + 0.001 AS rested,
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
/// `$24` tokens. `$25` sagas and `$26` names of what was said to them and has been heard.
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
        attempt_count = 0,
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

heard AS (
    DELETE FROM {schema}.saga_signals AS s
    USING unnest($25::uuid [], $26::text []) AS said (id, name)
    WHERE s.saga_id = said.id
        AND s.name = said.name
        AND s.saga_id = ANY($25)
        AND said.id IN (SELECT moved.saga_id FROM moved)
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

/// Those that are still ours.
macro_rules! ours {
    ($locked:literal) => {
        concat!(
            "
SELECT t.saga_id
FROM unnest($1::uuid [], $2::uuid [], $3::int []) AS mine (id, token, moves)
INNER JOIN {schema}.sagas AS t
    ON t.saga_id = mine.id AND t.claim_token = mine.token AND t.moves = mine.moves
WHERE t.saga_id = ANY($1)",
            $locked
        )
    };
}

/// Locked until the end of the transaction.
pub(super) const FENCE: &str = ours!("\nFOR UPDATE OF t");
/// Locked if nobody else has them locked: by a renewal of ours, or by a person.
pub(super) const FENCE_FREE: &str = ours!("\nFOR UPDATE OF t SKIP LOCKED");
/// Locked by whomever.
pub(super) const STANDING: &str = ours!("");

/// Whether a saga of this id is there, or was.
pub(super) const EXISTS: &str = "
SELECT
    EXISTS (SELECT FROM {schema}.sagas WHERE saga_id = $1)
    OR EXISTS (SELECT FROM {schema}.sagas_done WHERE saga_id = $1)";

/// Says something to a live saga, unless that was said before and has not been heard. Whoever says the
/// same at the same time waits: the first may not be meant in the end.
pub(super) const SIGNAL: &str = "
WITH live AS (
    SELECT saga_id FROM {schema}.sagas
    WHERE saga_id = $1
),

said AS (
    INSERT INTO {schema}.saga_signals (saga_id, name, payload)
    SELECT live.saga_id, $2, $3::json FROM live
    ON CONFLICT (saga_id, name) DO NOTHING
)

SELECT EXISTS (SELECT FROM live)";

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

/// The leases of owners that have died end now. What the server is still at work at for one of them is
/// locked, and is in the answer all the same: it is not over with that owner.
///
/// What is in hand was due when it was claimed, or is due when its first lease would have ended: those
/// that wait for longer than any lease are not looked at.
pub(super) const BEREAVE: &str = "
WITH orphans AS (
    SELECT s.saga_id, s.locked_by
    FROM {schema}.sagas AS s
    WHERE s.next_retry_at < now() + INTERVAL '1 day'
        AND s.status = 'PROCESSING'
        AND s.lease_until > now()
        AND s.locked_by = ANY($1)
),

ended AS (
    UPDATE {schema}.sagas AS t
    SET lease_until = now(), next_retry_at = least(t.next_retry_at, now())
    WHERE t.ctid = ANY (ARRAY(
        SELECT s.ctid
        FROM {schema}.sagas AS s
        WHERE s.saga_id = ANY(ARRAY(SELECT o.saga_id FROM orphans AS o))
            AND s.status = 'PROCESSING'
            AND s.locked_by = ANY($1)
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING t.saga_id
)

SELECT o.locked_by, count(e.saga_id)
FROM orphans AS o
LEFT JOIN ended AS e ON e.saga_id = o.saga_id
GROUP BY o.locked_by";

/// A live saga for a person who is about to change it.
pub(super) const HOLD: &str = "
SELECT definition, version, moves, story::text AS story
FROM {schema}.sagas
WHERE saga_id = $1 AND state = 'NEEDS_ATTENTION'
FOR UPDATE";

/// What a person decided. `$5` what it was told that does not count any more, `$6` its time limit from
/// now on, in seconds; NULL: the time that it was parked is not taken off.
pub(super) const AMEND: &str = "
WITH forgotten AS (
    DELETE FROM {schema}.saga_signals
    WHERE saga_id = $1 AND name = $5
)

UPDATE {schema}.sagas
SET
    state = $2,
    step = $3,
    story = $4::json,
    moves = moves + 1,
    deadline_at = coalesce(
        clock_timestamp() + make_interval(secs => $6::float8),
        deadline_at + (clock_timestamp() - updated_at)
    ),
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

/// `$1` state or step, `$2` definition, `$3` before this id, `$4` at most; newest first. Those that have
/// ended, which are many, are not looked through for one that has not.
pub(super) const LIST: &str = concat!(
    "
(
    SELECT
        saga_id, definition, version, state, step, created_at, updated_at,
        NULL::timestamptz AS finished_at,
        coalesce(",
    told!("{stuck,reason}"),
    ", ",
    told!("{failure,reason}"),
    ") AS reason
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
        ",
    told!("{failure,reason}"),
    "
    FROM {schema}.sagas_done
    WHERE ($1::text IS NULL OR state = $1)
        AND ($1::text IS NULL OR $1 IN ('COMPLETED', 'COMPENSATED'))
        AND ($2::text IS NULL OR definition = $2)
        AND ($3::uuid IS NULL OR saga_id < $3)
    ORDER BY saga_id DESC
    LIMIT $4
)
ORDER BY saga_id DESC
LIMIT $4"
);
