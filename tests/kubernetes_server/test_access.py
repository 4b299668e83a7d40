"""Who may do what, and how that is said."""

from pathlib import Path

import pytest

from tests.kubernetes_server.kube import NAMESPACE, Kube, no_websocket, refused, said
from tests.support.kubernetes import OLD, BackgroundServer, Rule, Settings

USER = "system:serviceaccount:default:worker"


def restricted(cluster: BackgroundServer, path: Path, *rules: Rule) -> Kube:
    return Kube(cluster.server.kubeconfig(path, cluster.server.access.grant(USER, *rules)))


def test_nobody_is_let_in_without_a_token(cluster: BackgroundServer, tmp_path: Path) -> None:
    kube = Kube(cluster.server.kubeconfig(tmp_path / "config", "wrong"))
    with refused(401) as raised:
        kube.pods()
    assert (said(raised)["reason"], said(raised)["message"]) == ("Unauthorized", "Unauthorized")
    kube.close()


def test_what_no_rule_allows_is_forbidden(cluster: BackgroundServer, tmp_path: Path) -> None:
    kube = restricted(cluster, tmp_path / "config", Rule("list", "pods", namespace=NAMESPACE))
    assert kube.pods() == []
    with refused(403) as raised:
        kube.core.list_namespaced_pod("other")
    assert said(raised)["message"] == (
        f'pods is forbidden: User "{USER}" cannot list resource "pods" in API group "" in the namespace "other"'
    )
    with refused(403) as raised:
        kube.batch.delete_namespaced_job("j", NAMESPACE)
    assert said(raised)["message"] == (
        f'jobs.batch "j" is forbidden: User "{USER}" cannot delete resource "jobs" in API group "batch" '
        'in the namespace "default"'
    )
    assert said(raised)["details"] == {"name": "j", "group": "batch", "kind": "jobs"}
    with refused(403) as raised:
        kube.core.list_node()
    assert said(raised)["message"].endswith('cannot list resource "nodes" in API group "" at the cluster scope')
    kube.close()


def test_a_subresource_is_a_right_of_its_own(cluster: BackgroundServer, tmp_path: Path) -> None:
    kube = restricted(cluster, tmp_path / "config", Rule("get", "pods"), Rule("get", "pods/exec"))
    with refused(403) as raised:
        kube.core.read_namespaced_pod_log("p", NAMESPACE)
    assert 'cannot get resource "pods/log" in API group ""' in said(raised)["message"]
    with no_websocket(403, "cannot create resource .*pods/exec"):
        kube.exec("p", "true")
    kube.close()


@pytest.mark.parametrize("settings", [Settings(release=OLD)])
def test_an_old_cluster_asks_for_get_alone(cluster: BackgroundServer, tmp_path: Path) -> None:
    kube = restricted(cluster, tmp_path / "config", Rule("get", "pods/exec"))
    with no_websocket(404, "not found"):
        kube.exec("p", "true")
    kube.close()


def test_a_review_answers_from_the_same_rules(cluster: BackgroundServer, tmp_path: Path) -> None:
    kube = restricted(cluster, tmp_path / "config", Rule("create", "pods/exec", namespace=NAMESPACE))

    def may(verb: str, resource: str, subresource: str, namespace: str) -> bool:
        asked = {"verb": verb, "resource": resource, "subresource": subresource, "namespace": namespace}
        answer = kube.rights.create_self_subject_access_review({"spec": {"resourceAttributes": asked}})
        return bool(answer.status.allowed)

    assert may("create", "pods", "exec", NAMESPACE)
    assert not may("get", "pods", "exec", NAMESPACE)
    assert not may("create", "pods", "", NAMESPACE)
    assert not may("create", "pods", "exec", "other")
    kube.close()


def test_rights_can_change_while_they_are_used(cluster: BackgroundServer, tmp_path: Path) -> None:
    token = cluster.server.access.grant(USER)
    kube = Kube(cluster.server.kubeconfig(tmp_path / "config", token))
    with refused(403):
        kube.pods()
    cluster.server.access.change(token, Rule("*", "*", "*"))
    assert kube.pods() == []
    cluster.server.access.revoke(token)
    with refused(401):
        kube.pods()
    kube.close()
