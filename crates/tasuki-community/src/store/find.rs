//! Stored events that a filter wants, newest first.
//!
//! Every way in goes by an index that ends in the order of the answer, one value of a list at a time, so
//! what it costs is what may be asked for, whatever is stored. A filter has too many shapes for a
//! statement each: the text is put together of fixed pieces, and values are bound.

use sqlx::postgres::PgArguments;
use sqlx::query::QueryAs;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, PgPool, Postgres};
use uuid::Uuid;

use super::ingest::version_key;
use crate::nostr::{Coordinate, Count, Filter, Id, TagFilter};
use crate::search;

/// Bodies up to this length come with what was found, as long as there is room for them; others are
/// fetched when they are sent.
const SHORT: usize = 4096;

/// Events that are counted one by one; of more it is said that they are more.
const COUNTED: i64 = 10_000;
/// Matches that are looked at for a count.
const LOOKED_AT: i64 = 100_000;

/// Connections that look for stored events. One plan serves all values, and may be made when nothing is
/// stored yet: without these it would read all events of a kind to sort them and take the newest, where
/// every way in has an index in the order of the answer.
pub(crate) fn pool(requests: &PgPool) -> PgPool {
    let options = requests.connect_options().as_ref().clone();
    let options = options.options([("enable_sort", "off"), ("enable_bitmapscan", "off")]);
    requests.options().clone().connect_lazy_with(options)
}

/// Connections that count, no more than `most`: a count of whoever has hung up ends in the server, and until
/// then nobody else waits for it. Some search, so each is planned with its values.
pub(crate) fn counting(pool: &PgPool, most: usize) -> PgPool {
    let options = pool.connect_options().as_ref().clone();
    let options = options.options([("plan_cache_mode", "force_custom_plan")]);
    let most = u32::try_from(most).unwrap_or(1);
    let pool = pool.options().clone().max_connections(most);
    pool.connect_lazy_with(options)
}

/// Where events are.
const PLACES: [Place; 2] = [
    Place {
        events: "cn_relay.events",
        tags: "cn_relay.event_tags",
        // The tag knows the partition.
        same: "event.event_id = tag.event_id AND event.ingested_at = tag.ingested_at",
        other: "AND other.ingested_at = event.ingested_at",
    },
    Place {
        events: "cn_relay.kept_events",
        tags: "cn_relay.kept_tags",
        same: "event.event_id = tag.event_id",
        other: "",
    },
];

struct Place {
    events: &'static str,
    tags: &'static str,
    same: &'static str,
    /// The same of another tag.
    other: &'static str,
}

/// An event that was found.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Found {
    event_id: Vec<u8>,
    pub(crate) created_at: i64,
    /// Of its body.
    length: i32,
    /// Unless it is long, or those before it are many.
    pub(crate) body: Option<String>,
}

impl Found {
    pub(crate) fn id(&self) -> Id {
        Id::from_slice(&self.event_id).unwrap_or(Id([0; 32]))
    }

    pub(crate) fn length(&self) -> usize {
        usize::try_from(self.length).unwrap_or_default()
    }
}

/// What `filter` wants, newest first and by id within a second, up to its limit; with up to `room` bytes of
/// bodies.
pub(crate) async fn find(
    connection: &mut PgConnection,
    filter: &Filter,
    room: usize,
) -> sqlx::Result<Vec<Found>> {
    if filter.limit == 0 || filter.is_impossible() {
        return Ok(Vec::new());
    }
    let mut text = Text::default();
    let limit = text.bind(Value::Number(i64::from(filter.limit)));
    let room = text.bind(Value::Number(i64::try_from(room).unwrap_or(i64::MAX)));
    let order = "ORDER BY event.created_at DESC, event.event_id";
    let inner = format!("{order} LIMIT {limit}");
    let parts = PLACES.map(|place| text.ways(filter, &place, "event.body", &inner));
    let [first, second] = parts;
    // The sum is in the order of the answer, and nothing is sorted for it.
    let sql = format!(
        "SELECT event_id, created_at, length,
             CASE WHEN length <= {SHORT} AND sum(length) FILTER (WHERE length <= {SHORT}) OVER (
                 ORDER BY created_at DESC, event_id ROWS UNBOUNDED PRECEDING
             ) <= {room} THEN body END AS body
         FROM (
             SELECT DISTINCT ON (created_at, event_id)
                 event_id, created_at, octet_length(body) AS length, body
             FROM (({first}) UNION ALL ({second})) AS found
             ORDER BY created_at DESC, event_id
             LIMIT {limit}
         ) AS found
         ORDER BY created_at DESC, event_id"
    );
    text.fetch(sql).fetch_all(connection).await
}

