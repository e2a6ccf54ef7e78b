"""The Helm chart, and what is made of it for kustomize: rendered by Helm's own library
and by `kubectl kustomize`, held against the schemas of Kubernetes, KEDA and the
Prometheus operator, and against the program itself."""

import functools
import json
import os
import re
import shutil
import subprocess
import textwrap

import helm_python
import kubernetes_validate
import manifests
import pytest
import yaml
from conftest import ROOT, run
from manifests import CHART, KUBERNETES, documents, render, values_of

#: The oldest Kubernetes that the chart says it runs on, and the newest with schemas.
VERSIONS = ("1.30", "1.37")
VALUES = ("base", "pools", "simulated")
OVERLAYS = ("gke", "eks", "aks")
FULL = yaml.safe_load((ROOT / "tests" / "commands" / "kubernetes" / "full.values.yaml").read_text())
#: What the models of the custom resources, which are of KEDA 2.16, do not know yet.
NEWER = {"tolerance", "fallback/behavior"}


def readme_values():
    """The values that the chart's README shows: each YAML block, without the indent of its list."""
    found = re.findall(r"^( *)```yaml\n(.*?)^\1```$", (CHART / "README.md").read_text(), re.S | re.M)
    assert found, "the README shows values"
    for indent, block in found:
        outside = [line for line in block.splitlines() if line and not line.startswith(indent)]
        assert not outside, f"these lines end the list that the block is in: {outside}"
    return [yaml.safe_load(textwrap.dedent(block)) for _, block in found]


def rendered(values, **where):
    """Every object of the chart, without its notes."""
    found = render(values, **where)
    return [document for name, text in found.items() if name.endswith(".yaml") for document in documents(text)]


@functools.cache
def kustomized(folder):
    done = run(f"kubectl kustomize {folder}")
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


@functools.cache
def every_set():
    """Name and objects of everything that a user may apply."""
    sets = {f"values/{name}": rendered(values_of(name)) for name in VALUES}
    sets |= {f"README {number}": rendered(values) for number, values in enumerate(readme_values(), 1)}
    sets["full"] = rendered(FULL, name="gateway", namespace="ml")
    sets |= {f"overlays/{name}": kustomized(KUBERNETES / "overlays" / name) for name in OVERLAYS}
    for example in sorted((KUBERNETES / "examples").iterdir()):
        if (example / "kustomization.yaml").exists():
            sets[f"examples/{example.name}"] = kustomized(example)
        if (values := example / "chart.values.yaml").exists():
            sets[f"examples/{example.name}/chart"] = rendered(yaml.safe_load(values.read_text()))
    return sets


def named(objects, kind, name=None):
    found = [one for one in objects if one["kind"] == kind and name in (None, one["metadata"]["name"])]
    assert len(found) == 1, (kind, name, len(found))
    return found[0]


def configuration(objects, name="penstock"):
    return named(objects, "ConfigMap", name)["data"]["penstock.yaml"]


def pod(deployment):
    return deployment["spec"]["template"]["spec"]


