"""The dashboards of config/grafana and the rules of config/prometheus."""

import json
import re
import subprocess

import observed
import pytest
from conftest import ROOT

PAGE = (ROOT / "docs" / "operations" / "alerts.md").read_text()


def promtool(*words):
    done = subprocess.run(["promtool", *map(str, words)], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_are_valid_and_their_tests_pass():
    promtool("check", "rules", *observed.RULE_FILES)
    promtool("test", "rules", observed.PROMETHEUS / "tests" / "alerts.yaml")


def test_every_alert_is_tested():
    tests = (observed.PROMETHEUS / "tests" / "alerts.yaml").read_text()
    alerts = {rule["alert"] for _, rule in observed.rules() if "alert" in rule}
    assert alerts == set(re.findall(r'alertname="(\w+)", (?:class|severity)', tests))


def test_every_alert_has_a_section_that_it_links_to():
    alerts = [rule for _, rule in observed.rules() if "alert" in rule]
    sections = re.findall(r"^### (Penstock\w+)$", PAGE, re.M)
    assert sorted(sections) == sorted(rule["alert"] for rule in alerts)
    for rule in alerts:
        name, notes = rule["alert"], rule["annotations"]
        assert notes["runbook_url"] == f"operations/alerts.md#{name.lower()}", name
        assert {"summary", "description"} < notes.keys(), name
        assert rule["labels"] in ({"severity": "page"}, {"severity": "ticket"}), name


def test_rules_name_only_what_exists():
    wrong = []
    for name, rule in observed.rules():
        where = f"{name}: {rule.get('alert') or rule['record']}"
        shown = " ".join(rule.get("annotations", {}).values())
        wrong += observed.wrong_names(where, rule["expr"], shown)
    assert not wrong, "\n".join(wrong)


def test_dashboards_name_only_what_exists():
    wrong = []
    for name, title, source, expr, legend in observed.targets():
        if source == "prometheus":
            assert observed.selectors(expr), f"{name}: {title}"
            wrong += observed.wrong_names(f"{name}: {title}", expr, legend)
    for name, dashboard in observed.dashboards().items():
        variables = {one["name"] for one in dashboard["templating"]["list"]}
        used = set(re.findall(r"\$\{?([a-z_]+)", json.dumps([dashboard["panels"], dashboard["annotations"]])))
        wrong += [f"{name}: no variable {one}" for one in sorted(used - variables - {"__rate_interval"})]
        for one in dashboard["templating"]["list"]:
            if one["type"] == "query":
                metric, label = re.match(r"label_values\((\w+), (\w+)\)", one["definition"]).groups()
                wrong += observed.wrong_names(f"{name}: ${one['name']}", f'{metric}{{{label}=""}}')
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("metric", ["penstock_no_such_total", "penstock_seats{color=\"red\"}", "sum by (color) (penstock_seats)"])
def test_a_wrong_name_is_found(metric):
    assert observed.wrong_names("here", metric)


def test_dashboards_are_current():
    stale = [path.name for path, text in observed.maker().made().items() if path.read_text() != text]
    assert not stale, f"run: python3 config/grafana/make.py --write ({stale})"
    assert {f"{name}.json" for name in observed.maker().DASHBOARDS} == {path.name for path in observed.GRAFANA.glob("*.json")}


def test_panels_lie_side_by_side():
    for name, dashboard in observed.dashboards().items():
        taken = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
            assert not cells & taken and place["x"] + place["w"] <= 24, f"{name}: {panel['title']}"
            taken |= cells
