//! Who may talk to the server: pages that it served itself, on this machine; or whoever has the token.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

/// What is checked of every request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guard {
    pub(crate) token: Option<String>,
}

impl Guard {
    /// Why a request is refused, if it is.
    pub(crate) fn refuses(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Option<(StatusCode, &'static str)> {
        if uri.path() == "/healthz" {
            return None;
        }
        let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let host = text(header::HOST).unwrap_or_default();
        // A page of somebody else, in the browser of our user, has another origin.
        if let Some(origin) = text(header::ORIGIN)
            && origin.split_once("://").is_none_or(|(_, rest)| !rest.eq_ignore_ascii_case(host))
        {
            return Some((StatusCode::FORBIDDEN, "another origin"));
        }
        let changes = !matches!(*method, Method::GET | Method::HEAD);
        // A form of another page could be sent without an origin in old browsers; JSON cannot.
        let is_json = text(header::CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/json"));
        if changes && !is_json {
            return Some((StatusCode::UNSUPPORTED_MEDIA_TYPE, "changes are JSON"));
        }
        match &self.token {
            Some(token) => {
                let bearer = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
                let asked = uri.query().into_iter().flat_map(|query| query.split('&'));
                let mut given = asked.filter_map(|pair| pair.strip_prefix("token=")).chain(bearer);
                let known = given.any(|given| is_same(given.as_bytes(), token.as_bytes()));
                (!known).then_some((StatusCode::UNAUTHORIZED, "the token is missing or wrong"))
            }
            // Another name that leads here is somebody's trick.
            None => (!is_loopback(host)).then_some((StatusCode::FORBIDDEN, "another host")),
        }
    }
}

/// Compares in a time that does not depend on where the difference is.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

pub(crate) async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.refuses(request.method(), request.uri(), request.headers()) {
        Some(refusal) => refusal.into_response(),
        None => {
            let mut response = next.run(request).await;
            let headers = response.headers_mut();
            for (name, value) in [
                ("content-security-policy", "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'"),
                ("x-content-type-options", "nosniff"),
                ("referrer-policy", "no-referrer"),
                ("cache-control", "no-store"),
            ] {
                // What a page says of itself counts: a report has its style in itself.
                headers.entry(name).or_insert(header::HeaderValue::from_static(value));
            }
            response
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn ask(guard: &Guard, method: &Method, uri: &str, headers: &[(&str, &str)]) -> Option<u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(header::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        guard.refuses(method, &uri.parse().unwrap(), &map).map(|(code, _)| code.as_u16())
    }

    #[test]
    fn pages_of_others_are_refused() {
        let guard = Guard::default();
        let (get, post) = (Method::GET, Method::POST);
        let here = ("host", "127.0.0.1:8417");
        let json = ("content-type", "application/json");
        assert_eq!(ask(&guard, &get, "/", &[here]), None);
        assert_eq!(ask(&guard, &get, "/", &[("host", "[::1]:8417")]), None);
        assert_eq!(ask(&guard, &get, "/", &[("host", "localhost:8417")]), None);
        assert_eq!(ask(&guard, &post, "/api/wave", &[here, json, ("origin", "http://127.0.0.1:8417")]), None);
        assert_eq!(ask(&guard, &post, "/api/wave", &[here, json, ("origin", "http://evil.example")]), Some(403));
        assert_eq!(ask(&guard, &get, "/live", &[here, ("origin", "http://127.0.0.1:9999")]), Some(403));
        assert_eq!(ask(&guard, &get, "/live", &[here, ("origin", "null")]), Some(403));
        assert_eq!(ask(&guard, &post, "/api/wave", &[here]), Some(415), "a form of another page");
        let rebound = [("host", "evil.example:8417"), ("origin", "http://evil.example:8417")];
        assert_eq!(ask(&guard, &get, "/", &rebound), Some(403), "a name that was made to lead here");
        assert_eq!(ask(&guard, &get, "/", &[]), Some(403));
        assert_eq!(ask(&guard, &get, "/healthz", &[("host", "anything")]), None);
    }

    #[test]
    fn a_token_is_asked_for_everywhere() {
        let guard = Guard { token: Some("secret".to_owned()) };
        let (get, there) = (Method::GET, ("host", "192.0.2.7:80"));
        assert_eq!(ask(&guard, &get, "/", &[there]), Some(401));
        assert_eq!(ask(&guard, &get, "/?token=secre", &[there]), Some(401));
        assert_eq!(ask(&guard, &get, "/?token=secrets", &[there]), Some(401));
        assert_eq!(ask(&guard, &get, "/?token=secret", &[there]), None);
        assert_eq!(ask(&guard, &get, "/metrics", &[there, ("authorization", "Bearer secret")]), None);
        assert_eq!(ask(&guard, &get, "/?token=secret", &[there, ("origin", "http://evil.example")]), Some(403));
    }
}
