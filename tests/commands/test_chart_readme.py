"""The chart's README: the values that it shows, and its way to the first answer."""

import re

import yaml
from conftest import free_ports, get, run, wait_until
from manifests import CHART, KUBERNETES, values_of
from test_kubernetes import configuration, every_set, named, pod, readme_values, rendered


def test_the_values_of_the_readme_give_what_it_says():
    (values,) = readme_values()
    objects = every_set()["README 1"]
    (container,) = pod(named(objects, "Deployment", "penstock"))["containers"]
    assert container["image"].startswith(values["image"]["repository"] + ":")
    config = yaml.safe_load(configuration(objects))
    assert {key: config[key] for key in values["config"]} == values["config"]
    assert named(objects, "NetworkPolicy", "penstock-engines-vllm")["metadata"]["namespace"] == "models"


def test_the_way_of_the_readme_ends_with_an_answer(start, tmp_path):
    """The chart's simulated engines, gateway and probes, as processes: from the
    containers' own arguments, with addresses in place of the cluster's names."""
    objects = rendered(values_of("simulated"))
    engine = pod(named(objects, "Deployment", "penstock-sim-engine"))["containers"][0]
    replicas = []
    for _ in range(named(objects, "Deployment", "penstock-sim-engine")["spec"]["replicas"]):
        words = [word.replace("0.0.0.0:8000", "127.0.0.1:0") for word in engine["args"]]
        assert words != engine["args"]
        replicas.append(start(" ".join(["penstock", *words])).wait_for(r"http://\S+").group())
    assert run(f"penstock ready {replicas[0]}{engine['readinessProbe']['httpGet']['path']}").stdout == "ready\n"

    listen, admin, scale = free_ports(3)
    config = yaml.safe_load(configuration(objects))
    config["server"].update(listen=listen, admin=admin)
    config["scale"] = {"listen": scale}
    config["pools"]["simulated"].update(discover=None, replicas=replicas)
    del config["pools"]["simulated"]["discover"]
    (tmp_path / "penstock.yaml").write_text(yaml.safe_dump(config))
    gateway = pod(named(objects, "Deployment", "penstock"))["containers"][0]
    words = [word.replace("/etc/penstock", str(tmp_path)) for word in gateway["args"]]
    running = start(" ".join(["penstock", *words]))
    running.wait_for("server started")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        wait_until(probe, lambda path=gateway[probe]["httpGet"]["path"]: get(f"http://{admin}{path}"))
    tested = named(objects, "Pod", "penstock-test")["spec"]["containers"][0]["args"]
    assert tested[0] == "ready" and tested[1].endswith("/readyz")
    assert run(f"penstock ready http://{admin}/readyz").returncode == 0

    (curl,) = re.findall(r"^(curl -sN .*)$", (CHART / "README.md").read_text(), re.M)
    key = re.search(r"pst_\w+", (KUBERNETES / "values" / "simulated.yaml").read_text()).group()
    done = run(curl.replace("127.0.0.1:8080", listen), KEY=key)
    assert done.stdout.rstrip().endswith("data: [DONE]"), done.stdout + done.stderr
    assert running.stop() == 0
    assert run(f"penstock ready --admin http://{admin}").returncode == 1
