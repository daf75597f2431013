//! Requests that pages of other sites let a browser send: a server without keys takes none.

use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::fields::clipped;
use crate::listen::Address;
use axum::http::{HeaderMap, Method, Uri, header};
use std::net::IpAddr;

/// Paths that probes ask for by any name.
const PROBED: [&str; 4] = ["/health", "/live", "/ready", "/metrics"];

/// Which requests of browsers are taken.
#[derive(Debug)]
pub struct Guard {
    /// Whether no key keeps others out.
    open: bool,
    /// Whether the server listens for its own machine alone.
    local: bool,
    /// Names that are taken besides those of this machine.
    names: Vec<String>,
}

impl Guard {
    /// What a server at this address takes.
    pub fn new(config: &ServerConfig, address: &Address) -> Self {
        let local = matches!(address, Address::Tcp(address, _) if address.ip().is_loopback());
        let names = config.allowed_hosts.iter().chain([&config.host]);
        Self { open: config.api_keys.is_empty(), local, names: names.map(|name| plain(name)).collect() }
    }

    /// Refuses a name that is not this machine's, which a page of another site may have given it (DNS
    /// rebinding), and what a page of another site sends.
    ///
    /// # Errors
    /// 403.
    pub fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        if !self.open {
            return Ok(());
        }
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("no text"));
        let host = text(header::HOST).or_else(|| uri.authority().map(axum::http::uri::Authority::as_str));
        if self.local
            && !PROBED.contains(&uri.path())
            && let Some(host) = host.map(|host| plain(without_port(host))).filter(|host| !self.knows(host))
        {
            let host = clipped(&host);
            return Err(ApiError::forbidden(format!(
                "Host is {host}; allowed: localhost and addresses, as the server listens for its own machine \
                 and has no keys. --allowed-host {host} allows this name"
            )));
        }
        // A page is loaded from wherever a link to it is; what it asks for is its own.
        if method == Method::POST
            && text(header::HeaderName::from_static("sec-fetch-site")) == Some("cross-site")
        {
            let origin = text(header::ORIGIN).unwrap_or("null");
            let of = plain(without_port(origin.split_once("://").map_or(origin, |(_, rest)| rest)));
            if !self.knows(&of) {
                let of = clipped(&of);
                return Err(ApiError::forbidden(format!(
                    "a page of another site, {of}, sends this, and the server has no keys. --allowed-host {of} \
                     allows pages of that name"
                )));
            }
        }
        Ok(())
    }

    /// Whether a name is an address, which no other site can have, this machine's, or allowed.
    fn knows(&self, name: &str) -> bool {
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        address
            || name == "localhost"
            || name.ends_with(".localhost")
            || self.names.iter().any(|own| own == name)
    }
}

/// A name without what may differ in its writing.
fn plain(name: &str) -> String {
    name.trim().trim_end_matches('.').to_ascii_lowercase()
}

/// A host without its port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => {
            // `::1` without brackets has colons of its own.
            if name.contains(':') && !name.ends_with(']') { host } else { name }
        }
        _ => host,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::auth::ApiKey;

    fn guard(config: &ServerConfig, address: &str) -> Guard {
        Guard::new(config, &Address::Tcp(address.parse().unwrap(), false))
    }

    fn check(
        guard: &Guard,
        method: Method,
        path: &'static str,
        given: &[(&'static str, &str)],
    ) -> Option<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.insert(*name, value.parse().unwrap());
        }
        let error = guard.check(&method, &Uri::from_static(path), &headers).err()?;
        assert_eq!(error.status, 403);
        Some(error.message)
    }

    #[test]
    fn a_server_of_its_own_machine_without_keys_knows_its_names() {
        let plain = ServerConfig { allowed_hosts: vec!["Model.example".into()], ..ServerConfig::default() };
        let own = guard(&plain, "127.0.0.1:8000");
        let post = |host: &str| check(&own, Method::POST, "/v1/completions", &[("host", host)]);
        for host in [
            "localhost:8000",
            "LOCALHOST",
            "a.localhost",
            "127.0.0.1:8000",
            "10.0.0.7",
            "[::1]:8000",
            "::1",
            "model.example.:80",
        ] {
            assert_eq!(post(host), None, "{host}");
        }
        for host in ["rebound.example:8000", "localhost.example", "127.0.0.1.example", "x"] {
            let said = post(host).unwrap();
            assert!(said.contains("--allowed-host"), "{said}");
            assert!(check(&own, Method::GET, "/v1/models", &[("host", host)]).is_some());
            // Probes know a server by any name.
            for path in PROBED {
                assert_eq!(check(&own, Method::GET, path, &[("host", host)]), None, "{path}");
            }
        }
        // Who writes no name is no browser.
        assert_eq!(check(&own, Method::POST, "/v1/completions", &[]), None);
        // Others may reach these by any name, and keys keep out who has none.
        let keys = ServerConfig { api_keys: vec![ApiKey::new("a", "ka")], ..ServerConfig::default() };
        for guard in [guard(&plain, "0.0.0.0:8000"), guard(&keys, "127.0.0.1:8000")] {
            assert_eq!(check(&guard, Method::POST, "/v1/completions", &[("host", "any.example")]), None);
        }
    }

    #[test]
    fn pages_of_other_sites_send_nothing() {
        let plain = ServerConfig { allowed_hosts: vec!["model.example".into()], ..ServerConfig::default() };
        for own in [guard(&plain, "127.0.0.1:8000"), guard(&plain, "0.0.0.0:8000")] {
            let from = |site: &str, origin: &str| {
                let headers = [("host", "127.0.0.1:8000"), ("sec-fetch-site", site), ("origin", origin)];
                check(&own, Method::POST, "/v1/completions", &headers)
            };
            for origin in ["https://evil.example", "null", "https://evil.example:8000"] {
                assert!(from("cross-site", origin).unwrap().contains("--allowed-host"), "{origin}");
            }
            for (site, origin) in [
                ("same-origin", "http://127.0.0.1:8000"),
                // Behind a proxy that gives the server another name.
                ("same-origin", "https://chat.example"),
                ("cross-site", "http://localhost:3000"),
                ("cross-site", "https://model.example"),
                ("none", "null"),
            ] {
                assert_eq!(from(site, origin), None, "{site} {origin}");
            }
            // A link to the page.
            let link = [("host", "127.0.0.1:8000"), ("sec-fetch-site", "cross-site")];
            assert_eq!(check(&own, Method::GET, "/", &link), None);
        }
        let keys = ServerConfig { api_keys: vec![ApiKey::new("a", "ka")], ..ServerConfig::default() };
        let keyed = guard(&keys, "127.0.0.1:8000");
        let headers = [("sec-fetch-site", "cross-site"), ("origin", "https://chat.example")];
        assert_eq!(check(&keyed, Method::POST, "/v1/completions", &headers), None);
    }
}
