"""The files under deploy/kubernetes/: what an operator gives a cluster with them. No cluster is needed."""

import ast
import ipaddress
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from claude_agent_sdk import _cli_version

from activities.agents.entry_points import Catalog
from activities.runtimes.kubernetes import manifest
from activities.store.ownership import Ownership
from activities.takeover.registry import Registry
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.kubernetes import MOUNTS, KubernetesRuntime, check_template
from tests.support.kubernetes import Rule
from tests.support.kubernetes.worker_role import worker_role
from workers.arguments import argument_parser
from workers.cluster_check import RIGHTS
from workers.settings import settings_of

ROOT = Path(__file__).parent.parent
HERE = ROOT / "deploy/kubernetes"
CODE = ROOT / "activities/runtimes/kubernetes"
WORKERS, AGENTS = "steersman", "steersman-agents"

CALLS = {
    ("start.py", "_got_or_created", "get"): {("batch", "jobs"): {"get"}},
    ("start.py", "_got_or_created", "create"): {("batch", "jobs"): {"create"}},
    ("objects.py", "pods", "get"): {("", "pods"): {"list"}},
    ("objects.py", "events", "get"): {("", "events"): {"list"}},
    # By a websocket, so a GET; newer servers ask for `create` all the same.
    ("pod.py", "_connected", "exec"): {("", "pods/exec"): {"get", "create"}},
    ("pod.py", "_pod", "get"): {("", "pods"): {"get"}},
    ("objects.py", "job", "get"): {("batch", "jobs"): {"get"}},
    ("objects.py", "delete", "delete"): {("batch", "jobs"): {"delete"}, ("", "pods"): {"delete"}},
    ("pods.py", "_sweep", "get"): {("batch", "jobs"): {"list"}, ("", "pods"): {"list"}},
    ("pods.py", "_sweep", "delete"): {("batch", "jobs"): {"delete"}, ("", "pods"): {"delete"}},
    ("pool_claim.py", "_waiting", "get"): {("", "pods"): {"list"}},
    ("pool_claim.py", "_taken", "patch"): {("", "pods"): {"patch"}},
}
"""Module, function and method of KubernetesApi of each call of the cluster, and what it takes to be allowed it."""


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.fixture(scope="module")
def kustomization() -> dict[str, Any]:
    found: dict[str, Any] = documents(HERE / "kustomization.yaml")[0]
    return found


@pytest.fixture(scope="module")
def objects(kustomization: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for name in kustomization["resources"] for each in documents(HERE / name)]


@pytest.fixture(scope="module")
def settings(kustomization: dict[str, Any]) -> dict[str, str]:
    """The ConfigMap of the workers."""
    (made,) = kustomization["configMapGenerator"]
    return dict(each.split("=", 1) for each in made["literals"])


