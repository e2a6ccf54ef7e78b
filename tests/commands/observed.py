"""What the dashboards and rules under config ask of Prometheus: expressions, and the metrics and labels in them."""

import importlib.util
import json
import re

import reference
import yaml
from conftest import ROOT

GRAFANA = ROOT / "config" / "grafana"
PROMETHEUS = ROOT / "config" / "prometheus"
RULE_FILES = [PROMETHEUS / name for name in ("recording.yaml", "alerts.yaml")]
#: Labels that Prometheus itself gives.
TARGET = {"job", "instance", "namespace", "le"}
WORDS = {"by", "on", "and", "or", "unless", "group_left", "group_right", "ignoring", "without", "bool", "offset"}


def maker():
    """config/grafana/make.py as a module."""
    spec = importlib.util.spec_from_file_location("make", GRAFANA / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rules():
    """Every rule with the name of its file."""
    for path in RULE_FILES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from ((path.name, rule) for rule in group["rules"])


def dashboards():
    return {path.stem: json.loads(path.read_text()) for path in sorted(GRAFANA.glob("*.json"))}


def targets():
    """Every query of every panel: dashboard, panel title, data source, expression, legend."""
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                yield name, panel["title"], target["datasource"]["type"], target.get("expr", ""), target.get("legendFormat", "")


def known():
    """The labels of every series: those of the metrics, and those of the recording rules."""
    found = {}
    for name, metric in reference.metric_rows().items():
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        for end in ends:
            found[name + end] = set(metric.labels) | ({"le"} if end == "_bucket" else set())
    for _, rule in rules():
        if "record" in rule:
            kept = re.search(r"\bby \(([^)]*)\)", rule["expr"]).group(1)
            found[rule["record"]] = set(re.split(r",\s*", kept)) - TARGET
    return found


def selectors(expr):
    """The series that an expression names, each with its matchers as (label, operator, value)."""
    found = []
    for name, body in re.findall(r"\b((?:penstock|gen_ai|class_objective:)[\w:]*)(?:\{([^}]*)\})?", expr):
        found.append((name, re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', body)))
    return found


def grouped(expr):
    """The labels that `by`, `on` and `group_left` name."""
    lists = re.findall(r"\b(?:by|on|group_left|ignoring)\s*\(([^)]*)\)", expr)
    return {label for text in lists for label in re.split(r",\s*", text) if label}


def wrong_names(where, expr, shown=""):
    """What the expression, or the text that shows its labels, names that does not exist."""
    series, wrong, labels = known(), [], set()
    for name, matchers in selectors(expr):
        if name not in series:
            wrong.append(f"{where}: no metric {name}")
            continue
        labels |= series[name]
        wrong += [f"{where}: {name} has no label {label}" for label, _, _ in matchers
                  if label not in series[name] | TARGET]
    asked = grouped(expr) | set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", shown))
    return wrong + [f"{where}: no label {label}" for label in sorted(asked - labels - TARGET)]
