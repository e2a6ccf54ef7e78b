//! Caller's page: static files on the client listener, which hold no data.

use http::Method;

use crate::support::client::Call;
use crate::support::gateway::{Rig, RigOptions, TENANT, key_of};

const SCRIPT: &str = "text/javascript; charset=utf-8";
const FILES: [(&str, &str); 5] = [
    ("/me", "text/html; charset=utf-8"),
    ("/me/style.css", "text/css; charset=utf-8"),
    ("/me/parts.js", SCRIPT),
    ("/me/page.js", SCRIPT),
    ("/me/words.js", SCRIPT),
];

#[tokio::test]
async fn the_page_needs_no_key_and_a_browser_keeps_and_frames_none_of_it() {
    let rig = Rig::start(RigOptions::default()).await;
    for (path, media) in FILES {
        let answer = Call::get(path).send(rig.address()).await.ok();
        for (name, value) in [
            ("content-type", media),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("set-cookie", ""),
            ("access-control-allow-origin", ""),
        ] {
            assert_eq!(answer.header(name), value, "{path}: {name}");
        }
        let policy = answer.header("content-security-policy");
        for rule in
            ["default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"]
        {
            assert!(policy.contains(rule), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert!(!answer.text().is_empty() && !answer.text().contains(&key_of(TENANT).id), "{path}");

        let head = Call::new(Method::HEAD, path).send(rig.address()).await;
        assert_eq!((head.status, head.body.len(), head.header("content-type")), (200, 0, media), "{path}");
    }
}

#[tokio::test]
async fn the_page_is_read_only_and_has_no_other_file() {
    let rig = Rig::start(RigOptions::default()).await;
    for (path, _) in FILES {
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            let answer = Call::new(method.clone(), path).send(rig.address()).await;
            assert_eq!((answer.status, answer.header("allow")), (405, "GET, HEAD"), "{method} {path}");
        }
    }
    for path in ["/me/", "/me/index.html", "/me/mod.rs", "/me/../console", "/console", "/Me"] {
        assert_eq!(Call::get(path).send(rig.address()).await.status, 404, "{path}");
    }
}
