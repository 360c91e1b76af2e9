//! The API description of a service, and a page to try it: `/openapi.json` and `/docs`.
//!
//! Handlers describe what is theirs. What the frame around every handler may answer is added here,
//! so that it is neither forgotten nor repeated.

use axum::Router;
use tasuki_contract::error::{self as codes, ErrorBody};
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    Components, ContentBuilder, InfoBuilder, OpenApi, PathItem, Ref, RefOr, Response,
    ResponseBuilder,
};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_swagger_ui::SwaggerUi;

/// The routes of `service` with their description and the page beside them.
pub fn described(service: &str, about: &str, routes: OpenApiRouter) -> Router {
    let (routes, mut api) = routes.split_for_parts();
    api.info = InfoBuilder::new()
        .title(format!("Tasuki {service}"))
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(about))
        .build();
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(
            "An API key (tsk_…), an operator token (tso_…) or a service token.",
        ))
        .build();
    api.components
        .get_or_insert_with(Components::new)
        .add_security_scheme("bearer", SecurityScheme::Http(bearer));
    add_common_answers(&mut api);
    routes.merge(SwaggerUi::new("/docs").url("/openapi.json", api))
}

/// What any call may be answered, where its handler has said nothing of it.
fn add_common_answers(api: &mut OpenApi) {
    let components = api.components.get_or_insert_with(Components::new);
    components
        .schemas
        .entry(ErrorBody::name().into_owned())
        .or_insert_with(ErrorBody::schema);
    for operation in api.paths.paths.values_mut().flat_map(operations) {
        let takes_body = operation.request_body.is_some();
        let takes_more = operation.parameters.as_ref();
        let takes_any = takes_body || takes_more.is_some_and(|all| !all.is_empty());
        let is_closed = operation.security.is_some();
        for (may, status, code, why) in [
            (takes_any, "400", codes::BAD_REQUEST, "names what is wrong"),
            (
                is_closed,
                "401",
                codes::UNAUTHORIZED,
                "no credential, or one that is not valid",
            ),
            (
                takes_body,
                "413",
                codes::PAYLOAD_TOO_LARGE,
                "the body is too large",
            ),
            (
                takes_body,
                "415",
                codes::UNSUPPORTED_MEDIA_TYPE,
                "the body is not plain `application/json`",
            ),
            (
                true,
                "504",
                codes::TIMEOUT,
                "the answer did not come in time; it may have been done",
            ),
        ] {
            if may {
                let all = &mut operation.responses.responses;
                let common = || RefOr::T(refusal(code, why));
                all.entry(status.to_owned()).or_insert_with(common);
            }
        }
    }
}

fn operations(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let all = [
        &mut path.get,
        &mut path.put,
        &mut path.post,
        &mut path.delete,
        &mut path.patch,
    ];
    all.into_iter().flatten()
}

fn refusal(code: &str, why: &str) -> Response {
    let body = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name(ErrorBody::name())))
        .build();
    ResponseBuilder::new()
        .description(format!("`{code}`: {why}"))
        .content("application/json", body)
        .build()
}
