//! Section `cluster`.

use std::path::Path;
use std::time::Duration;

use crate::config::load::load_str_with;
use crate::config::load::tests::{World, errors, with};

#[test]
fn the_store_of_a_cluster_is_checked() {
    for (added, said) in [
        ("cluster: {}", "cluster.valkey.url"),
        ("cluster: {valkey: {url: 'http://a'}}", "neither redis nor rediss"),
        ("cluster: {valkey: {url: 'redis://u:secret@a'}}", "holds a user or password"),
        ("cluster: {valkey: {url: 'redis://a/zero'}}", "no number of a database"),
        ("cluster: {valkey: {url: 'redis://a?x=1'}}", "query or fragment"),
        ("cluster: {valkey: {url: 'redis://a', username: u}}", "cluster.valkey.password"),
        ("cluster: {valkey: {url: 'redis://a', password: secret}}", "must not stand in the file"),
        ("cluster: {valkey: {url: 'redis://a', tls: {ca: none.crt}}}", "is not used without TLS"),
        ("cluster: {valkey: {url: 'redis://a'}, outage: 0s}", "must not be zero"),
        ("cluster: {valkey: {url: 'redis://a'}, prefix: 'a{b}'}", "is no prefix"),
    ] {
        let found = errors(&with(added));
        assert!(found.iter().any(|error| error.contains(said)), "{added}: {found:?}");
        assert!(!found.iter().any(|error| error.contains("u:secret")), "{found:?}");
    }
}

#[test]
fn a_url_says_where_the_store_is() {
    let text = with(
        "cluster: {valkey: {url: 'valkeys://[::1]/3', username: u, password: {env: ENGINE_KEY}}, outage: 5m}",
    );
    let loaded = load_str_with(&text, "p", Path::new("/"), None, &World).into_result();
    let cluster = loaded.unwrap_or_else(|report| panic!("{report}")).settings.cluster.unwrap();
    let store = cluster.valkey;
    assert_eq!((&*store.host, store.port, store.database, store.is_tls), ("::1", 6379, 3, true));
    assert_eq!(store.password.unwrap().expose(), "sk-engine");
    assert_eq!((&*cluster.prefix, cluster.outage), ("penstock", Duration::from_secs(300)));
}
