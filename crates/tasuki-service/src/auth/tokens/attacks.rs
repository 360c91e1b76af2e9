//! Tokens as they should not be, against a real issuer over HTTP; and keys that change or
//! can't be had while tokens are on their way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse as _;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tasuki::Clock;
use time::OffsetDateTime;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;
use crate::auth::{Caller, Refusal};
use crate::config;

const NOW: i64 = 1_800_000_000;

/// The service `gateway` calls the service `shop`.
struct World {
    clock: Clock,
    ring: KeyRing,
    signer: Signer,
    shop: Verifier,
    fetches: Arc<AtomicUsize>,
    listener: JoinSet<()>,
    home: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let clock = Clock::held_at(OffsetDateTime::from_unix_timestamp(NOW).unwrap());
        let ring = KeyRing::open_or_create(home.path(), "gateway", &clock).unwrap();
        let fetches = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&fetches);
        let routes = jwks_routes(ring.clone()).layer(from_fn(move |ask: Request, next: Next| {
            count.fetch_add(1, Ordering::SeqCst);
            next.run(ask)
        }));
        let mut listener = JoinSet::new();
        let url = serve(&mut listener, routes).await;
        Self {
            signer: Signer::new(ring.clone(), Duration::from_secs(60), &clock),
            shop: verifier("shop", &url, &clock),
            clock,
            ring,
            fetches,
            listener,
            home,
        }
    }

    fn token(&self) -> String {
        let token = self
            .signer
            .sign("shop", Some("u1"), &["moderator"])
            .unwrap();
        token.expose_secret().to_owned()
    }

    /// A token with the gateway's own key, kid and algorithm, and whatever is `changed`.
    fn forged(&self, changed: &Value) -> String {
        let mut claims = json!({
            "iss": "gateway", "aud": "shop", "iat": NOW, "nbf": NOW, "exp": NOW + 60,
            "jti": "1", "roles": [],
        });
        for (claim, value) in changed.as_object().unwrap() {
            claims[claim] = value.clone();
        }
        let key = self.ring.signing().unwrap();
        jsonwebtoken::encode(&self.header(), &claims, &key.private).unwrap()
    }

    fn header(&self) -> Header {
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(self.ring.signing().unwrap().kid.to_string());
        header
    }

    async fn verdict(&self, token: &str) -> StatusCode {
        match self.shop.verify(token).await {
            Ok(_) => StatusCode::OK,
            Err(refusal) => crate::http::ApiError::from(refusal).status(),
        }
    }

    fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }
}

async fn serve(tasks: &mut JoinSet<()>, routes: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move { axum::serve(listener, routes).await.unwrap() });
    format!("http://{address}")
}

fn verifier(service: &'static str, gateway: &str, clock: &Clock) -> Verifier {
    let settings = config::Auth {
        key_dir: None,
        token_lifetime: Duration::from_secs(60),
        clock_skew: Duration::from_secs(5),
        credential_cache: Duration::ZERO,
        jwks_cache: Duration::from_secs(300),
        issuers: BTreeMap::from([("gateway".to_owned(), gateway.to_owned())]),
        callers: BTreeMap::from([("gateway".to_owned(), vec!["shop:pay".to_owned()])]),
    };
    let issuers = Issuers::new(&settings, clock).unwrap();
    Verifier::new(service, issuers, settings.clock_skew, clock)
}

fn encoded(part: &Value) -> String {
    URL_SAFE_NO_PAD.encode(part.to_string())
}

#[tokio::test]
async fn a_token_says_who_calls_for_whom_and_costs_one_fetch() {
    let world = World::start().await;
    let expected = Caller::Service {
        service: "gateway".into(),
        user: Some("u1".into()),
        roles: ["moderator".to_owned()].into(),
        scopes: [].into(),
    };
    for _ in 0..3 {
        assert_eq!(world.shop.verify(&world.token()).await.unwrap(), expected);
    }
    assert_eq!(world.fetches(), 1);
}

