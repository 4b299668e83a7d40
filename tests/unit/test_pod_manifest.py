"""The Job of a copy: hardened whatever a request says, and what a request may say."""

from typing import Any

import pytest
from pydantic import ValidationError

from activities.runtimes.kubernetes.manifest import COPY, OWNER, RUN, SPEC, job, job_name, pod_digest, pool
from steersman.contracts.kubernetes import KubernetesRuntime

COPY_ID, OWNER_ID = "c" * 32, "o" * 32


def runtime(**fields: Any) -> KubernetesRuntime:
    return KubernetesRuntime.model_validate({"kind": "kubernetes", "image": "example.com/agent:1", **fields})


def made(**fields: Any) -> dict[str, Any]:
    return job(runtime(**fields), COPY_ID, OWNER_ID, "run-1")


def spec_of(**fields: Any) -> dict[str, Any]:
    spec: dict[str, Any] = made(**fields)["spec"]["template"]["spec"]
    return spec


def test_it_says_whose_it_is_and_of_what_it_was_made() -> None:
    metadata = made()["metadata"]
    assert metadata["name"] == job_name(COPY_ID)
    assert (metadata["labels"][COPY], metadata["labels"][OWNER]) == (COPY_ID, OWNER_ID)
    assert metadata["annotations"][RUN] == "run-1"
    pod = made()["spec"]["template"]["metadata"]
    assert (pod["labels"][COPY], pod["labels"][OWNER]) == (COPY_ID, OWNER_ID)
    assert made() == made()
    others = (made(grace_s=31), made(image="example.com/agent:2"), made(env_from_secrets=["s"]))
    digests = {each["metadata"]["annotations"][SPEC] for each in (made(), *others)}
    assert len(digests) == 4


