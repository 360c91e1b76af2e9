//! Callers against a real database: credentials that are made, checked, revoked, imported and
//! looked up while the database is away.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::routing::get;
use axum::{Extension, Router};
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{Request, Response, StatusCode};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgPool, SqlSafeStr as _};
use tasuki::migrate::Plan;
use tasuki::{Clock, Schema};
use tasuki_contract::ids::CredentialId;
use tasuki_service::auth::credentials::{
    Credential, Credentials, Error, Kind, NewCredential, ScopeName, State,
};
use tasuki_service::auth::{self, Allowed, Authenticator, Caller, FromService, Operator, Scope};
use tasuki_service::config;
use tasuki_testkit::{TestDb, eventually};
use tower::ServiceExt as _;

const AN_HOUR: Duration = Duration::from_secs(3600);
/// Asks the database every time.
const NO_CACHE: Duration = Duration::ZERO;

/// Keeps every lookup waiting until the transaction ends.
const LOCK: &str = "LOCK TABLE shop.credentials IN ACCESS EXCLUSIVE MODE";
/// A row for each statement that waits for a lock.
const BLOCKED: &str = "
SELECT FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
WHERE NOT granted AND datname = current_database()";

struct Pay;
impl Scope for Pay {
    const NAME: &'static str = "shop:pay";
}

/// A service `shop` with a database of its own.
struct Shop {
    db: TestDb,
    credentials: Credentials,
    routes: Router,
}

impl Shop {
    async fn start(credential_cache: Duration) -> Self {
        let db = TestDb::new(&[Plan::rendered("service", &schema(), &[auth::STEP])]).await;
        let routes = routes(db.pool.clone(), credential_cache);
        Self {
            db,
            credentials: Credentials::new(&schema()),
            routes,
        }
    }

    async fn create(&self, wanted: &NewCredential) -> Credential {
        let mut db = self.db.pool.acquire().await.unwrap();
        let clock = Clock::system();
        let made = self.credentials.create(&mut db, &clock, wanted).await;
        made.unwrap()
    }

    async fn revoke(&self, id: CredentialId) {
        let mut db = self.db.pool.acquire().await.unwrap();
        let revoked = self.credentials.revoke(&mut db, id).await.unwrap();
        assert_eq!(revoked.state, State::Revoked);
    }

    async fn execute(&self, sql: &'static str) {
        self.db.pool.execute(sql).await.unwrap();
    }

    async fn ask(&self, path: &str, credential: &str) -> (StatusCode, String) {
        ask(&self.routes, path, &[&format!("Bearer {credential}")]).await
    }

    async fn status(&self, path: &str, credential: &str) -> StatusCode {
        self.ask(path, credential).await.0
    }
}

fn schema() -> Schema {
    Schema::new("shop").unwrap()
}

fn settings(credential_cache: Duration) -> config::Auth {
    config::Auth {
        key_dir: None,
        token_lifetime: Duration::from_secs(60),
        clock_skew: Duration::from_secs(5),
        credential_cache,
        jwks_cache: AN_HOUR,
        issuers: BTreeMap::new(),
        callers: BTreeMap::new(),
    }
}

fn routes(pool: PgPool, credential_cache: Duration) -> Router {
    let settings = settings(credential_cache);
    let shop = Authenticator::new("shop", &schema(), pool, &settings, &Clock::system());
    Router::new()
        .route("/caller", get(async |caller: Caller| caller.identity()))
        .route(
            "/pay",
            get(async |allowed: Allowed<Pay>| allowed.caller.identity()),
        )
        .route(
            "/operator",
            get(async |operator: Operator| operator.name.to_string()),
        )
        .route(
            "/service",
            get(async |from: FromService| from.service.to_string()),
        )
        .layer(Extension(shop.unwrap()))
}

