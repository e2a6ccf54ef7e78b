//! Check of `scale`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::config::file::ConfigFile;
use crate::config::secret::SecretReader;
use crate::config::sections::identity::credentials::CredentialSet;
use crate::config::sections::scale::peers;
use crate::config::sections::server::check::collide;
use crate::config::settings::scale::ScaleSettings;
use crate::config::syntax::field::FieldPath;
use crate::config::validate::files::writable;
use crate::config::validate::findings::Findings;
use crate::config::validate::numbers;

/// Streams that a gateway has memory for without a thought.
const MAX_STREAMS: u32 = 10_000;

pub(in crate::config) fn validate(
    file: &ConfigFile,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> ScaleSettings {
    let (scale, section) = (&file.scale, FieldPath::top("scale"));
    let listen = scale.listen.map(|address| address.0);
    if let Some(address) = listen {
        for (other, name) in [(file.server.listen, "server.listen"), (file.server.admin, "server.admin")] {
            if collide(address, other.0) {
                let message = format!("{address} is {name} already");
                findings.error(&section.key("listen"), message, "give it a port of its own");
            }
        }
        let asks = scale.tls.as_ref().is_some_and(|tls| tls.require_client_cert);
        if !address.ip().is_loopback() && !asks {
            let message =
                format!("the scaler can be reached from outside ({address}) and asks for no certificate");
            let hint = "set `scale.tls` with `require_client_cert: true`, or see that only KEDA can connect";
            findings.warn(&section.key("listen"), message, hint);
        }
    } else if scale.tls.is_some() {
        let hint = "set `scale.listen`, or take the section away";
        findings.warn(&section.key("tls"), "is of no use without `scale.listen`", hint);
    }
    if !(1..=MAX_STREAMS).contains(&scale.max_streams) {
        let message = format!("{} is out of range", scale.max_streams);
        findings.error(&section.key("max_streams"), message, "write 1 to 10000");
    }
    ScaleSettings {
        listen,
        max_streams: usize::try_from(scale.max_streams).unwrap_or(usize::MAX),
        names: names(file, &section.key("client_certs"), findings),
        state_file: state_file(file, secrets, &section.key("state_file"), findings),
        peers: peers::validate(file, secrets, findings),
        stale_after: numbers::positive(scale.stale_after, &section.key("stale_after"), findings),
    }
}

fn state_file(
    file: &ConfigFile,
    secrets: &SecretReader<'_>,
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> Option<PathBuf> {
    let path = file.scale.state_file.as_deref()?;
    writable(path, secrets, field, findings)
}

fn names(file: &ConfigFile, field: &FieldPath, findings: &mut Findings<'_>) -> Option<BTreeSet<String>> {
    let certs = &file.scale.client_certs;
    let tls = file.scale.tls.as_ref();
    if !certs.is_empty() && !tls.is_some_and(|tls| tls.client_ca.is_some() && tls.require_client_cert) {
        let message =
            "no certificate is asked for without `scale.tls.client_ca` and `require_client_cert: true`";
        findings.error(field, message, "set both, or take the certificates away");
    }
    let mut names = CredentialSet::default();
    let named = certs
        .iter()
        .enumerate()
        .filter_map(|(at, cert)| names.name([&cert.dns, &cert.uri, &cert.email], &field.index(at), findings));
    let named: BTreeSet<String> = named.collect();
    (!certs.is_empty()).then_some(named)
}
