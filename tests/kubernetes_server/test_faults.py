"""What goes wrong between a client and the server."""

import time

import pytest
import urllib3
from kubernetes.client import ApiException

from tests.kubernetes_server.kube import NAMESPACE, Kube, refused
from tests.support.kubernetes import BackgroundServer
from tests.support.kubernetes.faults import of


def test_the_next_requests_are_answered_with_errors(kube: Kube, cluster: BackgroundServer) -> None:
    cluster.server.faults.answer(429, retry_after_s=3)
    with refused(429) as raised:
        kube.pods()
    assert raised.value.headers
    assert raised.value.headers["Retry-After"] == "3"
    cluster.server.faults.answer(500, times=2)
    for _ in range(2):
        with refused(500):
            kube.pods()
    assert kube.pods() == []


def test_requests_that_match_are_met(kube: Kube, cluster: BackgroundServer) -> None:
    cluster.server.faults.answer(503, times=9, matches=of(verb="list", resource="jobs"))
    assert kube.pods() == []
    with refused(503):
        kube.batch.list_namespaced_job(NAMESPACE)
    cluster.server.faults.clear()
    kube.batch.list_namespaced_job(NAMESPACE)
    assert [each.status for each in cluster.server.requests] == [200, 503, 200]
    assert cluster.server.requests[0].path == f"/api/v1/namespaces/{NAMESPACE}/pods"


def test_answers_come_late_or_never(kube: Kube, cluster: BackgroundServer) -> None:
    cluster.server.faults.delay(0.3, times=1)
    begun = time.monotonic()
    kube.pods()
    assert time.monotonic() - begun >= 0.3
    cluster.server.faults.swallow()
    with pytest.raises((ApiException, urllib3.exceptions.HTTPError)):
        kube.core.list_namespaced_pod(NAMESPACE, _request_timeout=0.3)
    assert kube.pods() == []


def test_a_connection_is_cut_instead_of_an_answer(kube: Kube, cluster: BackgroundServer) -> None:
    cluster.server.faults.hang_up(times=9)
    with pytest.raises((ApiException, urllib3.exceptions.HTTPError)):
        kube.pods()
    cluster.server.faults.clear()
    assert kube.pods() == []


def test_the_server_is_away_for_a_while(kube: Kube, cluster: BackgroundServer) -> None:
    kube.pods()
    cluster.call(cluster.server.unreachable)
    with pytest.raises((ApiException, urllib3.exceptions.HTTPError)):
        kube.pods()
    cluster.call(cluster.server.reachable)
    assert kube.pods() == []


def test_the_server_is_silent_for_a_while(kube: Kube, cluster: BackgroundServer) -> None:
    kube.pods()
    cluster.call(cluster.server.listener.silence)
    other = Kube(kube.path)
    for each in (kube, other):
        with pytest.raises((ApiException, urllib3.exceptions.HTTPError)):
            each.core.list_namespaced_pod(NAMESPACE, _request_timeout=0.3)
    cluster.call(cluster.server.listener.speak)
    assert kube.pods() == other.pods() == []
    other.close()