async fn ask(routes: &Router, path: &str, authorization: &[&str]) -> (StatusCode, String) {
    let mut request = Request::get(path);
    for value in authorization {
        request = request.header(AUTHORIZATION, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    let response: Response<Body> = routes.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let challenged = response.headers().contains_key(WWW_AUTHENTICATE);
    assert_eq!(challenged, status == StatusCode::UNAUTHORIZED);
    let body = to_bytes(response.into_body(), 10_000).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn message(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap();
    body.get("message")
        .and_then(Value::as_str)
        .unwrap()
        .to_owned()
}

fn a_key(scope: &str) -> NewCredential {
    let scope: ScopeName = scope.parse().unwrap();
    NewCredential::api_key("payment provider A", [scope]).unwrap()
}

fn an_operator() -> NewCredential {
    NewCredential::operator("ann").unwrap()
}

/// The same credential with another secret.
fn with_wrong_secret(credential: &Credential) -> String {
    let (public, _secret) = credential.expose().split_at(37);
    format!("{public}{}", "A".repeat(43))
}

#[tokio::test]
async fn every_statement_can_be_prepared() {
    let shop = Shop::start(NO_CACHE).await;
    let mut db = shop.db.pool.acquire().await.unwrap();
    let mut prepared = 0;
    for sql in shop.credentials.statements() {
        let result = db.prepare(AssertSqlSafe(sql).into_sql_str()).await;
        assert!(result.is_ok(), "{sql}\n{:?}", result.err());
        prepared += 1;
    }
    assert_eq!(prepared, 5);
}

#[tokio::test]
async fn a_key_opens_what_its_scope_says_and_an_operator_opens_more() {
    let shop = Shop::start(AN_HOUR).await;
    let key = shop.create(&a_key("shop:pay")).await;
    let other = shop.create(&a_key("shop:refund")).await;
    let operator = shop.create(&an_operator()).await;

    // By its name, so that it is the same caller after a rotation.
    let identity = "api-key:payment provider A".to_owned();
    assert_eq!(
        shop.ask("/pay", key.expose()).await,
        (StatusCode::OK, identity)
    );
    assert_eq!(shop.status("/pay", operator.expose()).await, StatusCode::OK);
    let (status, body) = shop.ask("/pay", other.expose()).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(
        message(&body),
        "this needs an API key with the scope shop:pay"
    );

    let ann = (StatusCode::OK, "ann".to_owned());
    assert_eq!(shop.ask("/operator", operator.expose()).await, ann);
    assert_eq!(
        shop.status("/operator", key.expose()).await,
        StatusCode::FORBIDDEN
    );
    for credential in [&key, &operator] {
        assert_eq!(
            shop.status("/caller", credential.expose()).await,
            StatusCode::OK
        );
        let service = shop.status("/service", credential.expose()).await;
        assert_eq!(service, StatusCode::FORBIDDEN);
    }
}

#[tokio::test]
async fn unknown_wrong_expired_and_revoked_credentials_are_refused_with_the_same_words() {
    let shop = Shop::start(NO_CACHE).await;
    let good = shop.create(&a_key("shop:pay")).await;
    let wrong = with_wrong_secret(&good);
    let other_kind = good.expose().replacen("tsk_", "tso_", 1);
    let unknown = format!("tsk_{}_{}", "0".repeat(32), &good.expose()[37..]);
    let expired = shop
        .create(&a_key("shop:pay").expiring_in(AN_HOUR).unwrap())
        .await;
    let revoked = shop.create(&a_key("shop:pay")).await;
    assert_eq!(shop.status("/pay", expired.expose()).await, StatusCode::OK);
    assert_eq!(shop.status("/pay", revoked.expose()).await, StatusCode::OK);
    shop.execute("UPDATE shop.credentials SET expires_at = now() WHERE expires_at IS NOT NULL")
        .await;
    shop.revoke(revoked.id()).await;

    let expected = shop.ask("/pay", &wrong).await;
    assert_eq!(expected.0, StatusCode::UNAUTHORIZED);
    for credential in [&*other_kind, &unknown, expired.expose(), revoked.expose()] {
        assert_eq!(shop.ask("/pay", credential).await, expected);
        let (_, body) = shop.ask("/pay", credential).await;
        assert!(!body.contains(&credential[4..36]));
    }
    assert_eq!(shop.status("/pay", good.expose()).await, StatusCode::OK);
}

#[tokio::test]
async fn requests_without_one_well_formed_credential_are_refused_in_a_sentence() {
    let shop = Shop::start(NO_CACHE).await;
    let good = format!("Bearer {}", shop.create(&an_operator()).await.expose());
    for (authorization, status, told) in [
        (
            &[][..],
            401,
            "a credential is required: send Authorization: Bearer <credential>",
        ),
        (
            &["Basic YTpi"],
            401,
            "a credential is required: send Authorization: Bearer <credential>",
        ),
        (&["Bearer"], 401, "the credential is malformed"),
        (&["Bearer tsk_x_y"], 401, "the credential is malformed"),
        (&["Bearer a.b.c"], 401, "the credential is malformed"),
        (&["Bearer x"], 401, "the credential is malformed"),
        (&[&*good, &*good], 400, "more than one Authorization header"),
    ] {
        let (answer, body) = ask(&shop.routes, "/caller", authorization).await;
        assert_eq!((answer.as_u16(), &*message(&body)), (status, told));
    }
}

#[tokio::test]
async fn the_table_holds_no_secret() {
    let shop = Shop::start(NO_CACHE).await;
    let key = shop.create(&a_key("shop:pay")).await;
    let row: String = sqlx::query_scalar("SELECT credentials::text FROM shop.credentials")
        .fetch_one(&shop.db.pool)
        .await
        .unwrap();
    assert!(row.contains(&key.id().to_string()));
    assert!(!row.contains(&key.expose()[37..]), "{row}");
}

#[tokio::test]
async fn a_checked_key_is_believed_for_as_long_as_configured_and_not_longer() {
    let patient = Shop::start(AN_HOUR).await;
    let key = patient.create(&a_key("shop:pay")).await;
    assert_eq!(patient.status("/pay", key.expose()).await, StatusCode::OK);
    // What was wrong from the start is not believed because of its neighbour.
    let wrong = with_wrong_secret(&key);
    let status = patient.status("/pay", &wrong).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    patient.revoke(key.id()).await;
    assert_eq!(patient.status("/pay", key.expose()).await, StatusCode::OK);

    let brief = Shop::start(Duration::from_millis(50)).await;
    let key = brief.create(&a_key("shop:pay")).await;
    assert_eq!(brief.status("/pay", key.expose()).await, StatusCode::OK);
    brief.revoke(key.id()).await;
    eventually("a revoked key is refused", async || {
        let status = brief.status("/pay", key.expose()).await;
        (status == StatusCode::UNAUTHORIZED).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_refusal_is_not_remembered_for_long() {
    let shop = Shop::start(AN_HOUR).await;
    let key = shop.create(&a_key("shop:pay")).await;
    shop.execute("CREATE TABLE shop.kept AS TABLE shop.credentials")
        .await;
    shop.execute("DELETE FROM shop.credentials").await;
    assert_eq!(
        shop.status("/pay", key.expose()).await,
        StatusCode::UNAUTHORIZED
    );
    shop.execute("INSERT INTO shop.credentials TABLE shop.kept")
        .await;
    eventually("the key is accepted", async || {
        let status = shop.status("/pay", key.expose()).await;
        (status == StatusCode::OK).then_some(())
    })
    .await;
}

#[tokio::test]
async fn while_the_database_is_away_nobody_is_called_unauthorized_who_may_be_fine() {
    let shop = Shop::start(AN_HOUR).await;
    let known = shop.create(&a_key("shop:pay")).await;
    let fresh = shop.create(&a_key("shop:pay")).await;
    assert_eq!(shop.status("/pay", known.expose()).await, StatusCode::OK);
    shop.db.pool.close().await;

    assert_eq!(shop.status("/pay", known.expose()).await, StatusCode::OK);
    let (status, body) = shop.ask("/pay", fresh.expose()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        serde_json::from_str::<Value>(&body).unwrap()["code"],
        "UNAVAILABLE"
    );
    // A malformed one never gets as far as the database.
    let malformed = shop.status("/pay", "tsk_garbage").await;
    assert_eq!(malformed, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn many_requests_with_one_key_share_one_lookup() {
    let shop = Shop::start(AN_HOUR).await;
    let key = shop.create(&a_key("shop:pay")).await;
    // The first lookup waits for this lock; whoever does not share it would wait, too.
    let mut held = shop.db.pool.begin().await.unwrap();
    held.execute(LOCK).await.unwrap();
    let all = futures_util::future::join_all((0..50).map(|_| shop.status("/pay", key.expose())));
    let used = async {
        eventually("a lookup waits", async || {
            held.fetch_optional(BLOCKED).await.unwrap()
        })
        .await;
        let used = held.fetch_all(BLOCKED).await.unwrap().len();
        held.rollback().await.unwrap();
        used
    };
    let (all, used) = futures_util::future::join(all, used).await;
    assert_eq!(used, 1, "the one that waits for all");
    assert!(all.iter().all(|status| *status == StatusCode::OK));
}

#[tokio::test]
async fn a_flood_of_made_up_keys_leaves_half_of_the_connections_to_others() {
    let shop = Shop::start(AN_HOUR).await;
    let mut held = shop.db.pool.begin().await.unwrap();
    held.execute(LOCK).await.unwrap();
    let made_up = |n: u128| format!("tsk_{n:032x}_{}", "A".repeat(43));
    let flood = (0..50).map(async |n| shop.status("/pay", &made_up(n)).await);
    let others = async {
        let half = usize::try_from(shop.db.pool.options().get_max_connections() / 2).unwrap();
        eventually("lookups wait", async || {
            let blocked = held.fetch_all(BLOCKED).await.unwrap().len();
            assert!(blocked <= half, "{blocked}");
            (blocked == half).then_some(())
        })
        .await;
        shop.execute("SELECT 1").await;
        held.rollback().await.unwrap();
    };
    let (flood, ()) =
        futures_util::future::join(futures_util::future::join_all(flood), others).await;
    assert!(
        flood
            .iter()
            .all(|status| *status == StatusCode::UNAUTHORIZED)
    );
}

#[tokio::test]
async fn an_imported_credential_survives_a_wiped_database() {
    let shop = Shop::start(NO_CACHE).await;
    let key = shop.create(&a_key("shop:pay")).await;
    shop.execute("DELETE FROM shop.credentials").await;
    let text = key.expose().to_owned();
    let read: Credential = text.parse().unwrap();

    let mut db = shop.db.pool.acquire().await.unwrap();
    let import =
        async |db: &mut _, wanted: &NewCredential| shop.credentials.import(db, &read, wanted).await;
    let first = import(&mut db, &a_key("shop:pay")).await.unwrap();
    let again = import(&mut db, &a_key("shop:pay")).await.unwrap();
    assert_eq!(first, again);
    assert_eq!(first.state, State::Active);
    assert_eq!(shop.status("/pay", &text).await, StatusCode::OK);

    // A newer release may give the development key more to do.
    let wider = import(&mut db, &a_key("shop:refund")).await.unwrap();
    assert_eq!(wider.scopes, ["shop:refund"]);
    assert_eq!(shop.status("/pay", &text).await, StatusCode::FORBIDDEN);

    shop.revoke(key.id()).await;
    let revoked = import(&mut db, &a_key("shop:pay")).await.unwrap();
    assert_eq!(revoked.state, State::Revoked);
    assert_eq!(shop.status("/pay", &text).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn an_import_takes_no_other_credential_over() {
    let shop = Shop::start(NO_CACHE).await;
    let key = shop.create(&a_key("shop:pay")).await;
    let impostor: Credential = with_wrong_secret(&key).parse().unwrap();
    let promoted: Credential = key.expose().replacen("tsk_", "tso_", 1).parse().unwrap();

    let mut db = shop.db.pool.acquire().await.unwrap();
    let taken = shop
        .credentials
        .import(&mut db, &impostor, &a_key("shop:refund"))
        .await;
    assert!(
        matches!(taken, Err(Error::Taken(id)) if id == key.id()),
        "{taken:?}"
    );
    let taken = shop
        .credentials
        .import(&mut db, &promoted, &an_operator())
        .await;
    assert!(matches!(taken, Err(Error::Taken(_))), "{taken:?}");
    let other = shop.credentials.import(&mut db, &key, &an_operator()).await;
    assert!(matches!(other, Err(Error::OtherKind { .. })), "{other:?}");
    assert_eq!(shop.status("/pay", key.expose()).await, StatusCode::OK);
}

#[tokio::test]
async fn a_list_shows_who_has_what_and_whether_it_works() {
    let shop = Shop::start(NO_CACHE).await;
    let key = shop
        .create(&a_key("shop:pay").expiring_in(AN_HOUR).unwrap())
        .await;
    let operator = shop.create(&an_operator()).await;
    let gone = shop.create(&an_operator()).await;
    shop.revoke(gone.id()).await;
    shop.execute("UPDATE shop.credentials SET expires_at = now() WHERE expires_at IS NOT NULL")
        .await;

    let mut db = shop.db.pool.acquire().await.unwrap();
    let list = shop.credentials.list(&mut db).await.unwrap();
    let shown: Vec<_> = list
        .iter()
        .map(|row| (row.id, row.kind, row.state))
        .collect();
    assert_eq!(
        shown,
        [
            (key.id(), Kind::ApiKey, State::Expired),
            (operator.id(), Kind::Operator, State::Active),
            (gone.id(), Kind::Operator, State::Revoked),
        ]
    );
    assert_eq!(
        (&*list[0].name, &*list[0].scopes),
        ("payment provider A", &["shop:pay".to_owned()][..])
    );
}

#[tokio::test]
async fn revoking_twice_changes_nothing_and_revoking_nothing_is_an_error() {
    let shop = Shop::start(NO_CACHE).await;
    let key = shop.create(&an_operator()).await;
    let mut db = shop.db.pool.acquire().await.unwrap();
    let first = shop.credentials.revoke(&mut db, key.id()).await.unwrap();
    let again = shop.credentials.revoke(&mut db, key.id()).await.unwrap();
    assert_eq!(first, again);

    let nobody = CredentialId::new(&Clock::system());
    let error = shop.credentials.revoke(&mut db, nobody).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("there is no credential {nobody}")
    );
}

#[tokio::test]
async fn a_credential_joins_the_transaction_that_makes_it() {
    let shop = Shop::start(NO_CACHE).await;
    let mut db = shop.db.pool.acquire().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let made = shop
        .credentials
        .create(&mut tx, &Clock::system(), &an_operator())
        .await;
    tx.rollback().await.unwrap();
    let status = shop.status("/caller", made.unwrap().expose()).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}
