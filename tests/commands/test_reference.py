"""The pages of docs/reference that are made from the product are current, and what
reference.py adds of its own is true of a running gateway."""

import re
import time

import pytest
import reference
from conftest import BIN, free_ports, get


@pytest.fixture(autouse=True)
def the_binary(monkeypatch):
    monkeypatch.setattr(reference, "BIN", BIN)


@pytest.mark.parametrize("name", reference.PAGES)
def test_page_is_current(name):
    assert (wrong := reference.problem(name)) is None, wrong


def test_labels_are_those_of_a_running_gateway(start):
    """Of the series that a gateway with traffic has."""
    listen, admin, scale = free_ports(3)
    demo = start(f"penstock demo --load --listen {listen} --admin {admin} --scale {scale}")
    demo.wait_for("^Ctrl-C drains and ends")
    deadline = time.monotonic() + 30
    while "penstock_inter_token_seconds_count" not in (text := get(f"http://{admin}/metrics")):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M))
    rows = reference.metric_rows()
    assert {name: rows[name].kind for name in kinds} == kinds
    for name, labels in re.findall(r"^(\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? \S+$", text, re.M):
        found = set(re.findall(r'(\w+)="(?:[^"\\]|\\.)*"', labels)) - {"le"}
        optional = {"error_type"}
        assert found | optional == set(rows[name].labels) | optional, name
    assert demo.stop() == 0
