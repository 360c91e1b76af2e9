//! The extractors, and what they leave open.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use tasuki_contract::ids::CredentialId;

use super::{Authenticator, Refusal};
use crate::http::ApiError;

/// Who calls: one of the three kinds. As an extractor: anybody whom we know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A machine outside.
    ApiKey {
        /// The key's public part.
        id: CredentialId,
        /// What a person called the key.
        name: Arc<str>,
        /// What it may do: `<service>:<verb>`.
        scopes: Arc<[String]>,
    },
    /// A person who runs the platform.
    Operator {
        /// The token's public part.
        id: CredentialId,
        /// What a person called the token.
        name: Arc<str>,
    },
    /// Another service.
    Service {
        /// Its name.
        service: Arc<str>,
        /// The user for whom it calls.
        user: Option<Arc<str>>,
        /// That user's roles.
        roles: Arc<[String]>,
        /// What it may do when it calls for no user, by `auth.callers`: `<service>:<verb>`.
        scopes: Arc<[String]>,
    },
}

impl Caller {
    /// A text that only this caller has: what is kept apart by caller (idempotency keys,
    /// rate limits) is kept apart by this. Two users behind one service differ. API keys of one
    /// name are one caller: a request that is repeated after a rotation is the same request.
    #[must_use]
    pub fn identity(&self) -> String {
        match self {
            Self::ApiKey { name, .. } => format!("api-key:{name}"),
            Self::Operator { id, .. } => format!("operator:{id}"),
            Self::Service { service, user, .. } => match user {
                Some(user) => format!("service:{service}:{user}"),
                None => format!("service:{service}"),
            },
        }
    }
}

/// A scope, as a type that [`Allowed`] asks for.
///
/// ```
/// struct Grant;
/// impl tasuki_service::auth::Scope for Grant {
///     const NAME: &'static str = "entitlement:grant";
/// }
/// ```
pub trait Scope {
    /// `<service>:<verb>`
    const NAME: &'static str;
}

/// An API key with the scope `S`, or an operator.
pub struct Allowed<S> {
    /// Never a service.
    pub caller: Caller,
    scope: PhantomData<fn() -> S>,
}

/// Somebody who may do `S`, perhaps only to what is one user's: an API key with that scope, an
/// operator, or a service. A service that calls for a user may touch what is that user's
/// ([`owns`](Self::owns)); one that calls for itself needs the scope in `auth.callers`.
pub struct Permitted<S> {
    /// Any of the three.
    pub caller: Caller,
    scope: PhantomData<fn() -> S>,
}

/// As [`Permitted`], for what no user may do, whoever calls for them.
pub struct Unattended<S> {
    /// Any of the three, and never for a user.
    pub caller: Caller,
    scope: PhantomData<fn() -> S>,
}

impl<S> Permitted<S> {
    /// Goes on only when this caller may touch what is `owner`'s.
    ///
    /// # Errors
    /// 403 when it calls for another user.
    pub fn owns(&self, owner: &str) -> Result<(), ApiError> {
        match &self.caller {
            Caller::Service {
                user: Some(user), ..
            } if **user != *owner => Err(Refusal::AnothersOwn.into()),
            Caller::Service { .. } | Caller::ApiKey { .. } | Caller::Operator { .. } => Ok(()),
        }
    }
}

/// An operator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operator {
    /// The token's public part.
    pub id: CredentialId,
    /// What a person called the token.
    pub name: Arc<str>,
}

/// Any service that `auth.issuers` names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FromService {
    /// Its name.
    pub service: Arc<str>,
    /// The user for whom it calls.
    pub user: Option<Arc<str>>,
    /// That user's roles.
    pub roles: Arc<[String]>,
}

impl FromService {
    /// The user for whom the service calls.
    ///
    /// # Errors
    /// 403 when it calls for itself.
    pub fn require_user(&self) -> Result<&str, ApiError> {
        let user = self.user.as_deref();
        user.ok_or_else(|| Refusal::NeedsUser.into())
    }

    /// Goes on only when the user has `role`.
    ///
    /// # Errors
    /// 403 that names the role.
    pub fn require_role(&self, role: &'static str) -> Result<(), ApiError> {
        if self.roles.iter().any(|held| held == role) {
            Ok(())
        } else {
            Err(Refusal::NeedsRole(role).into())
        }
    }
}

