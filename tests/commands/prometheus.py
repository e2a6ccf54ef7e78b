"""A Prometheus that reads one gateway, and what its API says."""

import json
import urllib.parse

import observed
import yaml
from conftest import free_ports, get, wait_until

#: What stands for Grafana's own interval, at one scrape a second.
INTERVAL = "20s"


class Prometheus:
    def __init__(self, start, folder, admin):
        (address,) = free_ports(1)
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "2s"},
            "rule_files": [str(path) for path in observed.RULE_FILES],
            "scrape_configs": [{"job_name": "penstock", "static_configs": [{"targets": [admin.removeprefix("http://")]}]}],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self.process = start(f"prometheus --config.file={folder}/prometheus.yaml --storage.tsdb.path={folder}/data "
                             f"--web.listen-address={address} --log.level=error")
        self.url = f"http://{address}/api/v1"
        wait_until("first scrape", lambda: self.ready() and self.query("up == 1"))

    def ready(self):
        try:
            return get(f"{self.url}/status/buildinfo")
        except OSError:
            assert self.process.process.poll() is None, self.process.output
            return None

    def query(self, expr):
        """The samples of an expression now."""
        answer = json.loads(get(f"{self.url}/query?query={urllib.parse.quote(expr)}"))
        return answer["data"]["result"]

    def rules(self):
        groups = json.loads(get(f"{self.url}/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


def filled(expr):
    """The expression of a panel with a value for each of its variables. Filters that only hide zeros are left out."""
    expr = expr.replace("$__rate_interval", INTERVAL).removesuffix(" > 0")
    for name in ("job", "pool", "tenant", "class", "model"):
        expr = expr.replace(f'"${name}"', '".*"')
    return expr


#: Panels that have nothing to show in the demo, and why.
EMPTY = {
    ("tenants", "Limits met"): "no tenant of the demo has a limit",
    ("pools", "Orders to sleep or wake"): "its engines do not sleep",
    ("scale", "Wake"): "its engines do not sleep",
    ("scale", "Cold start"): "its pools always have replicas",
    ("scale", "Other gateways"): "it is alone",
    ("request", "Served by another model"): "it has one model",
}


def without_data(prometheus):
    """The queries of the dashboards that return nothing, and panels of EMPTY that do return something."""
    wrong = []
    for name, title, source, expr, _ in observed.targets():
        if source != "prometheus":
            continue
        found = prometheus.query(filled(expr))
        if bool(found) == ((name, title) in EMPTY):
            wrong.append(f"{name}: {title}: {filled(expr)}: {len(found)} series")
    return wrong


def unknown_values(prometheus):
    """The label values that rules and dashboards ask for and that no series has. Counters start at 0, so that even values of
    what has not happened are there."""
    asked = [(f"{name}: {title}", expr) for name, title, source, expr, _ in observed.targets() if source == "prometheus"]
    asked += [(rule.get("alert") or rule["record"], rule["expr"]) for _, rule in observed.rules()]
    wrong = []
    for where, expr in asked:
        for name, matchers in observed.selectors(expr):
            if name == "penstock_scale_peers":
                continue
            for label, operator, text in matchers:
                if text.startswith("$") or name.startswith("class_objective:") or operator in ("!=", "!~"):
                    continue
                wrong += [f"{where}: no {name} with {label}={value}" for value in text.split("|")
                          if not prometheus.query(f'{name}{{{label}="{value}"}}')]
    return wrong
