//! A folder over HTTP, for looking at the page: one request at a time, files of that folder alone.

use super::Outcome;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};

/// Serves `site` until it is stopped.
pub fn serve(site: &Path, port: u16) -> Outcome<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).map_err(|e| format!("port {port}: {e}"))?;
    println!("http://127.0.0.1:{port}/");
    for stream in listener.incoming().flatten() {
        // A page that goes away in the middle is none of the server's business.
        let _ = answer(site, stream);
    }
    Ok(())
}

fn answer(site: &Path, mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(std::time::Duration::from_secs(5)))?;
    let mut line = String::new();
    let mut lines = BufReader::new(stream.try_clone()?);
    lines.read_line(&mut line)?;
    let mut header = String::new();
    while lines.read_line(&mut header)? > 2 {
        header.clear();
    }
    let asked = line.split_whitespace().nth(1).unwrap_or("/");
    let found = file(site, asked).and_then(|path| Some((kind(&path), std::fs::read(path).ok()?)));
    let (status, kind, body) = match found {
        Some((kind, body)) => ("200 OK", kind, body),
        None => ("404 Not Found", "text/plain", b"no such file".to_vec()),
    };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n", body.len())?;
    stream.write_all(b"Cache-Control: no-store\r\nConnection: close\r\n\r\n")?;
    stream.write_all(&body)
}

/// A file inside the site; none for anything that would leave it.
fn file(site: &Path, asked: &str) -> Option<PathBuf> {
    let path = asked.split(['?', '#']).next()?.trim_start_matches('/');
    let path = Path::new(if path.is_empty() { "index.html" } else { path });
    path.components().all(|c| matches!(c, Component::Normal(_))).then(|| site.join(path))
}

fn kind(path: &Path) -> &'static str {
    match path.extension().and_then(|e| e.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript",
        Some("css") => "text/css",
        Some("json") => "application/json",
        Some("wasm") => "application/wasm",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::file;
    use std::path::Path;

    #[test]
    fn nothing_outside_the_site_is_served() {
        let site = Path::new("site");
        assert_eq!(file(site, "/?check"), Some(site.join("index.html")));
        assert_eq!(file(site, "/demo-model/config.json"), Some(site.join("demo-model/config.json")));
        for bad in ["/../secret", "/a/../../b", "//etc/../x"] {
            assert_eq!(file(site, bad), None, "{bad}");
        }
    }
}
