//! Makes `proto/generated` from `proto/externalscaler.proto`: the server's side
//! and the descriptors for the gateway, the client's side for tests.

use std::path::Path;

use prost::Message as _;

const NAME: &str = "externalscaler";
const FIRST_LINE: &str = "// Made by `cargo run -p penstock-proto` from proto/externalscaler.proto.\n";

fn main() -> anyhow::Result<()> {
    generate(&root().join("generated"))
}

/// The folder with the contract.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn generate(out: &Path) -> anyhow::Result<()> {
    let mut files = protox::compile([format!("{NAME}.proto")], [root()])?;
    for file in &mut files.file {
        // Comments are for who reads the contract.
        file.source_code_info = None;
    }
    std::fs::write(out.join("externalscaler.bin"), files.encode_to_vec())?;
    for (side, server) in [("server", true), ("client", false)] {
        let folder = out.join(side);
        std::fs::create_dir_all(&folder)?;
        tonic_prost_build::configure()
            .build_server(server)
            .build_client(!server)
            .build_transport(false)
            .emit_rerun_if_changed(false)
            .out_dir(&folder)
            .compile_fds(files.clone())?;
        let made = folder.join(format!("{NAME}.rs"));
        let text = std::fs::read_to_string(&made)?;
        std::fs::write(out.join(format!("{side}.rs")), format!("{FIRST_LINE}{text}"))?;
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{generate, root};

    #[test]
    fn what_is_committed_is_fresh() {
        let made = tempfile::tempdir().unwrap();
        generate(made.path()).unwrap();
        for name in ["server.rs", "client.rs", "externalscaler.bin"] {
            let (new, old) = (made.path().join(name), root().join("generated").join(name));
            assert_eq!(
                std::fs::read(new).unwrap(),
                std::fs::read(old).unwrap_or_default(),
                "{name}: run `cargo run -p penstock-proto`"
            );
        }
    }
}