def test_lint():
    for values in ({}, FULL, *map(values_of, VALUES)):
        report = helm_python.lint(CHART, values, strict=True)
        worst = [message for message in report["messages"] if message["severity"] > 1]
        assert (report["errors"], worst) == ([], [])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replica": 3}, "replica"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"prometheusRule": {"runbookBaseUrl": "docs.example.com"}}, "runbookBaseUrl"),
        ({"config": {"server": {"drain_grace": "one minute"}}}, "drain_grace"),
        ({"networkPolicy": {"engines": [{"name": "a", "podLabels": {}, "ports": [1]}]}}, "podLabels"),
        ({"scaledObjects": {"qwen": {"max": 8}}}, "config.pools has no pool of that name"),
        ({**values_of("base"), "scaledObjects": {"qwen": {"min": 9, "max": 8}}}, "at least min"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(values, said):
    with pytest.raises(helm_python.HelmError, match=said):
        render(values)


def test_every_value_is_in_the_schema():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(values, schema, path):
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is False:
            assert set(values) == set(properties) - {"global"}, path
        for key, inner in properties.items():
            if isinstance(values.get(key), dict):
                compare(values[key], inner, f"{path}.{key}")

    compare(values, schema, "")


def test_versions_agree():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (version,) = re.findall(r'^\[workspace\.package\]\nversion = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M)
    base = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert [image["newTag"] for image in base["images"]] == [version]


def test_made_files_are_current():
    assert manifests.stale() == [], "run tests/commands/manifests.py --write"


def plain(objects):
    """Objects by kind and name, without what only Helm adds."""
    kept = {}
    for one in objects:
        one = json.loads(json.dumps(one))
        for label in manifests.HELM_LABELS:
            one["metadata"].get("labels", {}).pop(label, None)
        if "helm.sh/hook" not in one["metadata"].get("annotations", {}):
            kept[one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]] = one
    return kept


def test_kustomize_gives_what_the_chart_gives(tmp_path):
    base = plain(kustomized(KUBERNETES / "base"))
    base = {key: one for key, one in base.items() if key[0] != "Namespace"}
    assert base == plain(rendered(values_of("base")))

    place = os.path.relpath(KUBERNETES, tmp_path)
    components = [f"{place}/components/{name}" for name in ("pools", "keda", "monitoring")]
    overlay = {"resources": [f"{place}/base"], "components": components}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    pools = plain(kustomized(tmp_path))
    engines = plain(kustomized(KUBERNETES / "engines"))
    pools = {key: one for key, one in pools.items() if key[0] != "Namespace" and key not in engines}
    assert pools == plain(rendered(values_of("pools")))


def unknown_keys(data, kept, path=""):
    """Keys of an object that a model has not taken over."""
    if isinstance(data, dict) and isinstance(kept, dict):
        for key, value in data.items():
            place = f"{path}/{key}"
            if key in kept:
                yield from unknown_keys(value, kept[key], place)
            elif not any(place.endswith(newer) for newer in NEWER):
                yield place
    elif isinstance(data, list):
        for one, other in zip(data, kept, strict=True):
            yield from unknown_keys(one, other, path)


@pytest.fixture(scope="module")
def models():
    """Custom resources that a package has models of."""
    from cloudcoil.models.keda import v1alpha1 as keda
    from cloudcoil.models.prometheus_operator import v1 as operator

    return {
        ("keda.sh/v1alpha1", "ScaledObject"): keda.ScaledObject,
        ("keda.sh/v1alpha1", "TriggerAuthentication"): keda.TriggerAuthentication,
        ("monitoring.coreos.com/v1", "ServiceMonitor"): operator.ServiceMonitor,
        ("monitoring.coreos.com/v1", "PodMonitor"): operator.PodMonitor,
        ("monitoring.coreos.com/v1", "PrometheusRule"): operator.PrometheusRule,
    }


#: Custom resources without a package of their schemas, with what each must have under `spec`.
BY_HAND = {
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): ["nodeLabels"],
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"): ["namespaceSelector", "resourceGroups"],
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): ["clusterQueue"],
    ("scheduling.volcano.sh/v1beta1", "Queue"): ["weight", "capability"],
    ("scheduling.run.ai/v2", "Queue"): ["resources"],
    ("karpenter.sh/v1", "NodePool"): ["template", "disruption"],
    ("serving.kserve.io/v1beta1", "InferenceService"): ["predictor"],
}


def test_objects_are_what_the_schemas_say(models):
    seen = set()
    for where, objects in every_set().items():
        for one in objects:
            kind = one["apiVersion"], one["kind"]
            # Most objects are in several sets.
            if (text := json.dumps(one)) in seen:
                continue
            seen |= {kind, text}
            if model := models.get(kind):
                kept = model.model_validate(one).model_dump(mode="json", by_alias=True, exclude_unset=True)
                assert list(unknown_keys(one, kept)) == [], where
            elif kind in BY_HAND:
                assert set(BY_HAND[kind]) <= set(one["spec"]), (where, kind)
            else:
                for version in VERSIONS:
                    kubernetes_validate.validate(one, version, strict=True)
    assert {kind for kind in models if kind[1] not in ("PrometheusRule", "PodMonitor")} <= seen
    assert set(BY_HAND) <= seen


