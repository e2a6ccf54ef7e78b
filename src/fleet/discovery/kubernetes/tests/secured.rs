//! Tests of the watch over TLS, as inside a cluster.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::tls;

use super::{Asked, Cluster, PATIENCE, list, slice};

/// The stand-in's own certificate is of the CA in `ca.crt`, not of that in
/// `other.crt`.
fn acceptor() -> TlsAcceptor {
    tls::install_provider();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tls");
    let certificate = CertificateDer::from_pem_file(format!("{folder}/server.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_file(format!("{folder}/server.key")).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![certificate], key).unwrap();
    TlsAcceptor::from(Arc::new(config))
}

fn certificates(name: &str) -> String {
    let path = format!("{}/tests/fixtures/tls/{name}.crt", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

#[tokio::test]
async fn in_a_cluster_the_ca_and_the_token_of_this_moment_count() {
    let folder = tempfile::tempdir().unwrap();
    let (token, ca) = (folder.path().join("token"), folder.path().join("ca.crt"));
    std::fs::write(&token, "one\n").unwrap();
    std::fs::write(&ca, certificates("other")).unwrap();
    let files = (token.clone(), ca.clone());
    let mut cluster = Cluster::start_with(Some(acceptor()), |rules| {
        (rules.token_file, rules.ca_file) = (Some(files.0), Some(files.1));
    })
    .await;
    // A server whose certificate leads elsewhere gets no token.
    let told = async {
        while cluster.fixture.statuses.views()[0].problem.is_none() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, told).await.expect("a problem");
    let problem = cluster.fixture.statuses.views()[0].problem.clone();
    assert_eq!(problem.as_deref(), Some("no answer from the API server: no connection"));
    assert!(cluster.asked.try_recv().is_err(), "it was asked");

    std::fs::write(&ca, certificates("other") + &certificates("ca")).unwrap();
    let asked = cluster.next().await;
    let bearer = |asked: &Asked, token: &str| {
        asked.head.to_lowercase().contains(&format!("\r\nauthorization: bearer {token}\r\n"))
    };
    assert!(bearer(&asked, "one"), "{}", asked.head);
    asked.answer(200, &list(5, &[slice("a", 3, &["10.0.0.1"])])).await;
    let watch = cluster.next().await.begin().await;
    cluster.holds(&["10.0.0.1"]).await;
    // The token is rotated while the watch runs.
    std::fs::write(&token, "two\n").unwrap();
    watch.end().await;
    let mut watch = cluster.next().await.begin().await;
    assert!(bearer(&watch, "two"), "{}", watch.head);
    watch.event("MODIFIED", &slice("a", 6, &["10.0.0.2"])).await;
    cluster.holds(&["10.0.0.2"]).await;
    // So is the CA, to one that is not the server's: the last view holds.
    std::fs::write(&ca, certificates("other")).unwrap();
    watch.end().await;
    timeout(PATIENCE, async {
        while cluster.fixture.statuses.views()[0].problem.is_none() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("a problem");
    assert_eq!(cluster.fixture.hosts(), ["10.0.0.2:8000"]);
}
