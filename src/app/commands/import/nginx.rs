//! An nginx configuration: upstreams, where they are used, and keys in a `map`.

use std::iter::Peekable;
use std::str::Chars;

use anyhow::bail;
use serde_json::{Value, json};

use crate::app::commands::import::draft::{ConfigDraft, GivenModels, label};
use crate::config::keys;

/// Blocks inside blocks.
const MAX_DEPTH: usize = 32;
const CLIENT_TIMEOUT: &str =
    "the client's own timeout becomes the deadline; `upstream` bounds an engine's answers";
const STREAMS: &str = "streams pass as they come";

/// What becomes of directives, where it is nothing.
const OTHERS: [(&str, &str); 17] = [
    ("least_conn", "always the soonest predicted first token"),
    ("ip_hash", "`routing.session` keeps conversations together"),
    ("hash", "`routing.session` keeps conversations together"),
    ("random", "always the soonest predicted first token"),
    ("keepalive", "connections to engines are kept by themselves"),
    ("limit_req", "`tenants.*.limits.per_minute.requests`, by tenant and not by address"),
    ("limit_req_zone", "`tenants.*.limits.per_minute.requests`, by tenant and not by address"),
    ("limit_conn", "`tenants.*.limits.concurrent.requests`, by tenant and not by address"),
    ("limit_conn_zone", "`tenants.*.limits.concurrent.requests`, by tenant and not by address"),
    ("proxy_read_timeout", CLIENT_TIMEOUT),
    ("proxy_send_timeout", CLIENT_TIMEOUT),
    ("proxy_connect_timeout", CLIENT_TIMEOUT),
    ("proxy_next_upstream", "faults before the first token go to another replica: `retry`"),
    ("client_max_body_size", "`requests.max_body`"),
    ("proxy_buffering", STREAMS),
    ("proxy_http_version", STREAMS),
    ("chunked_transfer_encoding", STREAMS),
];

/// A directive with what stands in its braces.
#[derive(Debug, Default, PartialEq)]
struct Directive {
    words: Vec<String>,
    block: Vec<Directive>,
}

impl Directive {
    fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }
}

/// Reads the configuration into the draft.
///
/// # Errors
/// When it cannot be read, or has no upstream.
pub(super) fn read(text: &str, names: &GivenModels, draft: &mut ConfigDraft) -> anyhow::Result<()> {
    let top = parse(&mut text.chars().peekable(), 0)?;
    let mut all = Vec::new();
    flatten(&top, &mut all);
    for upstream in all.iter().filter(|one| one.name() == "upstream") {
        let servers: Vec<&Directive> = upstream.block.iter().filter(|one| one.name() == "server").collect();
        let passed =
            all.iter().find(|one| one.name() == "proxy_pass" && host(one.word(1)) == upstream.word(1));
        let scheme = passed.map_or("http", |one| scheme(one.word(1)));
        let urls: Vec<String> = servers.iter().filter_map(|server| url(server, scheme, draft)).collect();
        pool(upstream.word(1), &urls, names, draft);
    }
    let is_upstream = |name: &str| all.iter().any(|one| one.name() == "upstream" && one.word(1) == name);
    for passed in all.iter().filter(|one| one.name() == "proxy_pass") {
        let address = host(passed.word(1));
        if !is_upstream(address) && !address.contains('$') {
            pool(address, &[format!("{}://{address}", scheme(passed.word(1)))], names, draft);
        }
    }
    if draft.section("pools").is_empty() {
        bail!("has neither an `upstream` with servers nor a `proxy_pass` to an address");
    }
    for one in all.iter().filter(|one| one.name() == "map" && one.word(1) == "$http_authorization") {
        authorized(one, draft);
    }
    for one in &all {
        if let Some((name, why)) = OTHERS.iter().find(|(name, _)| *name == one.name()) {
            draft.left_out(name, why);
        }
        if one.name() == "ssl_certificate" {
            draft.left_out(
                "ssl_certificate",
                "`server.tls`, with `server.listen` on another address than loopback",
            );
        }
    }
    Ok(())
}

fn pool(name: &str, urls: &[String], names: &GivenModels, draft: &mut ConfigDraft) {
    if urls.is_empty() {
        draft.left_out(&format!("upstream {name}"), "it has no server that can be a replica");
        return;
    }
    let own = label(name, |_| false);
    if draft.has("pools", &own) {
        return;
    }
    names.put(&own, draft);
    draft.entry("pools", &own).insert("replicas".to_owned(), json!(urls));
    draft.exact("upstream", "pools.*.replicas");
}