#[tokio::test]
async fn a_service_has_its_scopes_for_itself_and_never_for_a_user() {
    let world = World::start().await;
    for (user, scopes) in [(None, vec!["shop:pay".to_owned()]), (Some("u1"), vec![])] {
        let token = world.signer.sign("shop", user, &[]).unwrap();
        match world.shop.verify(token.expose_secret()).await.unwrap() {
            Caller::Service { scopes: held, .. } => assert_eq!(*held, *scopes),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_token_without_signature_or_with_the_public_key_as_a_shared_secret_is_refused() {
    let world = World::start().await;
    assert_eq!(world.verdict(&world.token()).await, StatusCode::OK);
    let payload = world.token().split('.').nth(1).unwrap().to_owned();
    let kid = world.header().kid.unwrap();

    for alg in ["none", "None", "NONE", ""] {
        let header = encoded(&json!({"typ": "JWT", "alg": alg, "kid": kid}));
        for signature in ["", "AAAA"] {
            let token = format!("{header}.{payload}.{signature}");
            assert_eq!(
                world.verdict(&token).await,
                StatusCode::UNAUTHORIZED,
                "{alg}"
            );
        }
    }

    let public = world.ring.signing().unwrap().public.clone();
    let as_text = URL_SAFE_NO_PAD.encode(&public);
    for secret in [&public, as_text.as_bytes()] {
        for alg in [Algorithm::HS256, Algorithm::HS512] {
            let header = Header {
                alg,
                ..world.header()
            };
            let claims: Value =
                serde_json::from_slice(&URL_SAFE_NO_PAD.decode(&payload).unwrap()).unwrap();
            let key = EncodingKey::from_secret(secret);
            let token = jsonwebtoken::encode(&header, &claims, &key).unwrap();
            assert_eq!(world.verdict(&token).await, StatusCode::UNAUTHORIZED);
        }
    }
}

#[tokio::test]
async fn a_signed_token_with_a_wrong_claim_is_refused() {
    let world = World::start().await;
    assert_eq!(
        world.verdict(&world.forged(&json!({}))).await,
        StatusCode::OK
    );
    for changed in [
        json!({"aud": "account"}),
        json!({"aud": ["shop"]}),
        json!({"aud": null}),
        json!({"iss": "account"}),
        json!({"iss": ""}),
        json!({"iss": ["gateway"]}),
        json!({"iat": NOW - 66, "nbf": NOW - 66, "exp": NOW - 6}),
        json!({"iat": NOW + 6, "exp": NOW + 60}),
        json!({"nbf": NOW + 6}),
        json!({"exp": NOW + 61}),
        json!({"exp": NOW + 1_000_000}),
        json!({"exp": null}),
        json!({"exp": "soon"}),
        json!({"iat": null}),
        json!({"nbf": null}),
        json!({"jti": null}),
        json!({"user": "a\u{0}b"}),
        json!({"user": ""}),
        json!({"roles": ["Admin!"]}),
        json!({"roles": "admin"}),
    ] {
        let verdict = world.verdict(&world.forged(&changed)).await;
        assert_eq!(verdict, StatusCode::UNAUTHORIZED, "{changed}");
    }
}

#[tokio::test]
async fn a_token_that_was_changed_or_signed_by_somebody_else_is_refused() {
    let world = World::start().await;
    let token = world.token();
    let parts: Vec<_> = token.split('.').collect();
    let mut claims: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
    claims["user"] = json!("root");
    let changed = format!("{}.{}.{}", parts[0], encoded(&claims), parts[2]);
    assert_eq!(world.verdict(&changed).await, StatusCode::UNAUTHORIZED);

    // Another key under the kid of the gateway's, and one that the token brings along.
    let other = KeyRing::open_or_create(world.home.path(), "other", &world.clock).unwrap();
    let private = &other.signing().unwrap().private;
    let stolen_kid = jsonwebtoken::encode(&world.header(), &claims, private).unwrap();
    assert_eq!(world.verdict(&stolen_kid).await, StatusCode::UNAUTHORIZED);
    let mut brought = world.header();
    brought.jku = Some("http://127.0.0.1:1/keys".to_owned());
    let brought = jsonwebtoken::encode(&brought, &claims, private).unwrap();
    assert_eq!(world.verdict(&brought).await, StatusCode::UNAUTHORIZED);

    for garbage in [
        "",
        "a",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "..",
        &token[1..],
        &token[..token.len() - 2],
    ] {
        assert_eq!(
            world.verdict(garbage).await,
            StatusCode::UNAUTHORIZED,
            "{garbage}"
        );
    }
}

#[tokio::test]
async fn headers_that_we_must_understand_and_do_not_are_refused() {
    let world = World::start().await;
    let claims = json!({"iss": "gateway", "aud": "shop", "iat": NOW, "nbf": NOW, "exp": NOW + 60, "jti": "1"});
    let verdict = async |change: &dyn Fn(&mut Header)| {
        let mut header = world.header();
        change(&mut header);
        let key = world.ring.signing().unwrap();
        let token = jsonwebtoken::encode(&header, &claims, &key.private).unwrap();
        world.verdict(&token).await
    };
    assert_eq!(verdict(&|_| ()).await, StatusCode::OK);
    let refused = StatusCode::UNAUTHORIZED;
    assert_eq!(
        verdict(&|header| header.crit = Some(vec!["b64".into()])).await,
        refused
    );
    assert_eq!(
        verdict(&|header| header.typ = Some("at+jwt".into())).await,
        refused
    );
    assert_eq!(verdict(&|header| header.typ = None).await, refused);
    assert_eq!(verdict(&|header| header.kid = None).await, refused);
}

#[tokio::test]
async fn made_up_kids_are_refused_and_cost_at_most_one_fetch_per_second() {
    let world = World::start().await;
    assert_eq!(world.verdict(&world.token()).await, StatusCode::OK);
    let made_up = |n: usize| {
        let mut header = world.header();
        header.kid = Some(format!("made-up-{n}"));
        let claims = json!({"iss": "gateway"});
        let key = world.ring.signing().unwrap();
        jsonwebtoken::encode(&header, &claims, &key.private).unwrap()
    };
    for second in 1..=3 {
        world.clock.advance(Duration::from_secs(1));
        for n in 0..20 {
            assert_eq!(world.verdict(&made_up(n)).await, StatusCode::UNAUTHORIZED);
        }
        assert_eq!(world.fetches(), 1 + second);
    }
}

#[tokio::test]
async fn rotation_refuses_no_token_and_costs_one_fetch() {
    let world = World::start().await;
    let old = world.token();
    assert_eq!(world.verdict(&old).await, StatusCode::OK);

    let new_kid = world.ring.rotate().unwrap();
    world.clock.advance(Duration::from_secs(2));
    let new = world.token();
    assert_eq!(
        jsonwebtoken::decode_header(&new).unwrap().kid,
        Some(new_kid)
    );

    for token in [&old, &new, &old, &new] {
        assert_eq!(world.verdict(token).await, StatusCode::OK);
    }
    assert_eq!(world.fetches(), 2);
}

#[tokio::test]
async fn a_pruned_key_is_believed_until_the_next_fetch_and_not_longer() {
    let world = World::start().await;
    let leaked = world.ring.signing().unwrap();
    assert_eq!(world.verdict(&world.token()).await, StatusCode::OK);
    world.ring.rotate().unwrap();
    world.ring.prune(std::num::NonZeroUsize::MIN).unwrap();

    world.clock.advance(Duration::from_secs(300));
    let now = NOW + 300;
    let mut header = world.header();
    header.kid = Some(leaked.kid.to_string());
    let claims = json!({"iss": "gateway", "aud": "shop", "iat": now, "nbf": now, "exp": now + 60, "jti": "1"});
    let token = jsonwebtoken::encode(&header, &claims, &leaked.private).unwrap();
    assert_eq!(world.verdict(&token).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn while_the_issuer_is_away_known_keys_go_on_and_unknown_ones_are_503_not_401() {
    let mut world = World::start().await;
    assert_eq!(world.verdict(&world.token()).await, StatusCode::OK);
    world.listener.shutdown().await;

    world.clock.advance(Duration::from_secs(600));
    assert_eq!(world.verdict(&world.token()).await, StatusCode::OK);
    world.ring.rotate().unwrap();
    world.clock.advance(Duration::from_secs(2));
    for _ in 0..2 {
        assert_eq!(
            world.verdict(&world.token()).await,
            StatusCode::SERVICE_UNAVAILABLE
        );
    }
}

#[tokio::test]
async fn an_issuer_that_never_answered_well_is_503_until_it_does() {
    let world = World::start().await;
    let mut tasks = JoinSet::new();
    let long = "x".repeat(100_000);
    for body in ["not keys", r#"{"keys":7}"#, &long] {
        let body = body.to_owned();
        let answer = move || std::future::ready(body.clone().into_response());
        let url = serve(&mut tasks, Router::new().fallback(answer)).await;
        let shop = verifier("shop", &url, &world.clock);
        let refused = shop.verify(&world.token()).await.unwrap_err();
        assert!(matches!(refused, Refusal::IssuerAway), "{refused:?}");
    }
    let moved = || std::future::ready((StatusCode::FOUND, [("location", "/")]));
    let url = serve(&mut tasks, Router::new().fallback(moved)).await;
    let shop = verifier("shop", &url, &world.clock);
    let refused = shop.verify(&world.token()).await.unwrap_err();
    assert!(matches!(refused, Refusal::IssuerAway), "{refused:?}");
}

#[tokio::test]
async fn many_requests_with_a_new_key_share_one_fetch() {
    let world = World::start().await;
    let token = world.token();
    let all = futures_util::future::join_all((0..50).map(|_| world.verdict(&token))).await;
    assert!(all.iter().all(|status| *status == StatusCode::OK));
    assert_eq!(world.fetches(), 1);
}