/// How many `filters` want, each event once. One that several filters or values want is looked at as
/// often, and there is an end to that, too.
pub(crate) async fn count(
    connection: &mut PgConnection,
    filters: &[Filter],
) -> sqlx::Result<Count> {
    let mut text = Text::default();
    let mut parts =
        vec!["SELECT NULL::bytea AS event_id, 0::bigint AS created_at, NULL AS body".to_owned()];
    // None of the ways in needs more to know that there are too many.
    let limit = format!("LIMIT {}", COUNTED + 1);
    for filter in filters.iter().filter(|filter| !filter.is_impossible()) {
        for place in &PLACES {
            parts.push(text.ways(filter, place, "NULL AS body", &limit));
        }
    }
    let found = parts.join(") UNION ALL (");
    let sql = format!(
        "SELECT count(DISTINCT event_id), count(event_id)
         FROM (SELECT event_id FROM (({found})) AS found LIMIT {LOOKED_AT} + 1) AS looked_at"
    );
    let query = sqlx::query_as::<_, (i64, i64)>(AssertSqlSafe(sql));
    let (events, rows) = text.bound_as(query).fetch_one(connection).await?;
    let count = u64::try_from(events.min(COUNTED)).unwrap_or_default();
    Ok(match events > COUNTED || rows >= LOOKED_AT {
        true => Count::About(count),
        false => Count::Exactly(count),
    })
}

/// The bodies of events, by id; those that nobody sees any more are left out.
pub(crate) async fn bodies(
    connection: &mut PgConnection,
    ids: &[Id],
) -> sqlx::Result<Vec<(Id, String)>> {
    let seen = seen(connection, ids).await?;
    Ok(seen.into_iter().map(|(id, body, _)| (id, body)).collect())
}

/// The same, with their topics.
pub(crate) async fn seen(
    connection: &mut PgConnection,
    ids: &[Id],
) -> sqlx::Result<Vec<(Id, String, Vec<String>)>> {
    let ids: Vec<_> = ids.iter().map(|id| id.0.to_vec()).collect();
    let rows = sqlx::query!(
        r#"
        SELECT event_id AS "event_id!", body AS "body!", topics AS "topics!"
        FROM (
            SELECT event_id, body, topics, expires_at, hidden_at FROM cn_relay.events
            WHERE event_id = ANY($1)
            UNION ALL
            SELECT event_id, body, topics, expires_at, hidden_at FROM cn_relay.kept_events
            WHERE event_id = ANY($1)
        ) AS event
        WHERE hidden_at IS NULL
            AND (expires_at IS NULL OR expires_at > extract(EPOCH FROM clock_timestamp()))
        "#,
        &ids,
    )
    .fetch_all(connection)
    .await?;
    let read = rows.into_iter();
    Ok(read
        .filter_map(|row| Some((Id::from_slice(&row.event_id)?, row.body, row.topics)))
        .collect())
}

/// Those of `ids` that anybody can see.
pub(crate) async fn visible(connection: &mut PgConnection, ids: &[Id]) -> sqlx::Result<Vec<Id>> {
    let ids: Vec<_> = ids.iter().map(|id| id.0.to_vec()).collect();
    let seen = sqlx::query_scalar!(
        r#"
        SELECT event_id AS "event_id!"
        FROM (
            SELECT event_id, expires_at, hidden_at FROM cn_relay.events WHERE event_id = ANY($1)
            UNION ALL
            SELECT event_id, expires_at, hidden_at FROM cn_relay.kept_events WHERE event_id = ANY($1)
        ) AS event
        WHERE hidden_at IS NULL
            AND (expires_at IS NULL OR expires_at > extract(EPOCH FROM clock_timestamp()))
        "#,
        &ids,
    )
    .fetch_all(connection)
    .await?;
    Ok(seen.iter().filter_map(|id| Id::from_slice(id)).collect())
}

