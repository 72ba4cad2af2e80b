"""The manifests: valid to the letter for old and new Kubernetes, and consistent with each other."""

import copy
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.28", "1.37")


def resources() -> list[dict]:
    files = sorted(FOLDER.glob("*.yaml"))
    return [one for file in files for one in yaml.safe_load_all(file.read_text()) if one]


def name_of(resource: dict) -> str:
    return f"{resource['kind']}/{resource['metadata']['name']}"


def of_kind(kind: str) -> list[dict]:
    return [resource for resource in resources() if resource["kind"] == kind]


SETS = of_kind("StatefulSet")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("resource", resources(), ids=name_of)
def test_valid_to_the_letter(resource, version):
    kubernetes_validate.validate(resource, version, strict=True)


def test_a_misspelt_field_would_be_noticed():
    broken = copy.deepcopy(SETS[0])
    broken["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_names_are_unique_and_all_in_one_namespace():
    names = [name_of(resource) for resource in resources()]
    assert len(set(names)) == len(names)
    (namespace,) = of_kind("Namespace")
    inside = [one for one in resources() if one["kind"] != "Namespace"]
    assert {one["metadata"]["namespace"] for one in inside} == {namespace["metadata"]["name"]}


@pytest.mark.parametrize("resource", SETS, ids=name_of)
def test_a_set_finds_its_own_pods_service_and_disks(resource):
    spec = resource["spec"]
    pod = spec["template"]
    assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    services = {service["metadata"]["name"]: service for service in of_kind("Service")}
    selector = services[spec["serviceName"]]["spec"]["selector"]
    assert selector.items() <= pod["metadata"]["labels"].items()
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    for container in pod["spec"]["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def ports_of(resource: dict) -> set[str]:
    containers = resource["spec"]["template"]["spec"]["containers"]
    return {port["name"] for container in containers for port in container.get("ports", ())}


def test_services_and_policies_name_ports_that_pods_have():
    for kind, key in (("Service", "selector"), ("NetworkPolicy", "podSelector")):
        for resource in of_kind(kind):
            labels = resource["spec"][key]
            labels = labels.get("matchLabels", labels)
            chosen = [
                one
                for one in SETS
                if labels.items() <= one["spec"]["template"]["metadata"]["labels"].items()
            ]
            assert len(chosen) == 1, name_of(resource)
            assert named_ports(resource) <= ports_of(chosen[0]), name_of(resource)


def named_ports(resource: dict) -> set[str]:
    spec = resource["spec"]
    rules = [port for rule in spec.get("ingress", ()) for port in rule.get("ports", ())]
    wanted = [port.get("targetPort", port.get("port")) for port in [*spec.get("ports", ()), *rules]]
    return {port for port in wanted if isinstance(port, str)}


@pytest.mark.parametrize("resource", SETS, ids=name_of)
def test_pods_may_do_nothing_that_the_namespace_forbids(resource):
    pod = resource["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    for container in pod["containers"]:
        context = container["securityContext"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


def test_agents_can_join_before_users_can_ask():
    services = {service["metadata"]["name"]: service["spec"] for service in of_kind("Service")}
    assert services["molink-coordinator"]["publishNotReadyAddresses"]
    assert not services["molink-api"].get("publishNotReadyAddresses")


def test_only_one_coordinator_and_a_gpu_for_each_agent():
    sets = {one["metadata"]["name"]: one["spec"] for one in SETS}
    assert sets["molink-coordinator"]["replicas"] == 1
    (agent,) = sets["molink-agent"]["template"]["spec"]["containers"]
    assert agent["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_invite_is_never_in_a_file():
    (agent,) = next(one for one in SETS if "agent" in one["metadata"]["name"])["spec"]["template"][
        "spec"
    ]["containers"]
    (invite,) = [entry for entry in agent["env"] if entry["name"] == "MOLINK_INVITE"]
    assert "value" not in invite
    assert invite["valueFrom"]["secretKeyRef"]["name"] == "molink-invite"
    assert not of_kind("Secret")


def test_the_guide_applies_every_file():
    guide = (FOLDER.parents[1] / "docs" / "deploying.md").read_text()
    for file in FOLDER.glob("*.yaml"):
        assert f"-f deploy/kubernetes/{file.name}" in guide
