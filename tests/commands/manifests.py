"""The manifests that are made from the Helm chart: config/kubernetes/base and
config/kubernetes/components, so that chart and kustomize have one source.

    python3 tests/commands/manifests.py            says what differs; exit code 1
    python3 tests/commands/manifests.py --write    writes them again

Helm's own library renders the chart (the package helm-python-sdk). `kubectl kustomize`
puts the parts together: test_kubernetes.py compares its result with the chart's.
"""

import pathlib
import re
import sys

import helm_python
import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KUBERNETES = ROOT / "config" / "kubernetes"
CHART = KUBERNETES / "chart"

#: Labels that only Helm needs.
HELM_LABELS = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version")
#: What every switch of the chart gives.
FULL = "../../tests/commands/kubernetes/full.yaml"
HEAD = "# Made from config/kubernetes/chart by tests/commands/manifests.py. Do not edit.\n"


class BlockDumper(yaml.SafeDumper):
    """Texts of several lines as blocks."""


BlockDumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None),
)


def render(values, name="penstock", namespace="penstock"):
    """What `helm template` prints: the text of each template."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        return chart.render(values, name=name, namespace=namespace)


def values_of(name):
    return yaml.safe_load((KUBERNETES / "values" / f"{name}.yaml").read_text())


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def without_helm(text):
    """The text without Helm's labels, and without empty documents."""
    labels = "|".join(map(re.escape, HELM_LABELS))
    text = re.sub(rf"^ +(?:{labels}): .*\n", "", text, flags=re.M)
    parts = [part.strip("\n") for part in re.split(r"^---\n", text, flags=re.M)]
    return HEAD + "---\n".join(f"{part}\n" for part in parts if part.strip())


def config_of(rendered):
    (config_map,) = documents(rendered["penstock/templates/configmap.yaml"])
    return config_map["data"]["penstock.yaml"]


def files():
    """Every made file with its text."""
    base, pools = render(values_of("base")), render(values_of("pools"))
    made = {
        f"base/{name}.yaml": without_helm(base[f"penstock/templates/{name}.yaml"])
        for name in ("availability", "deployment", "networkpolicy", "rbac", "services")
    }
    made["base/penstock.yaml"] = config_of(base)
    made["components/pools/penstock.yaml"] = config_of(pools)
    roles = re.split(r"^---\n", pools["penstock/templates/rbac.yaml"], flags=re.M)
    roles = [part for part in roles if "kind: ClusterRole" in part]
    made["components/pools/nodes.yaml"] = without_helm("---\n".join(roles))
    for component, template in (("keda", "scaledobjects"), ("monitoring", "monitoring")):
        made[f"components/{component}/{template}.yaml"] = without_helm(pools[f"penstock/templates/{template}.yaml"])
    made[FULL] = full()
    return made


def full():
    """Everything that the chart makes with every switch on, but the texts of rules and dashboards."""
    values = yaml.safe_load((HERE / "kubernetes" / "full.values.yaml").read_text())
    parts = []
    for name, text in sorted(render(values, name="gateway", namespace="ml").items()):
        for document in documents(text) if name.endswith(".yaml") else []:
            if document["kind"] == "PrometheusRule" or "-dashboard-" in document["metadata"]["name"]:
                continue
            parts.append(yaml.dump(document, Dumper=BlockDumper, sort_keys=False, width=200))
    return HEAD + "---\n".join(parts)


def stale():
    """The files that are not what the chart makes."""
    made = files()
    return [name for name, text in made.items() if not is_same(KUBERNETES / name, text)]


def is_same(path, text):
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        for name, text in files().items():
            (KUBERNETES / name).write_text(text)
    elif found := stale():
        sys.exit("\n".join(f"{name} differs from the chart: run tests/commands/manifests.py --write" for name in found))