/// The current version of what has versions, whether anybody sees it or not.
pub(crate) async fn current(
    connection: &mut PgConnection,
    coordinate: &Coordinate,
) -> sqlx::Result<Option<Id>> {
    let found = sqlx::query_scalar!(
        "SELECT event_id FROM cn_relay.kept_events WHERE version_key = $1",
        version_key(coordinate),
    )
    .fetch_optional(connection)
    .await?;
    Ok(found.as_deref().and_then(Id::from_slice))
}

/// A value of a statement.
enum Value {
    Number(i64),
    Bytes(Vec<Vec<u8>>),
    Numbers(Vec<i32>),
    Keys(Vec<Uuid>),
    Text(String),
}

/// A statement that is put together.
#[derive(Default)]
struct Text {
    values: Vec<Value>,
}

impl Text {
    /// The placeholder of a value.
    fn bind(&mut self, value: Value) -> String {
        self.values.push(value);
        format!("${}", self.values.len())
    }

    /// A SELECT of what `filter` wants in one place: in by the list that narrows most, and everything else
    /// as a condition.
    fn ways(&mut self, filter: &Filter, place: &Place, body: &str, tail: &str) -> String {
        let columns = format!("event.event_id, event.created_at, {body}");
        let events = place.events;
        if let Some(ids) = &filter.ids {
            let ids = self.bind(Value::Bytes(ids.iter().map(|id| id.0.to_vec()).collect()));
            let rest = self.conditions(filter, place, Way::Ids);
            // Few, and by their ids: the offset keeps the order of the answer from deciding the way in.
            return format!(
                "SELECT {columns} FROM {events} AS event WHERE event.event_id = ANY({ids}) {rest} OFFSET 0"
            );
        }
        if let Some(text) = &filter.search {
            return self.by_search(filter, text, place, &columns, tail);
        }
        // Of several tags the one with fewest values; topics are shared by many events.
        let narrowest = filter
            .tags
            .iter()
            .min_by_key(|tag| (tag.name == 't', tag.keys.len()))
            // An author has fewer events than a topic.
            .filter(|tag| tag.name != 't' || filter.authors.is_none());
        if let Some(tag) = narrowest {
            return self.by_tag(filter, tag, place, &columns, tail);
        }
        if let Some(authors) = &filter.authors {
            let authors = authors.iter().map(|key| key.0.to_vec()).collect();
            let each = self.bind(Value::Bytes(authors));
            let rest = self.conditions(filter, place, Way::Authors);
            return format!(
                "SELECT one.* FROM unnest({each}::bytea[]) AS wanted
                 CROSS JOIN LATERAL (
                     SELECT {columns} FROM {events} AS event WHERE event.pubkey = wanted {rest} {tail}
                 ) AS one"
            );
        }
        if let Some(kinds) = &filter.kinds {
            let each = self.bind(Value::Numbers(
                kinds.iter().map(|kind| (*kind).into()).collect(),
            ));
            let rest = self.conditions(filter, place, Way::Kinds);
            return format!(
                "SELECT one.* FROM unnest({each}::integer[]) AS wanted
                 CROSS JOIN LATERAL (
                     SELECT {columns} FROM {events} AS event WHERE event.kind = wanted {rest} {tail}
                 ) AS one"
            );
        }
        let rest = self.conditions(filter, place, Way::Time);
        format!("SELECT {columns} FROM {events} AS event WHERE true {rest} {tail}")
    }

    fn by_search(
        &mut self,
        filter: &Filter,
        text: &str,
        place: &Place,
        columns: &str,
        tail: &str,
    ) -> String {
        let matching = self.matching(text);
        let rest = self.conditions(filter, place, Way::Search);
        let rest = rest.replace("event.created_at", "document.created_at");
        // A word that is everywhere is found by reading the newest documents, in the order of the answer.
        let tail = tail.replace("event.", "document.");
        let events = place.events;
        format!(
            "SELECT {columns} FROM cn_relay.search_documents AS document
             JOIN {events} AS event ON event.event_id = document.event_id
             WHERE {matching} {rest} {tail}"
        )
    }

