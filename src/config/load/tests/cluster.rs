//! Section `cluster`.

use std::path::Path;
use std::time::Duration;

use crate::config::load::load_str_with;
use crate::config::load::tests::{World, errors, with};
use crate::config::settings::cluster::{ServerAddress, StoreServers};

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
        ("cluster: {valkey: {url: 'redis://a', nodes: ['redis://b']}}", "in several ways where the store is"),
        ("cluster: {valkey: {nodes: ['redis://a/2']}}", "nodes[0]: names a database"),
        ("cluster: {valkey: {nodes: ['redis://a', 'rediss://b']}}", "with TLS and without"),
        ("cluster: {valkey: {nodes: ['redis://u:secret@a']}}", "nodes[0]: holds a user or password"),
        ("cluster: {valkey: {sentinel: {urls: ['redis://a']}}}", "sentinel.primary: is missing"),
        ("cluster: {valkey: {sentinel: {primary: m}}}", "sentinel.urls: is empty"),
        (
            "cluster: {valkey: {sentinel: {primary: m, urls: ['redis://a'], username: u}}}",
            "sentinel.password",
        ),
        ("cluster: {valkey: {url: 'redis://a'}, outage: 0s}", "must not be zero"),
        ("cluster: {valkey: {url: 'redis://a'}, prefix: 'a{b}'}", "is no prefix"),
    ] {
        let found = errors(&with(added));
        assert!(found.iter().any(|error| error.contains(said)), "{added}: {found:?}");
        assert!(!found.iter().any(|error| error.contains("u:secret")), "{found:?}");
    }
}

#[test]
fn a_store_may_be_a_cluster_or_a_primary_behind_sentinels() {
    let store = |valkey: &str| {
        let text = with(&format!("cluster: {{valkey: {{{valkey}}}}}"));
        let loaded = load_str_with(&text, "p", Path::new("/"), None, &World).into_result();
        loaded.unwrap_or_else(|report| panic!("{report}")).settings.cluster.unwrap().valkey
    };
    let address = |host: &str, port| ServerAddress { host: host.to_owned(), port };
    let nodes = store("nodes: ['rediss://a', 'valkeys://b:7000/0'], password: {env: ENGINE_KEY}");
    assert_eq!(nodes.servers, StoreServers::Nodes(vec![address("a", 6379), address("b", 7000)]));
    assert!(nodes.is_tls && nodes.credentials.password.is_some());
    let watched = store(
        "sentinel: {urls: ['redis://s:26379'], primary: mymaster, database: 2, password: {env: ENGINE_KEY}}",
    );
    let sentinels = vec![address("s", 26_379)];
    assert_eq!(watched.servers, StoreServers::Sentinels { sentinels, primary: "mymaster".to_owned() });
    assert_eq!((watched.database, watched.is_tls), (2, false));
    assert!(watched.sentinel_credentials.password.is_some() && watched.credentials.password.is_none());
}

#[test]
fn a_url_says_where_the_store_is() {
    let text = with(
        "cluster: {valkey: {url: 'valkeys://[::1]/3', username: u, password: {env: ENGINE_KEY}}, outage: 5m}",
    );
    let loaded = load_str_with(&text, "p", Path::new("/"), None, &World).into_result();
    let cluster = loaded.unwrap_or_else(|report| panic!("{report}")).settings.cluster.unwrap();
    let store = cluster.valkey;
    assert_eq!(store.servers, StoreServers::Server(ServerAddress { host: "::1".to_owned(), port: 6379 }));
    assert_eq!((store.database, store.is_tls), (3, true));
    assert_eq!(store.credentials.password.unwrap().expose(), "sk-engine");
    assert_eq!((&*cluster.prefix, cluster.outage), ("penstock", Duration::from_secs(300)));
}