fn url(server: &Directive, scheme: &str, draft: &mut ConfigDraft) -> Option<String> {
    let address = server.word(1);
    if address.starts_with("unix:") || server.words.iter().any(|word| word == "down") {
        draft.left_out("server", "a Unix socket, or `down`");
        return None;
    }
    for word in server.words.iter().skip(2) {
        let name = word.split('=').next().unwrap_or_default();
        let why = match name {
            "backup" => "a pool of its own with `placement` is used only after others",
            "max_conns" => "`pools.*.max_seqs`",
            "weight" => "the soonest predicted first token decides",
            _ => "replicas are ejected by evidence and come back by probes: `health`",
        };
        draft.left_out(&format!("server {name}"), why);
    }
    let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let port = if has_port { "" } else { ":80" };
    Some(format!("{scheme}://{address}{port}"))
}

/// Keys of `map $http_authorization $who { "Bearer KEY" name; }`.
fn authorized(map: &Directive, draft: &mut ConfigDraft) {
    for row in &map.block {
        let Some((scheme, key)) = row.name().split_once(' ') else { continue };
        if !scheme.eq_ignore_ascii_case("bearer") {
            draft.left_out("map $http_authorization", "a value without `Bearer`");
            continue;
        }
        let hashed = match keys::hash(key.trim()) {
            Ok(hashed) => hashed,
            Err(why) => {
                draft.left_out(
                    "map $http_authorization",
                    &format!("its key {why}; give its holder another one"),
                );
                continue;
            }
        };
        let named = row.word(1).starts_with(|c: char| c.is_ascii_alphabetic());
        let tenant = label(if named { row.word(1) } else { "default" }, |_| false);
        let list = draft.entry("tenants", &tenant).entry("keys").or_insert_with(|| json!([]));
        let line = json!({ "id": hashed.id, "digest": hashed.digest });
        if let Value::Array(list) = list
            && !list.contains(&line)
        {
            list.push(line);
        }
        draft.exact(
            "map $http_authorization",
            "tenants.*.keys[]: clients go on with the secrets that they have",
        );
    }
}

fn scheme(url: &str) -> &str {
    url.split_once("://").map_or("http", |(scheme, _)| scheme)
}

fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or_default()
}

fn flatten<'a>(block: &'a [Directive], all: &mut Vec<&'a Directive>) {
    for one in block {
        all.push(one);
        flatten(&one.block, all);
    }
}

fn parse(text: &mut Peekable<Chars<'_>>, depth: usize) -> anyhow::Result<Vec<Directive>> {
    if depth > MAX_DEPTH {
        bail!("has more than {MAX_DEPTH} blocks inside each other");
    }
    let (mut found, mut now) = (Vec::new(), Directive::default());
    while let Some(c) = text.next() {
        match c {
            '#' => while text.next_if(|c| *c != '\n').is_some() {},
            ';' | '{' => {
                if c == '{' {
                    now.block = parse(text, depth + 1)?;
                }
                found.push(std::mem::take(&mut now));
            }
            '}' if depth > 0 => return Ok(found),
            '}' => bail!("has a `}}` too many"),
            '"' | '\'' => {
                let mut word = String::new();
                loop {
                    match text.next() {
                        Some('\\') => word.extend(text.next()),
                        Some(end) if end == c => break,
                        Some(c) => word.push(c),
                        None => bail!("has a quote without its end"),
                    }
                }
                now.words.push(word);
            }
            c if c.is_whitespace() => {}
            c => {
                let mut word = String::from(c);
                while let Some(c) = text.next_if(|c| !c.is_whitespace() && !matches!(c, ';' | '{' | '}')) {
                    word.push(c);
                }
                now.words.push(word);
            }
        }
    }
    if depth > 0 {
        bail!("has a `{{` without its `}}`");
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_blocks_quotes_and_comments() {
        let read = |text: &str| parse(&mut text.chars().peekable(), 0);
        let top = read("# x {\nhttp { map $a $b { \"Bearer \\\"k\" one; } # }\n server_name x.y; }").unwrap();
        assert_eq!(top[0].block[0].block[0].words, ["Bearer \"k", "one"]);
        assert_eq!(top[0].block[1].words, ["server_name", "x.y"]);
        for broken in ["a {", "a; }", "'", "a \"b"] {
            assert!(read(broken).is_err(), "{broken}");
        }
        assert!(read(&"a {".repeat(100_000)).is_err());
    }
}