    /// Whether a document has all words of a search.
    fn matching(&mut self, text: &str) -> String {
        // What has no words was refused before.
        let question = search::Query::of(text, None);
        let (words, rest) = question.map(|it| (it.words, it.rest)).unwrap_or_default();
        let (words, query) = (self.bind(Value::Text(words)), self.bind(Value::Text(rest)));
        format!(
            "document.terms @@
                 (plainto_tsquery('pg_catalog.english', {words}) && {query}::text::tsquery)"
        )
    }

    fn by_tag(
        &mut self,
        filter: &Filter,
        tag: &TagFilter,
        place: &Place,
        columns: &str,
        tail: &str,
    ) -> String {
        let each = self.bind(Value::Keys(tag.keys.iter().map(|key| key.0).collect()));
        let rest = self.conditions(filter, place, Way::Tag(tag.name));
        // The order of the index of tags is that of the answer.
        let tail = tail.replace("event.", "tag.");
        let Place {
            events, tags, same, ..
        } = place;
        let times = rest.replace("event.created_at", "tag.created_at");
        format!(
            "SELECT one.* FROM unnest({each}::uuid[]) AS wanted
             CROSS JOIN LATERAL (
                 SELECT {columns} FROM {tags} AS tag JOIN {events} AS event ON {same}
                 WHERE tag.tag_key = wanted {times} {tail}
             ) AS one"
        )
    }

    /// Everything but the way in.
    fn conditions(&mut self, filter: &Filter, place: &Place, way: Way) -> String {
        let mut all = vec![
            "AND event.hidden_at IS NULL AND (event.expires_at IS NULL
             OR event.expires_at > extract(EPOCH FROM now()))"
                .to_owned(),
        ];
        if let (Some(authors), true) = (&filter.authors, way != Way::Authors) {
            let authors = authors.iter().map(|key| key.0.to_vec()).collect();
            let authors = self.bind(Value::Bytes(authors));
            all.push(format!("AND event.pubkey = ANY({authors})"));
        }
        if let (Some(kinds), true) = (&filter.kinds, way != Way::Kinds) {
            let kinds = kinds.iter().map(|kind| (*kind).into()).collect();
            let kinds = self.bind(Value::Numbers(kinds));
            all.push(format!("AND event.kind = ANY({kinds})"));
        }
        for (time, compared) in [(filter.since, ">="), (filter.until, "<=")] {
            if let Some(time) = time {
                let time = self.bind(Value::Number(time));
                all.push(format!("AND event.created_at {compared} {time}"));
            }
        }
        for tag in filter.tags.iter().filter(|tag| way != Way::Tag(tag.name)) {
            let keys = self.bind(Value::Keys(tag.keys.iter().map(|key| key.0).collect()));
            let Place { tags, other, .. } = place;
            all.push(format!(
                "AND EXISTS (
                     SELECT FROM {tags} AS other
                     WHERE other.tag_key = ANY({keys}) AND other.created_at = event.created_at
                         AND other.event_id = event.event_id {other}
                 )"
            ));
        }
        if let (Some(text), true) = (&filter.search, way != Way::Search) {
            let matching = self.matching(text);
            all.push(format!(
                "AND EXISTS (
                     SELECT FROM cn_relay.search_documents AS document
                     WHERE document.event_id = event.event_id AND {matching}
                 )"
            ));
        }
        all.join(" ")
    }

    fn fetch(self, sql: String) -> QueryAs<'static, Postgres, Found, PgArguments> {
        self.bound_as(sqlx::query_as(AssertSqlSafe(sql)))
    }

    fn bound_as<R>(
        self,
        mut query: QueryAs<'static, Postgres, R, PgArguments>,
    ) -> QueryAs<'static, Postgres, R, PgArguments>
    where
        R: for<'r> FromRow<'r, sqlx::postgres::PgRow>,
    {
        for value in self.values {
            query = match value {
                Value::Number(it) => query.bind(it),
                Value::Bytes(it) => query.bind(it),
                Value::Numbers(it) => query.bind(it),
                Value::Keys(it) => query.bind(it),
                Value::Text(it) => query.bind(it),
            };
        }
        query
    }
}

/// By which list an event is found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Ids,
    Tag(char),
    Authors,
    Kinds,
    Search,
    Time,
}