def test_a_queue_holds_it_and_changes_nothing_of_what_it_is_made_of() -> None:
    held = made(queue="agents")
    assert held["spec"]["suspend"] is True
    assert held["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "agents"
    assert held["metadata"]["annotations"][SPEC] == made()["metadata"]["annotations"][SPEC]
    assert "suspend" not in made()["spec"]


def test_it_is_hardened() -> None:
    spec = spec_of()
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["restartPolicy"] == "OnFailure"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {each["mountPath"] for each in container["volumeMounts"]} == {"/home/agent", "/tmp"}
    assert [sorted(each) for each in spec["volumes"]] == [["emptyDir", "name"]] * 2


def test_the_pods_of_a_pool_are_what_the_request_would_have_made() -> None:
    asked = runtime(pool="warm", grace_s=7, node_selector={"disk": "fast"}, namespace="agents")
    deployment = pool(asked, 3)
    assert (deployment["metadata"]["namespace"], deployment["spec"]["replicas"]) == ("agents", 3)
    template = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert not {COPY, OWNER} & template["metadata"]["labels"].keys()
    wanted = job(asked, COPY_ID, OWNER_ID, "run-1")["spec"]["template"]["spec"]
    assert template["spec"] == {**wanted, "restartPolicy": "Always"}
    assert template["metadata"]["annotations"][SPEC] == pod_digest(asked)
    others = (runtime(pool="warm", grace_s=7), runtime(pool="warm", grace_s=7, env_from_secrets=["keys"]))
    assert pod_digest(asked) not in {pod_digest(each) for each in others}


def test_what_a_request_names_is_where_kubernetes_looks_for_it() -> None:
    spec = spec_of(
        service_account="a",
        node_selector={"disk": "fast"},
        tolerations=[{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
        runtime_class="gvisor",
        priority_class="low",
        image_pull_secrets=["p"],
        env_from_secrets=["s"],
        workspace_volume="claim",
        resources={"requests": {"cpu": "500m"}, "limits": {"memory": "4Gi", "nvidia.com/gpu": "1"}},
        python="/opt/python",
        grace_s=60,
    )
    (container,) = spec["containers"]
    assert (spec["serviceAccountName"], spec["runtimeClassName"], spec["priorityClassName"]) == ("a", "gvisor", "low")
    assert spec["nodeSelector"] == {"disk": "fast"}
    assert spec["tolerations"] == [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}]
    assert spec["imagePullSecrets"] == [{"name": "p"}]
    assert spec["terminationGracePeriodSeconds"] == 60
    assert spec["volumes"][0] == {"name": "home", "persistentVolumeClaim": {"claimName": "claim"}}
    assert container["envFrom"] == [{"secretRef": {"name": "s"}}]
    assert container["resources"] == {
        "requests": {"cpu": "500m"},
        "limits": {"memory": "4Gi", "nvidia.com/gpu": "1"},
    }
    assert (container["command"][0], container["args"][0]) == ("/opt/python", "60")


def test_a_template_is_merged_into_what_stays() -> None:
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {
            "affinity": {"nodeAffinity": {}},
            "securityContext": {"runAsUser": 2000, "fsGroup": 2000},
            "containers": [{"name": "agent", "securityContext": {"runAsUser": 3000}}],
        },
    }
    pod = made(pod_template=template)["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert (pod["metadata"]["labels"]["team"], pod["metadata"]["annotations"]["note"]) == ("a", "b")
    assert pod["metadata"]["labels"][COPY] == COPY_ID
    assert pod["spec"]["affinity"] == {"nodeAffinity": {}}
    assert (pod["spec"]["securityContext"]["runAsUser"], pod["spec"]["securityContext"]["runAsGroup"]) == (2000, 1000)
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["runAsUser"] == 3000
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert (container["name"], container["image"]) == ("agent", "example.com/agent:1")


def agent(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "agent", **fields}]}}


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ({"kind": "Pod"}, "pod_template.kind"),
        ({"spec": {"hostNetwork": True}}, "spec.hostNetwork"),
        ({"spec": {"hostPID": True}}, "spec.hostPID"),
        ({"spec": {"hostIPC": True}}, "spec.hostIPC"),
        ({"spec": {"hostUsers": True}}, "spec.hostUsers"),
        ({"spec": {"shareProcessNamespace": True}}, "spec.shareProcessNamespace"),
        ({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}, "spec.volumes"),
        ({"spec": {"initContainers": [{"name": "i"}]}}, "spec.initContainers"),
        ({"spec": {"ephemeralContainers": []}}, "spec.ephemeralContainers"),
        ({"spec": {"serviceAccountName": "admin"}}, "spec.serviceAccountName"),
        ({"spec": {"serviceAccount": "admin"}}, "spec.serviceAccount"),
        ({"spec": {"automountServiceAccountToken": True}}, "automountServiceAccountToken: must stay false"),
        ({"spec": {"enableServiceLinks": True}}, "enableServiceLinks: must stay false"),
        ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy"),
        ({"spec": {"nodeName": "n"}}, "spec.nodeName"),
        ({"spec": {"runtimeClassName": "r"}}, "spec.runtimeClassName"),
        ({"spec": {"securityContext": {"runAsUser": 0}}}, "runAsUser: must not be root"),
        ({"spec": {"securityContext": {"runAsUser": False}}}, "runAsUser: must not be root"),
        ({"spec": {"securityContext": {"runAsUser": "1000"}}}, "runAsUser: must not be root"),
        ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "runAsNonRoot: must stay true"),
        ({"spec": {"securityContext": {"supplementalGroups": [0]}}}, "supplementalGroups"),
        ({"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}, "seccompProfile"),
        ({"spec": {"securityContext": {"sysctls": []}}}, "sysctls"),
        ({"spec": {"securityContext": None}}, "securityContext: must be an object"),
        ({"spec": None}, "spec: must be an object"),
        ({"spec": {"containers": {}}}, "containers: must be a list"),
        ({"spec": {"containers": [{"name": "agent"}, {"name": "spy"}]}}, "only agent may be changed"),
        ({"spec": {"containers": [{}]}}, "only agent may be changed"),
        (agent(image="other"), "image"),
        (agent(command=["sh"]), "command"),
        (agent(args=[]), "args"),
        (agent(envFrom=[]), "envFrom"),
        (agent(lifecycle={}), "lifecycle"),
        (agent(ports=[]), "ports"),
        (agent(volumeMounts=[]), "volumeMounts"),
        (agent(volumeDevices=[]), "volumeDevices"),
        (agent(securityContext={"privileged": True}), "privileged"),
        (agent(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "capabilities"),
        (agent(securityContext={"allowPrivilegeEscalation": True}), "allowPrivilegeEscalation: must stay false"),
        (agent(securityContext={"readOnlyRootFilesystem": False}), "readOnlyRootFilesystem: must stay true"),
        (agent(securityContext={"readOnlyRootFilesystem": None}), "readOnlyRootFilesystem: must stay true"),
        (agent(securityContext={"procMount": "Unmasked"}), "procMount"),
        ({"metadata": {"labels": {COPY: "x"}}}, "is not a request's to set"),
        ({"metadata": {"labels": {"app.kubernetes.io/name": "x"}}}, "is not a request's to set"),
        ({"metadata": {"annotations": {OWNER: "x"}}}, "is not a request's to set"),
        ({"metadata": {"labels": {"a": 1}}}, "must be a string"),
        ({"metadata": {"name": "x"}}, "metadata.name"),
        ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences"),
        ({"metadata": {"finalizers": ["x"]}}, "metadata.finalizers"),
    ],
)
def test_a_template_that_would_soften_it_is_refused_by_name(template: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError) as refused:
        runtime(pod_template=template)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image", "--privileged"),
        ("image", "a b"),
        ("image", ""),
        ("namespace", "../kube-system"),
        ("namespace", "A"),
        ("context", "-x"),
        ("service_account", "a/b"),
        ("env_from_secrets", ["../x"]),
        ("workspace_volume", "a/b"),
        ("queue", "a b"),
        ("pool", "A"),
        ("pool", "a" * 41),
        ("node_selector", {"a b": "c"}),
        ("resources", {"limits": {"memory": "much"}}),
        ("resources", {"limits": {"memory": "-1"}}),
        ("grace_s", 0),
        ("start_s", 0),
        ("python", "sh -c"),
        ("python", "-c"),
        ("unknown", 1),
    ],
)
def test_a_field_that_no_cluster_would_take_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        runtime(**{field: value})


@pytest.mark.parametrize("fields", [{"workspace_volume": "work"}, {"queue": "agents"}])
def test_a_pool_goes_with_nothing_that_its_pods_cannot_have(fields: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="pool"):
        runtime(pool="warm", **fields)
