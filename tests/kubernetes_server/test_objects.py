"""Objects: what is filled in, what is refused, and in which words."""

import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from tests.kubernetes_server.kube import NAMESPACE, Kube, pod_spec, refused, said
from tests.support.kubernetes import BackgroundServer, background_server
from tests.support.processes import until


def secret(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "data": {"key": "dmFsdWU="}}


def test_an_object_has_what_the_server_gives_it(kube: Kube) -> None:
    first = kube.core.create_namespaced_secret(NAMESPACE, secret("a")).metadata
    second = kube.core.create_namespaced_secret(NAMESPACE, {"metadata": {"generateName": "a-"}}).metadata
    assert len(first.uid) == 36
    assert first.uid != second.uid
    assert first.creation_timestamp
    assert int(second.resource_version) > int(first.resource_version)
    assert second.name.startswith("a-")
    assert len(second.name) == 7
    found = kube.core.read_namespaced_secret("a", NAMESPACE)
    assert (found.kind, found.api_version, found.type, found.data) == ("Secret", "v1", "Opaque", {"key": "dmFsdWU="})


def test_what_is_not_there_is_not_found(kube: Kube) -> None:
    with refused(404) as raised:
        kube.batch.read_namespaced_job("x", NAMESPACE)
    assert said(raised) == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'jobs.batch "x" not found',
        "reason": "NotFound",
        "details": {"name": "x", "group": "batch", "kind": "jobs"},
        "code": 404,
    }
    with refused(404) as raised:
        kube.core.create_namespaced_secret("nowhere", secret("a"))
    assert said(raised)["message"] == 'namespaces "nowhere" not found'


def test_a_name_is_given_once(kube: Kube) -> None:
    kube.core.create_namespaced_secret(NAMESPACE, secret("a"))
    with refused(409) as raised:
        kube.core.create_namespaced_secret(NAMESPACE, secret("a"))
    assert (said(raised)["reason"], said(raised)["message"]) == ("AlreadyExists", 'secrets "a" already exists')


@pytest.mark.parametrize(
    ("metadata", "field", "why"),
    [
        ({"name": "Not_A_Name"}, "metadata.name", "a lowercase RFC 1123 subdomain must consist of"),
        ({"name": ""}, "metadata.name", "name or generateName is required"),
        ({"name": "a", "labels": {"k": "no spaces"}}, "metadata.labels", "a valid label must be an empty string"),
        ({"name": "a", "labels": {"k": "x" * 64}}, "metadata.labels", "must be no more than 63 characters"),
        ({"name": "a", "annotations": {"k": "x" * 300_000}}, "metadata.annotations", "must have at most 262144 bytes"),
    ],
)
def test_what_is_invalid_is_named(kube: Kube, metadata: dict[str, Any], field: str, why: str) -> None:
    with refused(422) as raised:
        kube.core.create_namespaced_secret(NAMESPACE, {"metadata": metadata})
    status = said(raised)
    assert (status["reason"], status["details"]["kind"]) == ("Invalid", "Secret")
    (cause,) = status["details"]["causes"]
    assert cause["field"] == field
    assert why in cause["message"]
    assert status["message"] == f'Secret "{metadata["name"]}" is invalid: {field}: {cause["message"]}'


