//! Makes `src/scaler/proto/generated` from the contracts beside it: of the scaler's the
//! server's side and the descriptors for the gateway, the client's side for
//! tests; of the gateways' own both sides.

use std::path::Path;

use prost::Message as _;

/// KEDA's contract.
const SCALER: &str = "externalscaler";
/// What gateways tell each other.
const GATEWAYS: &str = "gateways";

fn main() -> anyhow::Result<()> {
    generate(&root().join("generated"))
}

/// Sides of a contract that are made.
#[derive(Clone, Copy)]
struct ContractSides {
    server: bool,
    client: bool,
}

/// The folder with the contracts.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn generate(out: &Path) -> anyhow::Result<()> {
    let scaler = compile(SCALER)?;
    std::fs::write(out.join("externalscaler.bin"), scaler.encode_to_vec())?;
    write(
        scaler.clone(),
        SCALER,
        SCALER,
        ContractSides { server: true, client: false },
        &out.join("server.rs"),
    )?;
    write(scaler, SCALER, SCALER, ContractSides { server: false, client: true }, &out.join("client.rs"))?;
    write(
        compile(GATEWAYS)?,
        GATEWAYS,
        "penstock.scale.v1",
        ContractSides { server: true, client: true },
        &out.join("gateways.rs"),
    )
}

fn compile(name: &str) -> anyhow::Result<prost_types::FileDescriptorSet> {
    let mut files = protox::compile([format!("{name}.proto")], [root()])?;
    for file in &mut files.file {
        // Comments are for who reads the contract.
        file.source_code_info = None;
    }
    Ok(files)
}

/// Writes the sides of a contract into one file.
fn write(
    files: prost_types::FileDescriptorSet,
    name: &str,
    package: &str,
    sides: ContractSides,
    to: &Path,
) -> anyhow::Result<()> {
    let folder = to.with_extension("new");
    std::fs::create_dir_all(&folder)?;
    tonic_prost_build::configure()
        .build_server(sides.server)
        .build_client(sides.client)
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .out_dir(&folder)
        .compile_fds(files)?;
    let text = std::fs::read_to_string(folder.join(format!("{package}.rs")))?;
    let first = format!("// Made by `cargo run -p penstock-proto` from {name}.proto.\n");
    std::fs::write(to, first + &text)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{generate, root};

    #[test]
    fn what_is_committed_is_fresh() {
        let made = tempfile::tempdir().unwrap();
        generate(made.path()).unwrap();
        for name in ["server.rs", "client.rs", "gateways.rs", "externalscaler.bin"] {
            let (new, old) = (made.path().join(name), root().join("generated").join(name));
            assert_eq!(
                std::fs::read(new).unwrap(),
                std::fs::read(old).unwrap_or_default(),
                "{name}: run `cargo run -p penstock-proto`"
            );
        }
    }
}
