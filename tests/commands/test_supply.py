"""What the program is made of: licences, sources and bans of deny.toml, and the bill of materials."""

import json
import re
import sys
import tomllib

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "docker"))
import sbom

RULES = tomllib.loads((ROOT / "deny.toml").read_text())
ALLOWED = set(RULES["licenses"]["allow"])
LOCKED = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]


def is_allowed(expression, allowed=ALLOWED):
    """Whether the licences of an SPDX expression that somebody may choose are allowed."""
    words = re.findall(r"\(|\)|[^\s()]+", expression)

    def either(at):
        good, at = both(at)
        while at < len(words) and words[at] == "OR":
            other, at = both(at + 1)
            good = good or other
        return good, at

    def both(at):
        good, at = one(at)
        while at < len(words) and words[at] == "AND":
            other, at = one(at + 1)
            good = good and other
        return good, at

    def one(at):
        if words[at] == "(":
            good, at = either(at + 1)
            return good, at + 1
        # An exception takes nothing away: the licence itself must be allowed.
        end = at + 3 if words[at + 1 : at + 2] == ["WITH"] else at + 1
        return words[at] in allowed, end

    return bool(words) and either(0)[0]


def test_expressions_of_licences():
    assert is_allowed("MIT") and is_allowed("GPL-3.0 OR MIT") and is_allowed("Apache-2.0 WITH LLVM-exception")
    assert is_allowed("(MIT OR GPL-3.0) AND ISC") and not is_allowed("MIT AND GPL-3.0") and not is_allowed("")
    assert not is_allowed("GPL-3.0 OR (MIT AND SSPL-1.0)")


@pytest.fixture(scope="module")
def bill():
    return sbom.bill(sbom.host())


def test_licences_are_allowed(bill):
    found = {one["name"]: one["licenses"][0]["expression"] for one in bill["components"]}
    exceptions = {rule["crate"]: set(rule["allow"]) for rule in RULES["licenses"]["exceptions"]}
    refused = {
        crate: licence
        for crate, licence in found.items()
        if not is_allowed(licence, ALLOWED | exceptions.get(crate, set()))
    }
    assert refused == {} and not exceptions.keys() - found.keys()


def test_each_crate_is_from_the_registry_with_a_checksum(bill):
    own = {member.get("name") for member in LOCKED if "source" not in member}
    strangers = {one["name"]: one["source"] for one in LOCKED if one.get("source", sbom.CRATES_IO) != sbom.CRATES_IO}
    assert strangers == {} and own == {"penstock", "penstock-core", "penstock-loadtest", "penstock-proto", "penstock-sim"}
    assert all("hashes" in one or one["name"] in own for one in bill["components"])


def test_banned_crates_are_absent(bill):
    """Cargo.lock also has crates of features that nobody asks for: `ring` is one."""
    banned = {rule["crate"] for rule in RULES["bans"]["deny"]}
    assert {"openssl", "ring"} <= banned
    assert banned & {one["name"] for one in bill["components"]} == set()


def test_the_bill_is_whole_and_always_the_same(bill):
    names = {one["name"] for one in bill["components"]}
    assert {"tokio", "hyper", "rustls", "libsqlite3-sys", "tokenizers"} <= names
    assert not names & {"proptest", "insta", "rcgen"}, "crates of tests are not in the program"
    known = {one["bom-ref"] for one in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    refs = [ref for one in bill["dependencies"] for ref in [one["ref"], *one["dependsOn"]]]
    assert set(refs) == known
    assert json.dumps(sbom.bill(sbom.host())) == json.dumps(bill)