def test_a_job_may_not_always_restart(kube: Kube) -> None:
    with refused(422) as raised:
        kube.job(pod={"restartPolicy": "Always"})
    assert said(raised)["message"] == (
        'Job.batch "j" is invalid: spec.template.spec.restartPolicy: '
        'Unsupported value: "Always": supported values: "OnFailure", "Never"'
    )
    with refused(422) as raised:
        kube.job(pod={"container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}})
    assert said(raised)["details"]["causes"][0]["reason"] == "FieldValueNotFound"


def test_a_body_may_be_too_large(kube: Kube) -> None:
    with refused(413):
        kube.core.create_namespaced_secret(NAMESPACE, {"metadata": {"name": "a"}, "data": {"k": "A" * (4 << 20)}})


def test_selectors_choose(kube: Kube) -> None:
    for name, labels in (("a", {"app": "x", "tier": "1"}), ("b", {"app": "y"}), ("c", {"tier": "2"})):
        kube.core.create_namespaced_secret(NAMESPACE, secret(name, labels=labels))

    def names(**selectors: str) -> str:
        return "".join(each.metadata.name for each in kube.core.list_namespaced_secret(NAMESPACE, **selectors).items)

    assert names(label_selector="app=x") == "a"
    assert names(label_selector="app!=x") == "bc"
    assert names(label_selector="app in (x, y),tier") == "a"
    assert names(label_selector="app notin (x)") == "bc"
    assert names(label_selector="!app") == "c"
    assert names(label_selector="app") == "ab"
    assert names(field_selector="metadata.name=b") == "b"
    assert names(field_selector="metadata.name!=b") == "ac"
    assert len(kube.core.list_secret_for_all_namespaces().items) == 3


def test_a_patch_with_a_version_is_refused_where_another_was_faster(kube: Kube) -> None:
    before = kube.pod(labels={"a": "1", "b": "2"}).metadata.resource_version
    changed = kube.core.patch_namespaced_pod("p", NAMESPACE, {"metadata": {"labels": {"a": None, "c": "3"}}})
    assert changed.metadata.labels == {"b": "2", "c": "3"}
    late = {"metadata": {"resourceVersion": before, "labels": {"d": "4"}}}
    with refused(409) as raised:
        kube.core.patch_namespaced_pod("p", NAMESPACE, late)
    assert said(raised)["message"] == (
        'Operation cannot be fulfilled on pods "p": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    patch = [{"op": "test", "path": "/metadata/labels/b", "value": "2"}, {"op": "remove", "path": "/metadata/labels/b"}]
    assert kube.core.patch_namespaced_pod("p", NAMESPACE, patch).metadata.labels == {"c": "3"}


def test_most_of_a_pod_cannot_be_changed(kube: Kube) -> None:
    kube.pod()
    with refused(422) as raised:
        kube.core.patch_namespaced_pod("p", NAMESPACE, {"spec": {"restartPolicy": "Always"}})
    assert "pod updates may not change fields other than" in said(raised)["message"]


async def test_an_object_with_finalizers_waits_for_them(kube: Kube) -> None:
    kube.core.create_namespaced_secret(NAMESPACE, secret("a", finalizers=["tests/keep"]))
    kube.core.delete_namespaced_secret("a", NAMESPACE)
    assert kube.core.read_namespaced_secret("a", NAMESPACE).metadata.deletion_timestamp
    kube.core.patch_namespaced_secret("a", NAMESPACE, {"metadata": {"finalizers": None}})
    with refused(404):
        kube.core.read_namespaced_secret("a", NAMESPACE)


@pytest.mark.exhaustive
async def test_a_namespace_goes_with_all_that_is_in_it(kube: Kube) -> None:
    kube.core.create_namespace({"metadata": {"name": "n"}})
    kube.core.create_namespaced_secret("n", secret("a", finalizers=["tests/keep"]))
    kube.core.create_namespaced_pod("n", {"metadata": {"name": "p"}, "spec": pod_spec(("sleep", "60"))})
    kube.core.delete_namespace("n")
    with refused(403):
        kube.core.create_namespaced_secret("n", secret("b"))
    kube.core.patch_namespaced_secret("a", "n", {"metadata": {"finalizers": None}})
    await until(lambda: "n" not in [each.metadata.name for each in kube.core.list_namespace().items], 40)
    assert not kube.core.list_secret_for_all_namespaces().items


def test_everything_that_ever_was_can_be_looked_at(kube: Kube, cluster: BackgroundServer) -> None:
    kube.core.create_namespaced_secret(NAMESPACE, {"metadata": {"name": "a"}, "stringData": {"k": "x"}})
    kube.core.delete_namespaced_secret("a", NAMESPACE)
    states = [json.loads(each) for each in cluster.server.store.ever().splitlines()]
    assert [each["data"] for each in states if each["kind"] == "Secret"] == [{"k": "eA=="}] * 2


def test_the_server_says_what_it_is(kube: Kube) -> None:
    assert client.VersionApi(kube.api).get_code().git_version == "v1.35.0"
    assert client.CoreApi(kube.api).get_api_versions().versions == ["v1"]
    assert {each.name for each in client.ApisApi(kube.api).get_api_versions().groups} >= {"apps", "batch"}
    names = {each.name for each in client.BatchV1Api(kube.api).get_api_resources().resources}
    assert names == {"jobs"}


def test_it_speaks_tls_too(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    with background_server(directory, tls=True) as running:
        kube = Kube(running.server.kubeconfig(tmp_path / "config"))
        assert kube.pods() == []
        kube.close()