@pytest.fixture(scope="module")
def worker(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return one(objects, "StatefulSet")


def one(objects: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    return found


def calls_of_the_code() -> Iterator[tuple[str, str, str]]:
    """Module, function, method of every call of KubernetesApi that reaches the cluster."""
    for path in sorted(CODE.glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                        on = node.func.value
                        is_api = getattr(on, "attr", None) in ("_api", "api") or getattr(on, "id", None) == "api"
                        if is_api and node.func.attr in {"get", "create", "patch", "delete", "exec"}:
                            yield path.name, function.name, node.func.attr


def refused(spec: dict[str, Any]) -> list[str]:
    """What of a pod the Pod Security Standard `restricted` refuses."""
    pod = spec.get("securityContext", {})
    known = {"runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy", "seccompProfile"}
    found = [field for field in ("hostNetwork", "hostPID", "hostIPC", "initContainers") if spec.get(field)]
    found += [f"securityContext.{field}" for field in pod.keys() - known]
    volumes = [each.keys() - {"name"} for each in spec.get("volumes", [])]
    found += [f"volumes: {kinds}" for kinds in volumes if not kinds <= {"emptyDir", "persistentVolumeClaim"}]
    return [*found, *(each for container in spec["containers"] for each in refused_of(container, pod))]


def refused_of(container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    own = container["securityContext"]
    both = {**pod, **own}
    asked = {
        "runAsNonRoot": both["runAsNonRoot"] is True,
        "runAsUser": both["runAsUser"] > 0,
        "seccompProfile": both["seccompProfile"] == {"type": "RuntimeDefault"},
        "allowPrivilegeEscalation": own["allowPrivilegeEscalation"] is False,
        "capabilities": own["capabilities"] == {"drop": ["ALL"]},
        "securityContext": own.keys()
        <= {"allowPrivilegeEscalation", "capabilities", "readOnlyRootFilesystem", "runAsNonRoot", "runAsUser"},
        "ports": "ports" not in container,
        "lifecycle": "lifecycle" not in container,
        "probes": all("exec" in value for name, value in container.items() if name.endswith("Probe")),
    }
    yield from (field for field, is_fine in asked.items() if not is_fine)


def test_each_file_is_applied_and_each_object_is_in_one_of_two_namespaces(
    kustomization: dict[str, Any], objects: list[dict[str, Any]]
) -> None:
    files = {path.name for path in HERE.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files
    namespaces = {each["metadata"]["name"] for each in objects if each["kind"] == "Namespace"}
    assert namespaces == {WORKERS, AGENTS}
    for each in objects:
        if each["kind"] != "Namespace":
            assert each["metadata"]["namespace"] in namespaces, each["metadata"]["name"]
    assert [each["kind"] for each in objects if each["kind"].startswith("Cluster")] == []
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))


def test_the_role_allows_what_the_code_asks_for_and_no_more(objects: list[dict[str, Any]]) -> None:
    assert set(calls_of_the_code()) == set(CALLS)
    needed = {
        Rule(verb, resource, group, AGENTS)
        for rights in CALLS.values()
        for (group, resource), verbs in rights.items()
        for verb in verbs
    }
    role = one(objects, "Role")
    assert role["metadata"]["namespace"] == AGENTS
    assert set(worker_role(AGENTS)) == needed
    assert {Rule(right.verb, right.resource, right.group, AGENTS) for right in RIGHTS} == needed  # for `steer doctor`
    assert all(rule.keys() == {"apiGroups", "resources", "verbs"} for rule in role["rules"])


def test_the_role_is_the_workers_alone(objects: list[dict[str, Any]], worker: dict[str, Any]) -> None:
    binding, role = one(objects, "RoleBinding"), one(objects, "Role")
    assert binding["metadata"]["namespace"] == role["metadata"]["namespace"]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", role["metadata"]["name"])
    account = worker["spec"]["template"]["spec"]["serviceAccountName"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": WORKERS}]
    assert one(objects, "ServiceAccount", account)["metadata"]["namespace"] == WORKERS


def test_no_account_has_a_token_unless_a_pod_asks_for_it(objects: list[dict[str, Any]], worker: dict[str, Any]) -> None:
    accounts = [each for each in objects if each["kind"] == "ServiceAccount"]
    assert {each["automountServiceAccountToken"] for each in accounts} == {False}
    assert {each["metadata"]["name"] for each in accounts if each["metadata"]["namespace"] == AGENTS} == {
        *("default", "agent"),
    }
    assert worker["spec"]["template"]["spec"]["automountServiceAccountToken"] is True
    assert one_pod()["automountServiceAccountToken"] is False


def one_pod(**more: Any) -> dict[str, Any]:
    """The spec of an agent's pod."""
    runtime = KubernetesRuntime(kind="kubernetes", image="registry.example/agent:1", **more)
    made: dict[str, Any] = manifest.job(runtime, "c" * 32, "o" * 32, "run-1")["spec"]["template"]["spec"]
    return made


def test_both_namespaces_take_hardened_pods_alone(objects: list[dict[str, Any]]) -> None:
    for name in (WORKERS, AGENTS):
        labels = one(objects, "Namespace", name)["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_worker_is_hardened(worker: dict[str, Any]) -> None:
    spec = worker["spec"]["template"]["spec"]
    assert refused(spec) == []
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    user = re.search(r"useradd --uid (\d+)", (ROOT / "deploy/Dockerfile").read_text())
    assert user
    context = spec["securityContext"]
    assert {context[field] for field in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user[1])}
    assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"workspace_volume": "work", "env_from_secrets": ("keys",), "runtime_class": "gvisor"},
        {
            "pod_template": {
                "spec": {
                    "securityContext": {"runAsUser": 2000, "runAsGroup": 2000, "fsGroup": 2000},
                    "containers": [{"name": "agent", "securityContext": {"runAsUser": 2000}}],
                }
            }
        },
    ],
)
def test_agents_pods_are_hardened_whatever_a_request_says(more: dict[str, Any]) -> None:
    spec = one_pod(**more)
    assert refused(spec) == []
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["enableServiceLinks"] is False


@pytest.mark.parametrize(
    "spec",
    [
        {"hostNetwork": True},
        {"hostPID": True},
        {"volumes": [{"name": "node", "hostPath": {"path": "/"}}]},
        {"initContainers": [{"name": "first", "image": "other"}]},
        {"serviceAccountName": "worker"},
        {"automountServiceAccountToken": True},
        {"securityContext": {"runAsUser": 0}},
        {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
        {"securityContext": {"sysctls": []}},
        {"containers": [{"securityContext": {"privileged": True}}]},
        {"containers": [{"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
        {"containers": [{"securityContext": {"allowPrivilegeEscalation": True}}]},
        {"containers": [{"securityContext": {"readOnlyRootFilesystem": False}}]},
        {"containers": [{"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}]},
        {"containers": [{"name": "other"}]},
        {"containers": [{"ports": [{"hostPort": 80}]}]},
    ],
)
def test_no_template_softens_a_pod(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="pod_template"):
        check_template({"spec": spec})


def test_images_are_pinned_by_variables(kustomization: dict[str, Any], objects: list[dict[str, Any]]) -> None:
    pinned = {each["name"]: each.get("digest") or each.get("newTag") for each in kustomization["images"]}
    assert [name for name, tag in pinned.items() if tag in (None, "", "latest")] == []
    images = {
        container["image"]
        for each in objects
        for container in each.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    }
    assert images == set(pinned)
    lines = (HERE / "agent.Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("FROM ")] == ["FROM ${NODE_IMAGE}"]
    (base,) = [line for line in lines if line.startswith("ARG NODE_IMAGE=")]
    assert re.fullmatch(r"ARG NODE_IMAGE=[a-z/]+:[\w.-]+", base)
    assert "latest" not in base


def test_agents_have_the_claude_code_that_the_workers_library_has() -> None:
    version = re.search(r"ARG CLAUDE_CODE_VERSION=(\S+)", (HERE / "agent.Dockerfile").read_text())
    assert version
    assert version[1] == _cli_version.__cli_version__


def test_the_agents_image_has_the_user_and_the_home_of_its_pod() -> None:
    text = (HERE / "agent.Dockerfile").read_text()
    assert f"USER {manifest.USER}:{manifest.USER}" in text
    assert f"useradd --uid {manifest.USER} --home-dir {MOUNTS[0]} " in text
    assert {"python3", "git"} <= set(text.split())


def test_the_worker_allows_pods_in_the_agents_namespace_and_nothing_else(
    settings: dict[str, str], objects: list[dict[str, Any]], tmp_path: Path
) -> None:
    parser = argument_parser({})
    policy = settings_of(parser.parse_args(["--state-dir", str(tmp_path)]), settings, None, Catalog()).policy
    assert policy.runtimes == {"kubernetes"}
    (image,) = [each.value for each in policy.allow_pod if each.field == "image"]
    (account,) = [each.value for each in policy.allow_pod if each.field == "service_account"]
    assert one(objects, "ServiceAccount", account)["metadata"]["namespace"] == AGENTS
    runtime = KubernetesRuntime(
        kind="kubernetes", namespace=AGENTS, image=image.replace("*", "1"), service_account=account
    )
    policy.check_runtime(runtime)
    for changed in ({"namespace": WORKERS}, {"namespace": None}, {"image": "evil:1"}, {"context": "other"}):
        with pytest.raises(InvalidRequest):
            policy.check_runtime(runtime.model_copy(update=changed))
    # Settings with a misspelled name would be none.
    known = {*re.findall(r"\b(?:STEERSMAN|TEMPORAL)_[A-Z_]+", (ROOT / "docs/operations.md").read_text())}
    known |= {*re.findall(r"\bSTEERSMAN_[A-Z_]+", (ROOT / "workers/arguments.py").read_text())}
    known |= {*re.findall(r"\bTEMPORAL_[A-Z_]+", (ROOT / "deploy/README.md").read_text())}
    assert set(settings) <= known


def test_the_worker_keeps_its_name_its_state_and_its_workspaces(worker: dict[str, Any]) -> None:
    spec = worker["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    env = {each["name"]: each for each in container["env"]}
    assert env["STEERSMAN_HOST"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    claims = {each["metadata"]["name"]: each["spec"] for each in worker["spec"]["volumeClaimTemplates"]}
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert set(mounts.values()) == claims.keys() | {each["name"] for each in spec["volumes"]}
    kept = tuple(path for path, name in mounts.items() if name in claims)
    for name in ("STEERSMAN_STATE_DIR", "STEERSMAN_WORKSPACE_ROOT"):
        assert env[name]["value"].startswith(kept), name
    # One pod at a time, whatever becomes of nodes.
    assert {mode for claim in claims.values() for mode in claim["accessModes"]} == {"ReadWriteOncePod"}
    # All that the image says of places stays so.
    image = (ROOT / "deploy/Dockerfile").read_text()
    for name in ("STEERSMAN_STATE_DIR", "STEERSMAN_WORKSPACE_ROOT"):
        assert f"{name}={env[name]['value']}" in image, name
    assert "/tmp" in mounts


def test_the_workers_parts_name_each_other(
    worker: dict[str, Any], objects: list[dict[str, Any]], kustomization: dict[str, Any]
) -> None:
    labels = worker["spec"]["template"]["metadata"]["labels"]
    assert worker["spec"]["selector"]["matchLabels"] == labels
    service = one(objects, "Service", worker["spec"]["serviceName"])
    assert (service["spec"]["clusterIP"], service["spec"]["selector"]) == ("None", labels)
    budget = one(objects, "PodDisruptionBudget")["spec"]
    assert budget["selector"]["matchLabels"] == labels
    assert budget["maxUnavailable"] >= 1  # a drain must come to its end
    (made,) = kustomization["configMapGenerator"]
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"][0] == {"configMapRef": {"name": made["name"]}}
    assert made["namespace"] == worker["metadata"]["namespace"] == WORKERS


def test_nothing_holds_a_secret(objects: list[dict[str, Any]], settings: dict[str, str]) -> None:
    assert [each for each in objects if each["kind"] == "Secret"] == []
    assert [name for name in settings if re.search("KEY|TOKEN|PASSWORD", name)] == []


def test_probes_run_what_the_image_has(worker: dict[str, Any]) -> None:
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    copied = (ROOT / "deploy/Dockerfile").read_text()
    ignored = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    scripts = {
        word
        for probe in ("readinessProbe", "livenessProbe")
        for word in container[probe]["exec"]["command"]
        if word.endswith(".py")
    }
    assert len(scripts) == 2
    for script in scripts:
        assert (ROOT / script).is_file()
        assert script in copied
        assert f"!{script}" in ignored
    assert container["livenessProbe"]["exec"]["command"][-1] in str(container["env"])


def reaches(objects: list[dict[str, Any]], address: str, port: int) -> bool:
    """Whether the policies let an agent's pod reach this address, which is no pod's."""
    to = ipaddress.ip_address(address)
    for policy in objects:
        if policy["kind"] != "NetworkPolicy" or policy["metadata"]["namespace"] != AGENTS:
            continue
        for rule in policy["spec"].get("egress", []):
            blocks = [each["ipBlock"] for each in rule["to"] if "ipBlock" in each]
            networks = [
                (ipaddress.ip_network(each["cidr"]), [ipaddress.ip_network(no) for no in each.get("except", [])])
                for each in blocks
            ]
            inside = any(to in network and not any(to in no for no in excepted) for network, excepted in networks)
            if inside and port in [each["port"] for each in rule["ports"]]:
                return True
    return False


@pytest.mark.parametrize(
    ("address", "port", "is_reached"),
    [
        ("203.0.113.7", 443, True),
        ("2001:db8::7", 443, True),
        ("203.0.113.7", 22, False),
        ("169.254.169.254", 443, False),
        ("fd00:ec2::254", 443, False),
        ("10.0.0.1", 443, False),
        ("172.31.0.1", 443, False),
        ("192.168.1.1", 443, False),
        ("100.100.100.200", 443, False),
        ("fe80::1", 443, False),
    ],
)
def test_agents_reach_the_internet_and_nothing_near(
    objects: list[dict[str, Any]], address: str, port: int, *, is_reached: bool
) -> None:
    assert reaches(objects, address, port) is is_reached


def test_what_no_policy_names_is_denied(objects: list[dict[str, Any]]) -> None:
    def denied(namespace: str) -> set[str]:
        return {
            kind
            for each in objects
            if each["kind"] == "NetworkPolicy" and each["metadata"]["namespace"] == namespace
            if each["spec"]["podSelector"] == {}
            for kind in each["spec"]["policyTypes"]
        }

    assert denied(AGENTS) == {"Ingress", "Egress"}
    assert denied(WORKERS) == {"Ingress"}
    assert [each for each in objects if each["kind"] == "NetworkPolicy" and "ingress" in each["spec"]] == []


def test_agents_have_limits_of_memory_and_disk(objects: list[dict[str, Any]]) -> None:
    limits = one(objects, "LimitRange")
    assert limits["metadata"]["namespace"] == AGENTS
    (of_containers,) = limits["spec"]["limits"]
    assert {"memory", "ephemeral-storage", "cpu"} <= of_containers["default"].keys()


def test_kubectl_builds_it() -> None:
    kubectl = shutil.which("kubectl")
    if not kubectl:
        pytest.skip("no kubectl here")
    built = subprocess.run([kubectl, "kustomize", str(HERE)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    objects = list(yaml.safe_load_all(built.stdout))
    config = one(objects, "ConfigMap")["metadata"]
    (container,) = one(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"][0]["configMapRef"]["name"] == config["name"] != "steersman-worker"
    assert re.fullmatch(r"[a-z.]+/steersman-worker:[\d.]+", container["image"])


@pytest.fixture
def entered(tmp_path: Path) -> Iterator[Registry]:
    """A worker, as others of its host see it."""
    owner = Ownership(cluster="c", namespace="n")
    registry = Registry.open(tmp_path, owner, "1-a@here", "steersman@here:1-a")
    yield registry
    registry.close()


def pulse(state: Path) -> tuple[int, str]:
    """Exit code and complaint of the liveness check."""
    command = [sys.executable, "-I", "-S", str(ROOT / "deploy/worker_pulse.py"), str(state)]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return asked.returncode, asked.stderr


def age(state: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(state / "workers/1-a/pulse", (then, then))


def test_a_worker_that_hangs_is_told_from_one_that_lives(tmp_path: Path, entered: Registry) -> None:
    assert pulse(tmp_path) == (0, "")
    age(tmp_path, 60)
    code, complaint = pulse(tmp_path)
    assert code == 1
    assert "worker 1-a has shown no sign of life for 6" in complaint
    entered.pulse()
    assert pulse(tmp_path) == (0, "")


def test_one_that_has_ended_or_not_begun_does_not_hang(tmp_path: Path) -> None:
    assert pulse(tmp_path) == (0, "")
    assert pulse(tmp_path / "nowhere") == (0, "")
    registry = Registry.open(tmp_path, Ownership(cluster="c", namespace="n"), "1-a@here", "steersman@here:1-a")
    age(tmp_path, 60)
    registry.close()
    assert pulse(tmp_path) == (0, "")