def test_selectors_find_pods_and_ports():
    """Of every Service, PodDisruptionBudget and NetworkPolicy."""
    for where, objects in every_set().items():
        deployments = [one for one in objects if one["kind"] == "Deployment"]
        pods = [(one["metadata"]["namespace"], one["spec"]["template"]) for one in deployments]

        def chosen(namespace, labels):
            found = [
                template for place, template in pods
                if place == namespace and labels.items() <= template["metadata"]["labels"].items()
            ]
            return found

        if not any(one["metadata"]["name"].endswith("penstock") for one in deployments):
            continue
        for one in objects:
            namespace, spec = one["metadata"].get("namespace"), one.get("spec", {})
            if one["kind"] == "Service":
                (template,) = chosen(namespace, spec["selector"])
                ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
                assert {port["targetPort"] for port in spec["ports"]} <= ports, where
            elif one["kind"] == "PodDisruptionBudget":
                assert chosen(namespace, spec["selector"]["matchLabels"]), where
            elif one["kind"] == "Deployment":
                labels = one["spec"]["template"]["metadata"]["labels"]
                assert spec["selector"]["matchLabels"].items() <= labels.items(), where


def test_the_security_profile_is_restricted():
    for where, objects in every_set().items():
        for one in objects:
            if one["kind"] not in ("Deployment", "Pod") or one["metadata"].get("namespace") == "models":
                continue
            spec = pod(one) if one["kind"] == "Deployment" else one["spec"]
            assert spec["securityContext"]["runAsNonRoot"] is True, where
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in spec["containers"]:
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }


@pytest.mark.parametrize(
    ("grace", "seconds"), [(None, 60), ("45s", 45), ("1m30s", 90), ("1h", 3600), ("1500ms", 2), ("2m500ms", 121)]
)
def test_the_pod_outlives_the_drain(grace, seconds):
    values = values_of("base")
    if grace:
        values["config"]["server"] = {"drain_grace": grace}
    spec = pod(named(rendered(values), "Deployment"))
    pause = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert (pause, spec["terminationGracePeriodSeconds"]) == (10, 10 + seconds + 10)


def test_pods_are_replaced_when_a_change_needs_it():
    """And only then: what the schema marks with x-penstock-restart."""

    def annotation(config):
        values = values_of("base")
        for section, keys in config.items():
            values["config"].setdefault(section, {}).update(keys)
        deployment = named(rendered(values), "Deployment")
        return deployment["spec"]["template"]["metadata"]["annotations"]["penstock/restart-sections"]

    now = annotation({})
    schema = json.loads((ROOT / "config" / "schema.json").read_text())
    for section, definition in schema["properties"].items():
        found = re.search(r'"\$ref": "#/definitions/(\w+)"', json.dumps(definition))
        fields = schema["definitions"][found.group(1)].get("properties", {}) if found else {}
        for field, about in fields.items():
            if (section, field) == ("server", "drain_grace"):
                assert annotation({section: {field: "2m"}}) != now
            elif section not in ("pools", "tenants", "models", "classes"):
                changed = annotation({section: {field: {"x": 1}}}) != now
                assert changed == about.get("x-penstock-restart", False), f"{section}.{field}"
    assert annotation({"tenants": {"more": {}}}) == now


