//! The API description of a service, and a page to try it: `/openapi.json` and `/docs`.

use axum::Router;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, InfoBuilder};
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
    routes.merge(SwaggerUi::new("/docs").url("/openapi.json", api))
}
