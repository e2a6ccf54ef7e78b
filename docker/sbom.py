#!/usr/bin/env python3
"""Writes the software bill of materials of the program (CycloneDX 1.6, JSON) to standard output.

    python3 docker/sbom.py [TARGET] > penstock.cdx.json

It has each crate that is compiled into the program or runs in its build, for TARGET (this machine's by
default), with licence, checksum and dependencies. The same Cargo.lock gives the same text.
"""

import json
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def host():
    about = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    return next(line.removeprefix("host: ") for line in about.splitlines() if line.startswith("host: "))


def compiled(target):
    """Names and versions of what is compiled. `cargo metadata` also has optional crates that nobody asks for."""
    text = cargo("tree", "--locked", "--offline", "-p", "penstock", "-e", "normal,build", "--target", target,
                 "--prefix", "none", "--format", "{p}")
    return {(name, version.removeprefix("v")) for name, version, *_ in map(str.split, text.splitlines())}


def graph(target):
    """Packages by id, the ids of their dependencies without those of tests, and the id of the program."""
    used = compiled(target)
    text = cargo("metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", target)
    about = json.loads(text)
    packages = {package["id"]: package for package in about["packages"]}

    def is_used(dep):
        package = packages[dep["pkg"]]
        of_program = any(kind["kind"] != "dev" for kind in dep["dep_kinds"])
        return of_program and (package["name"], package["version"]) in used

    needs = {node["id"]: sorted(dep["pkg"] for dep in node["deps"] if is_used(dep)) for node in about["resolve"]["nodes"]}
    root = next(id for id, package in packages.items() if package["name"] == "penstock")
    found, waiting = {root}, [root]
    while waiting:
        new = set(needs[waiting.pop()]) - found
        found |= new
        waiting += new
    return {id: packages[id] for id in found}, {id: needs[id] for id in found}, root


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, checksums):
    checksum = checksums.get((package["name"], package["version"]))
    licence = (package["license"] or "").replace("/", " OR ").replace("  ", " ")
    return {
        "type": "application" if package["source"] is None else "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "licenses": [{"expression": licence}],
        "purl": reference(package),
        **({"hashes": [{"alg": "SHA-256", "content": checksum}]} if checksum else {}),
    }


def bill(target):
    packages, needs, root = graph(target)
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(one["name"], one["version"]): one["checksum"] for one in locked if "checksum" in one}
    order = sorted(packages, key=lambda id: (packages[id]["name"], packages[id]["version"]))
    body = {
        "metadata": {
            "component": component(packages[root], checksums),
            "properties": [{"name": "penstock:target", "value": target}],
        },
        "components": [component(packages[id], checksums) for id in order if id != root],
        "dependencies": [
            {"ref": reference(packages[id]), "dependsOn": sorted(reference(packages[need]) for need in needs[id])}
            for id in order
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1, **body}


if __name__ == "__main__":
    print(json.dumps(bill(sys.argv[1] if len(sys.argv) > 1 else host()), indent=1))