def test_roles_follow_the_configuration():
    role = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}
    for objects, namespaces, reads_nodes in (
        (rendered(values_of("simulated")), set(), False),
        (rendered(values_of("base")), {"models"}, False),
        (rendered(values_of("pools")), {"models"}, True),
        (rendered(FULL, name="gateway", namespace="ml"), {"models", "ml"}, True),
    ):
        account = named(objects, "ServiceAccount")["metadata"]
        subject = {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
        roles = [one for one in objects if one["kind"] == "Role"]
        assert {one["metadata"]["namespace"] for one in roles} == namespaces
        assert [one["rules"] for one in roles] == [[role]] * len(namespaces)
        cluster = [one for one in objects if one["kind"] == "ClusterRole"]
        assert [one["rules"] for one in cluster] == [[nodes]] * reads_nodes
        names = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in [*roles, *cluster]}
        bindings = [one for one in objects if one["kind"].endswith("Binding")]
        assert len(bindings) == len(names)
        for one in bindings:
            assert one["subjects"] == [subject]
            assert (one["roleRef"]["kind"], one["metadata"].get("namespace"), one["roleRef"]["name"]) in names
        mounted = pod(next(one for one in objects if one["kind"] == "Deployment" and "scaler" in str(one)))
        assert mounted["automountServiceAccountToken"] == bool(namespaces)
    example = yaml.safe_load((ROOT / "config" / "examples" / "kubernetes.yaml").read_text())
    watched = [pool["discover"]["kubernetes"]["namespace"] for pool in example["pools"].values() if "kubernetes" in pool["discover"]]
    base = documents((KUBERNETES / "base" / "rbac.yaml").read_text())
    assert watched == [named(base, "Role")["metadata"]["namespace"]]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A folder in place of /run/penstock."""
    folder = tmp_path_factory.mktemp("run")
    for name in ("server", "admin", "scale"):
        place = folder / "tls" / name
        place.mkdir(parents=True)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-subj", "/CN=test", "-addext", "subjectAltName=DNS:test",
             "-keyout", place / "tls.key", "-out", place / "tls.crt"],
            check=True, capture_output=True,
        )
        shutil.copy(place / "tls.crt", place / "ca.crt")
    (folder / "secrets").mkdir()
    (folder / "secrets" / "vllm").write_text("secret")
    (folder / "keys").mkdir()
    key_file = {"tenant": "research", "keys": [{"id": "s9kx3vwa", "digest": "blake3:" + "1" * 64}]}
    (folder / "keys" / "research.yaml").write_text(yaml.safe_dump(key_file))
    return folder


def check(folder, text, certificates):
    """What `penstock check` says beside the warnings that ports are open, which
    NetworkPolicies close, and that clients come without TLS, which what stands in front may end."""
    path = folder / "penstock.yaml"
    text = text.replace("/run/penstock/", f"{certificates}/").replace("/var/lib/penstock/", f"{folder}/")
    path.write_text(text)
    done = run(f"penstock check {path}", EMBED_KEY="x", PENSTOCK_DATABASE_URL="postgres://u:p@db:5432/penstock?sslmode=require")
    return done.returncode, [
        line for line in re.findall(r"^(?:warning|error): .*", done.stdout, re.M)
        if not re.match(r"warning: ((server\.admin|scale\.listen): .* can be reached|server\.listen: clients reach .*) from outside", line)
    ]


def test_every_configuration_passes_the_check(tmp_path, certificates):
    checked = 0
    for where, objects in every_set().items():
        for one in objects:
            if text := one.get("data", {}).get("penstock.yaml") if one["kind"] == "ConfigMap" else None:
                assert check(tmp_path, text, certificates) == (0, []), where
                config = yaml.safe_load(text)
                assert [config["server"]["listen"][-4:], config["server"]["admin"][-4:], config["scale"]["listen"][-4:]] == ["8080", "8081", "8082"]
                peers = config["scale"]["peers"]["dns"]
                headless = named(objects, "Service", peers["name"].split(".")[0])
                assert headless["spec"]["clusterIP"] == "None" and headless["spec"]["publishNotReadyAddresses"]
                assert headless["metadata"]["namespace"] == peers["name"].split(".")[1]
                checked += 1
    assert checked >= len(VALUES) + len(OVERLAYS) + 1


def test_scaled_objects_are_those_of_penstock_keda(tmp_path, certificates):
    for values, where in ((values_of("pools"), {}), (FULL, {"name": "gateway", "namespace": "ml"})):
        objects = rendered(values, **where)
        full = f"{where['name']}-penstock" if where else "penstock"
        check(tmp_path, configuration(objects, full), certificates)
        for pool, row in values["scaledObjects"].items():
            name = re.sub(r"[^a-z0-9]", "-", pool.lower())
            arguments = {
                "service": f"{full}-admin.{where.get('namespace', 'penstock')}.svc",
                "target": row.get("name"), "kind": row.get("kind"), "namespace": row.get("namespace", "ml"),
                "min": row.get("min"), "max": row["max"],
                "keep-last": f"{row['keepLastSeconds']}s" if "keepLastSeconds" in row else None,
            }
            options = " ".join(f"--{key} {value}" for key, value in arguments.items() if value is not None)
            done = run(
                f"penstock keda {pool} -c {tmp_path}/penstock.yaml {options}",
                EMBED_KEY="x", PENSTOCK_DATABASE_URL="postgres://u:p@db:5432/penstock?sslmode=require",
            )
            assert done.returncode == 0, done.stderr
            for expected in documents(done.stdout):
                found = named(objects, expected["kind"], name)
                assert (found["metadata"]["name"], found["metadata"]["namespace"]) == tuple(expected["metadata"].values())
                if not row.get("tolerance", True):
                    behavior = expected["spec"].get("advanced", {}).get("horizontalPodAutoscalerConfig", {}).get("behavior", {})
                    for rules in behavior.values():
                        del rules["tolerance"]
                assert found["spec"] == expected["spec"]


def test_certificates_are_all_that_opens_the_scaler():
    """With a client authority, KEDA and the peers show certificates."""
    objects = rendered(FULL, name="gateway", namespace="ml")
    scale = yaml.safe_load(configuration(objects, "gateway-penstock"))["scale"]
    assert scale["tls"]["require_client_cert"] is True
    assert {"ca", "cert", "key"} <= set(scale["peers"])
    spec = pod(named(objects, "Deployment", "gateway-penstock"))
    mounts = {mount["mountPath"]: mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    assert set(mounts.values()) == {volume["name"] for volume in spec["volumes"]}
    for path in (scale["tls"]["cert"], scale["peers"]["key"], "/run/penstock/secrets/vllm", "/etc/penstock/penstock.yaml"):
        assert path.rsplit("/", 1)[0] in mounts


def test_a_secret_of_key_files_becomes_the_folder_of_keys(tmp_path, certificates):
    """Mounted as a folder, so that a changed Secret is seen; what `config` says goes before it."""
    values = values_of("base") | {"keys": {"existingSecret": "research-keys"}}
    objects = rendered(values)
    text = configuration(objects)
    folder = yaml.safe_load(text)["auth"]["keys_dir"]
    spec = pod(named(objects, "Deployment"))
    (mount,) = [one for one in spec["containers"][0]["volumeMounts"] if one["mountPath"] == folder]
    assert mount["readOnly"] and "subPath" not in mount
    (volume,) = [one for one in spec["volumes"] if one["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == "research-keys"
    assert check(tmp_path, text, certificates) == (0, [])
    broken = certificates / "keys" / "more.yaml"
    broken.write_text("tenant: nobody\nkyes: []\n")
    code, said = check(tmp_path, text, certificates)
    broken.unlink()
    assert code == 0 and "kyes" in str(said), "penstock check reads the folder"

    values["config"] = values["config"] | {"auth": {"keys_dir": "/somewhere"}}
    assert yaml.safe_load(configuration(rendered(values)))["auth"]["keys_dir"] == "/somewhere"
    assert "auth" not in yaml.safe_load(configuration(rendered(values_of("base"))))


def test_a_store_takes_the_place_of_the_peers(tmp_path, certificates):
    """With `cluster` the gateways report through the store, so that nothing names the others."""
    values = values_of("simulated")
    values["config"] = {**values["config"], "cluster": {"valkey": {"url": "redis://valkey.ml.svc:6379/0"}}}
    objects = rendered(values)
    text = configuration(objects)
    assert check(tmp_path, text, certificates) == (0, [])
    assert "peers" not in yaml.safe_load(text)["scale"]
    assert not [one for one in objects if one["metadata"]["name"].endswith("-peers")]


def test_prometheus_gets_the_rules_and_grafana_the_dashboards():
    objects = rendered(FULL, name="gateway", namespace="ml")
    groups = [
        group for path in sorted((ROOT / "config" / "prometheus").glob("*.yaml")) if "test" not in path.name
        for group in yaml.safe_load(path.read_text()).get("groups", [])
    ]
    rules = [one["spec"]["groups"] for one in objects if one["kind"] == "PrometheusRule"]
    (relative,) = [one["spec"]["groups"] for one in rendered(values_of("pools")) if one["kind"] == "PrometheusRule"]
    as_text = lambda group: json.dumps(group, sort_keys=True)
    assert sorted(map(as_text, relative)) == sorted(map(as_text, groups))
    # Links of Alertmanager: `prometheusRule.runbookBaseUrl` goes before each `runbook_url`.
    base, linked = FULL["prometheusRule"]["runbookBaseUrl"], 0
    for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
        rule["annotations"]["runbook_url"] = base + rule["annotations"]["runbook_url"]
        linked += 1
    assert linked and base.endswith("/")
    assert sorted(map(as_text, sum(rules, []))) == sorted(map(as_text, groups))
    boards = {path.name: path.read_text() for path in (ROOT / "config" / "grafana").glob("*.json")}
    maps = [one for one in objects if one["kind"] == "ConfigMap" and "-dashboard-" in one["metadata"]["name"]]
    assert {key: text for one in maps for key, text in one["data"].items()} == boards
