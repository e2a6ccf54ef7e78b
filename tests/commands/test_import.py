"""`penstock import`: a file of LiteLLM with its keys, run in front of simulated engines."""

import hashlib
import json
import subprocess

import yaml
from conftest import free_ports, run

MODELS, KEYS = 20, 100


def secret(number):
    return f"sk-{number:03}{hashlib.sha256(str(number).encode()).hexdigest()[:19]}"


def litellm(engines):
    """A configuration of LiteLLM, its keys and its teams, as its API lists them."""
    models = [f"model-{number:02}" for number in range(MODELS)]
    entries = [
        {"model_name": name, "litellm_params": {
            "model": f"hosted_vllm/{name}", "api_base": f"http://{engines[number % 2]}/v1", "api_key": "none", "rpm": 600}}
        for number, name in enumerate(models)
    ]
    config = {"model_list": entries,
              "router_settings": {"routing_strategy": "least-busy", "num_retries": 2,
                                  "model_group_alias": {"gpt-4o": models[0]}},
              "general_settings": {"master_key": "sk-master-0123456789abcdef"}}
    teams = [{"team_id": f"t{number}", "team_alias": f"Team {number}", "tpm_limit": 10_000_000} for number in range(5)]
    keys = [
        {"token": hashlib.sha256(secret(number).encode()).hexdigest(), "key_alias": f"user {number}",
         "team_id": f"t{number % 5}", "rpm_limit": 600, "models": [] if number % 2 else [models[number % MODELS]]}
        for number in range(KEYS)
    ]
    return config, keys, teams


def chat(address, key, model):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
    done = subprocess.run(
        ["curl", "-s", "-w", "\\n%{http_code}", f"http://{address}/v1/chat/completions", "-H", f"Authorization: Bearer {key}",
         "-H", "content-type: application/json", "-d", body],
        text=True, capture_output=True, check=True,
    )
    return int(done.stdout.rsplit("\n", 1)[1])


def test_keys_of_litellm_go_on_after_the_import(tmp_path, start):
    listen, admin, *engines = free_ports(4)
    config, keys, teams = litellm(engines)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "teams.json").write_text(json.dumps(teams))
    for page in (1, 2):
        part = {"keys": keys[(page - 1) * 50 : page * 50], "total_pages": 2}
        (tmp_path / f"keys{page}.json").write_text(json.dumps(part))
    for command in ("penstock check config.yaml", "penstock serve -c config.yaml"):
        mistaken = run(command, cwd=tmp_path)
        assert mistaken.returncode == 1
        assert "penstock import litellm config.yaml" in mistaken.stdout + mistaken.stderr

    done = run("penstock import litellm config.yaml --keys keys1.json --keys keys2.json --teams teams.json"
               " -o penstock.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for said in ("clients go on with the secrets that they have (100 times)", "pools.*.replicas (20 times)",
                 "general_settings.master_key -> admin.auth.tokens[]", "litellm_params.rpm (20 times)"):
        assert said in done.stdout, done.stdout
    again = run("penstock import litellm config.yaml -o penstock.yaml", cwd=tmp_path)
    assert again.returncode == 1 and "exists" in again.stderr
    checked = run("penstock check penstock.yaml", cwd=tmp_path)
    assert checked.returncode == 0 and "error" not in checked.stdout, checked.stdout
    report = json.loads(run("penstock import litellm config.yaml --report json -o other.yaml", cwd=tmp_path).stdout)
    assert {row["fidelity"] for row in report["rows"]} == {"exact", "near", "left_out"}

    served = [entry["model_name"] for entry in config["model_list"]]
    for number, address in enumerate(engines):
        models = " ".join(f"--model {name}" for name in served[number::2])
        start(f"penstock sim-engine --listen {address} --speed 50 {models}").wait_for("simulated engine")
    text = (tmp_path / "penstock.yaml").read_text()
    (tmp_path / "penstock.yaml").write_text(f"{text}server: {{listen: {listen}, admin: {admin}}}\n")
    gateway = start("penstock serve", cwd=tmp_path)
    gateway.wait_for("server started")
    for number in range(KEYS):
        assert chat(listen, secret(number), served[number % MODELS]) == 200, number
    assert chat(listen, secret(1), "gpt-4o") == 200
    assert chat(listen, secret(2), served[0]) == 404, "a key keeps to its models"
    assert chat(listen, "sk-nobody-0123456789abcdef", served[0]) == 401
    assert gateway.stop() == 0


def test_import_says_what_is_wrong(tmp_path):
    (tmp_path / "empty.yaml").write_text("{}")
    (tmp_path / "hosted.yaml").write_text("model_list: [{model_name: a, litellm_params: {model: azure/a}}]")
    (tmp_path / "broken.conf").write_text("upstream {")
    for command, said in {
        "litellm empty.yaml": "has no `model_list`",
        "litellm hosted.yaml": "no model of it runs on an engine of your own",
        "litellm none.yaml": "cannot read none.yaml",
        "llm-d empty.yaml": "no document of the kind InferencePool",
        "nginx broken.conf": "without its `}`",
        "nginx empty.yaml": "neither an `upstream`",
    }.items():
        done = run(f"penstock import {command}", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, ""), command
        assert said in done.stderr, done.stderr


def test_import_of_nginx_and_llm_d(tmp_path):
    (tmp_path / "nginx.conf").write_text(
        "http { upstream vllm { least_conn; server 10.0.0.1:8000; server 10.0.0.2:8000; }\n"
        " server { location / { proxy_pass http://vllm; } } }")
    done = run("penstock import nginx nginx.conf --model llama", cwd=tmp_path)
    assert done.returncode == 0 and "least_conn" in done.stderr
    made = yaml.safe_load(done.stdout)
    assert made["pools"]["vllm"]["replicas"] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert run("penstock check -", stdin=done.stdout).returncode == 0
    (tmp_path / "manifests.yaml").write_text(
        "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: llama, namespace: models}\n"
        "spec: {targetPorts: [{number: 8000}], selector: {matchLabels: {app: vllm}}}\n")
    done = run("penstock import llm-d manifests.yaml --model llama -o penstock.yaml", cwd=tmp_path)
    assert done.returncode == 0 and "headless Service `llama`" in done.stdout, done.stderr
    assert "llm-d manifests.yaml" in run("penstock check manifests.yaml", cwd=tmp_path).stdout
    assert run("penstock check", cwd=tmp_path).returncode == 0