impl<S> fmt::Debug for Permitted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permitted").field(&self.caller).finish()
    }
}

impl<S> fmt::Debug for Unattended<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Unattended").field(&self.caller).finish()
    }
}

impl<S> fmt::Debug for Allowed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Allowed").field(&self.caller).finish()
    }
}

impl<St: Send + Sync> FromRequestParts<St> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &St) -> Result<Self, ApiError> {
        Ok(caller(parts).await?)
    }
}

impl<S: Scope, St: Send + Sync> FromRequestParts<St> for Allowed<S> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &St) -> Result<Self, ApiError> {
        let caller = caller(parts).await?;
        let allowed = match &caller {
            Caller::ApiKey { scopes, .. } => scopes.iter().any(|held| held == S::NAME),
            Caller::Operator { .. } => true,
            Caller::Service { .. } => false,
        };
        if !allowed {
            return Err(Refusal::NeedsScope(S::NAME).into());
        }
        Ok(Self {
            caller,
            scope: PhantomData,
        })
    }
}

impl<S: Scope, St: Send + Sync> FromRequestParts<St> for Permitted<S> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &St) -> Result<Self, ApiError> {
        let caller = caller(parts).await?;
        match &caller {
            Caller::ApiKey { scopes, .. } if !scopes.iter().any(|held| held == S::NAME) => {
                Err(Refusal::NeedsScope(S::NAME).into())
            }
            Caller::Service {
                user: None, scopes, ..
            } if !scopes.iter().any(|held| held == S::NAME) => {
                Err(Refusal::NeedsCaller(S::NAME).into())
            }
            Caller::ApiKey { .. } | Caller::Operator { .. } | Caller::Service { .. } => Ok(Self {
                caller,
                scope: PhantomData,
            }),
        }
    }
}

impl<S: Scope, St: Send + Sync> FromRequestParts<St> for Unattended<S> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &St) -> Result<Self, ApiError> {
        let Permitted { caller, scope } = Permitted::<S>::from_request_parts(parts, state).await?;
        if let Caller::Service { user: Some(_), .. } = &caller {
            return Err(Refusal::NotForUsers.into());
        }
        Ok(Self { caller, scope })
    }
}

impl<St: Send + Sync> FromRequestParts<St> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &St) -> Result<Self, ApiError> {
        match caller(parts).await? {
            Caller::Operator { id, name } => Ok(Self { id, name }),
            Caller::ApiKey { .. } | Caller::Service { .. } => Err(Refusal::NeedsOperator.into()),
        }
    }
}

impl<St: Send + Sync> FromRequestParts<St> for FromService {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &St) -> Result<Self, ApiError> {
        match caller(parts).await? {
            Caller::Service {
                service,
                user,
                roles,
                ..
            } => Ok(Self {
                service,
                user,
                roles,
            }),
            Caller::ApiKey { .. } | Caller::Operator { .. } => Err(Refusal::NeedsService.into()),
        }
    }
}

/// The caller of this request. Asked once: a layer and a handler get the same answer.
async fn caller(parts: &mut Parts) -> Result<Caller, Refusal> {
    if let Some(caller) = parts.extensions.get::<Caller>() {
        return Ok(caller.clone());
    }
    let authenticator = parts.extensions.get::<Authenticator>().cloned();
    let authenticator = authenticator.ok_or(Refusal::NoAuthenticator)?;
    let caller = authenticator.caller(&parts.headers).await?;
    parts.extensions.insert(caller.clone());
    Ok(caller)
}

#[cfg(test)]
mod tests {
    use http::{Request, StatusCode};

    use super::*;

    struct Pay;
    impl Scope for Pay {
        const NAME: &'static str = "shop:pay";
    }

    fn callers() -> [Caller; 4] {
        let id = CredentialId::new(&tasuki::Clock::system());
        let key = |scope: &str| Caller::ApiKey {
            id,
            name: "provider".into(),
            scopes: [scope.to_owned()].into(),
        };
        let name = "ann".into();
        let service = Caller::Service {
            service: "gateway".into(),
            user: Some("u1".into()),
            roles: ["moderator".to_owned()].into(),
            scopes: [].into(),
        };
        [
            key("shop:pay"),
            key("shop:payout"),
            Caller::Operator { id, name },
            service,
        ]
    }

