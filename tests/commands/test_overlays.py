"""The overlays for the clouds: who reaches the engines, and which nodes they run on."""

import pytest
from test_kubernetes import OVERLAYS, every_set, named, pod


def test_engines_are_reached_through_the_gateway_only():
    for name in OVERLAYS:
        objects = every_set()[f"overlays/{name}"]
        gateway = named(objects, "Deployment", "penstock")
        engines = [one for one in objects if one["kind"] == "Deployment" and one is not gateway]
        assert len(engines) == 3
        (policy,) = [
            one for one in objects
            if one["kind"] == "NetworkPolicy" and one["metadata"]["namespace"] == "models"
        ]
        chosen = policy["spec"]["podSelector"]["matchLabels"]
        for engine in engines:
            assert engine["metadata"]["namespace"] == "models"
            assert chosen.items() <= engine["spec"]["template"]["metadata"]["labels"].items()
        (rule,) = policy["spec"]["ingress"]
        monitoring, clients = {}, {}
        for peer in rule["from"]:
            (clients if "podSelector" in peer else monitoring).update(peer)
        assert clients["podSelector"]["matchLabels"].items() <= gateway["spec"]["template"]["metadata"]["labels"].items()
        assert clients["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "penstock"}
        assert monitoring == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


@pytest.mark.parametrize(
    ("cloud", "label", "value", "taint"),
    [
        ("gke", "cloud.google.com/gke-spot", "true", "cloud.google.com/gke-spot"),
        ("eks", "karpenter.sh/capacity-type", "spot", None),
        ("aks", "kubernetes.azure.com/scalesetpriority", "spot", "kubernetes.azure.com/scalesetpriority"),
    ],
)
def test_overlays_keep_the_pools_apart(cloud, label, value, taint):
    objects = every_set()[f"overlays/{cloud}"]
    spot = pod(named(objects, "Deployment", "vllm-spot"))
    assert spot["nodeSelector"][label] == value
    assert taint is None or taint in {one["key"] for one in spot["tolerations"]}
    for name in ("vllm-on-demand", "penstock"):
        spec = pod(named(objects, "Deployment", name))
        selected = spec.get("nodeSelector", {}).get(label)
        terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        excluded = [
            one for term in terms for one in term["matchExpressions"]
            if one["key"] == label and one["operator"] in ("NotIn", "DoesNotExist")
        ]
        assert excluded or selected == "on-demand", name
        assert taint is None or taint not in {one["key"] for one in spec.get("tolerations", [])}
    mig = pod(named(objects, "Deployment", "vllm-mig"))
    asked = mig["containers"][0]["resources"]["limits"]
    assert [key for key in asked if key.startswith("nvidia.com/")] == (
        ["nvidia.com/gpu"] if cloud == "gke" else ["nvidia.com/mig-3g.40gb"]
    )
