//! Programs that are measured: where they are, which version, built how.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use super::args::{BenchProxyArgs, TargetKind};
use crate::process::gateway_program;

/// A program.
#[derive(Debug, Clone, Serialize)]
pub struct Program {
    /// Its file, or its name in PATH.
    pub path: PathBuf,
    /// What it says of itself.
    pub version: String,
    /// The cargo profile that it was built with, where its folder tells.
    pub profile: Option<String>,
    /// Size of its file.
    pub bytes: Option<u64>,
}

/// The programs of the targets that were asked for.
#[derive(Debug, Clone, Serialize)]
pub struct Programs {
    /// The gateway.
    pub penstock: Option<Program>,
    /// nginx.
    pub nginx: Option<Program>,
}

impl Programs {
    /// Finds those that the targets need.
    pub(super) fn find(args: &BenchProxyArgs) -> Result<Self> {
        let needs = |kinds: &[TargetKind]| args.targets.iter().any(|target| kinds.contains(target));
        let penstock = needs(&[TargetKind::Penstock, TargetKind::PenstockFull]);
        let nginx = needs(&[TargetKind::Nginx]);
        Ok(Programs {
            penstock: penstock.then(|| find_penstock(args.penstock.as_deref())).transpose()?,
            nginx: nginx.then(|| find_nginx(args.nginx.as_deref())).transpose()?,
        })
    }
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", self.version, self.path.display())?;
        if let Some(bytes) = self.bytes {
            write!(f, ", {:.1} MiB", bytes as f64 / f64::from(1 << 20))?;
        }
        match self.profile.as_deref() {
            Some("dev") => f.write_str(", built without optimisation: its figures mean nothing"),
            Some(profile) => write!(f, ", cargo profile {profile}"),
            None => Ok(()),
        }
    }
}

fn find_penstock(asked: Option<&Path>) -> Result<Program> {
    let path = gateway_program(asked)?;
    let Ok(version) = said(&path, "--version") else {
        let path = path.display();
        bail!(
            "{path} does not run; build it with `cargo build --release --workspace`, or name it with --penstock"
        );
    };
    let file = path.canonicalize().with_context(|| format!("find {}", path.display()))?;
    let bytes = file.metadata().ok().map(|file| file.len());
    Ok(Program { version, profile: profile_of(&file), bytes, path })
}

fn find_nginx(asked: Option<&Path>) -> Result<Program> {
    let usual = [Path::new("nginx"), Path::new("/usr/sbin/nginx")];
    for path in asked.as_ref().map_or(&usual[..], std::slice::from_ref) {
        if let Ok(version) = said(path, "-v") {
            let version = version.trim_start_matches("nginx version: ").to_owned();
            return Ok(Program { path: (*path).to_owned(), version, profile: None, bytes: None });
        }
    }
    if let Some(path) = asked {
        bail!("{} does not run", path.display());
    }
    bail!(
        "there is no nginx; install Debian's package `nginx-light`, name the program with --nginx, or leave it out: \
         --targets direct,penstock,penstock-full"
    );
}

/// The first line that a program prints about its version.
fn said(program: &Path, option: &str) -> Result<String> {
    let output = Command::new(program).arg(option).output()?;
    ensure!(output.status.success(), "{} failed", program.display());
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    Ok(String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned())
}

/// The profile of a program in a folder of cargo's: `target/PROFILE`, or `target/TRIPLE/PROFILE`.
fn profile_of(file: &Path) -> Option<String> {
    let folder = file.parent()?;
    let target = folder.ancestors().skip(1).take(2).find(|above| above.join("CACHEDIR.TAG").is_file());
    target?;
    match folder.file_name()?.to_str()? {
        "debug" => Some("dev".to_owned()),
        name => Some(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_the_folder_below_cargos() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |path: &str| folder.path().join(path);
        assert_eq!(profile_of(&file("target/release/penstock")), None);
        std::fs::create_dir_all(file("target")).expect("a folder");
        std::fs::write(file("target/CACHEDIR.TAG"), "").expect("a file");
        let profile = |path: &str| profile_of(&file(path));
        assert_eq!(profile("target/debug/penstock").as_deref(), Some("dev"));
        assert_eq!(profile("target/x86_64-unknown-linux-gnu/dist/penstock").as_deref(), Some("dist"));
        assert_eq!(profile("bin/penstock"), None);
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = find_nginx(Some(Path::new("/nowhere/nginx"))).expect_err("no such file").to_string();
        assert_eq!(error, "/nowhere/nginx does not run");
        let error =
            find_penstock(Some(Path::new("/nowhere/penstock"))).expect_err("no such file").to_string();
        assert!(error.contains("/nowhere/penstock") && error.contains("--penstock"), "{error}");
    }

    #[test]
    fn a_program_is_described() {
        let program = Program {
            path: "target/dist/penstock".into(),
            version: "penstock 1.2.3".to_owned(),
            profile: Some("dist".to_owned()),
            bytes: Some(3 << 20),
        };
        assert_eq!(program.to_string(), "penstock 1.2.3, target/dist/penstock, 3.0 MiB, cargo profile dist");
        let program = Program { profile: Some("dev".to_owned()), ..program };
        assert!(program.to_string().contains("without optimisation"));
    }
}