    async fn extracted<T>() -> Vec<String>
    where
        T: FromRequestParts<(), Rejection = ApiError> + fmt::Debug,
    {
        let mut answers = Vec::new();
        for caller in callers() {
            let mut parts = Request::new(()).into_parts().0;
            parts.extensions.insert(caller);
            answers.push(match T::from_request_parts(&mut parts, &()).await {
                Ok(_) => "ok".to_owned(),
                Err(refused) => {
                    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
                    format!("{refused:?}")
                }
            });
        }
        answers
    }

    #[tokio::test]
    async fn a_scope_opens_to_keys_that_have_exactly_it_and_to_operators() {
        let answers = extracted::<Allowed<Pay>>().await;
        assert_eq!((&*answers[0], &*answers[2]), ("ok", "ok"));
        assert!(answers[1].contains("the scope shop:pay\""), "{answers:?}");
        assert!(answers[3].contains("the scope shop:pay\""), "{answers:?}");
    }

    #[tokio::test]
    async fn a_service_may_act_for_a_user_on_what_is_theirs_and_never_unattended() {
        let open = |answers: Vec<String>| answers.iter().map(|a| a == "ok").collect::<Vec<_>>();
        assert_eq!(
            open(extracted::<Permitted<Pay>>().await),
            [true, false, true, true]
        );
        assert_eq!(
            open(extracted::<Unattended<Pay>>().await),
            [true, false, true, false]
        );
        for (index, caller) in callers().into_iter().enumerate() {
            let permitted = Permitted::<Pay> {
                caller,
                scope: PhantomData,
            };
            assert!(permitted.owns("u1").is_ok());
            assert_eq!(permitted.owns("u2").is_ok(), index != 3);
        }
    }

    #[tokio::test]
    async fn a_service_may_do_for_itself_what_auth_callers_says_and_nothing_else() {
        for (scope, allowed) in [("shop:pay", true), ("shop:payout", false)] {
            let caller = Caller::Service {
                service: "billing".into(),
                user: None,
                roles: [].into(),
                scopes: [scope.to_owned()].into(),
            };
            let mut parts = Request::new(()).into_parts().0;
            parts.extensions.insert(caller);
            let permitted = Permitted::<Pay>::from_request_parts(&mut parts, &()).await;
            assert_eq!(permitted.is_ok(), allowed);
            match Unattended::<Pay>::from_request_parts(&mut parts, &()).await {
                Ok(_) => assert!(allowed),
                Err(refused) => {
                    assert!(!allowed);
                    let told = format!("{refused:?}");
                    assert!(
                        told.contains("the scope shop:pay in auth.callers"),
                        "{told}"
                    );
                }
            }
        }
    }

    #[tokio::test]
    async fn operators_and_services_have_doors_of_their_own() {
        let open = |answers: Vec<String>| answers.iter().map(|a| a == "ok").collect::<Vec<_>>();
        let operator = open(extracted::<Operator>().await);
        assert_eq!(operator, [false, false, true, false]);
        let service = open(extracted::<FromService>().await);
        assert_eq!(service, [false, false, false, true]);
        assert_eq!(open(extracted::<Caller>().await), [true; 4]);
    }

    #[tokio::test]
    async fn a_missing_role_is_named() {
        let mut parts = Request::new(()).into_parts().0;
        parts.extensions.insert(callers()[3].clone());
        let from = FromService::from_request_parts(&mut parts, &())
            .await
            .unwrap();
        assert_eq!(from.require_user().unwrap(), "u1");
        assert!(from.require_role("moderator").is_ok());
        let refused = format!("{:?}", from.require_role("admin").unwrap_err());
        assert!(refused.contains("this needs the role admin"), "{refused}");
    }

    #[tokio::test]
    async fn a_service_without_an_authenticator_answers_500_not_open() {
        let mut parts = Request::new(()).into_parts().0;
        let refused = Caller::from_request_parts(&mut parts, &())
            .await
            .unwrap_err();
        assert_eq!(refused.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[test]
    fn no_two_callers_share_an_identity() {
        let mut all: Vec<_> = callers().iter().map(Caller::identity).collect();
        all.remove(1); // The same key with another scope is the same caller.
        let service = |user: Option<&str>| Caller::Service {
            service: "gateway".into(),
            user: user.map(Arc::from),
            roles: [].into(),
            scopes: [].into(),
        };
        all.extend([service(None), service(Some("u2"))].map(|caller| caller.identity()));
        let before = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), before, "{all:?}");
    }
}
