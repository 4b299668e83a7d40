"""Watches: what they are told, from where, and how they end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from kubernetes.client import ApiException

from tests.kubernetes_server.kube import NAMESPACE, Kube, watched
from tests.support.kubernetes import BackgroundServer
from tests.support.kubernetes.faults import of
from tests.support.processes import until


class Watching:
    """One raw watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def event(self) -> dict[str, Any] | None:
        """The next one; None at the end of the stream."""
        async with asyncio.timeout(10):
            line = await self._response.content.readline()
        found: dict[str, Any] | None = json.loads(line) if line else None
        return found

    async def told(self) -> tuple[str, str]:
        found = await self.event()
        assert found
        return found["type"], found["object"]["metadata"]["name"]


@asynccontextmanager
async def watching(cluster: BackgroundServer, kind: str = "secrets", **query: str) -> AsyncIterator[Watching]:
    headers = {"Authorization": f"Bearer {cluster.server.access.admin}"}
    url = f"{cluster.server.url}/api/v1/namespaces/{NAMESPACE}/{kind}"
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(url, params={"watch": "1", **query}) as response,
    ):
        assert response.status == 200
        yield Watching(response)


def add(kube: Kube, name: str, **labels: str) -> None:
    kube.core.create_namespaced_secret(NAMESPACE, {"metadata": {"name": name, "labels": labels}})


async def test_a_watch_goes_on_from_a_version(kube: Kube, cluster: BackgroundServer) -> None:
    add(kube, "before")
    version = kube.core.list_namespaced_secret(NAMESPACE).metadata.resource_version
    add(kube, "a")
    async with watching(cluster, resourceVersion=version) as stream:
        assert await stream.told() == ("ADDED", "a")
        kube.core.patch_namespaced_secret("a", NAMESPACE, {"metadata": {"labels": {"x": "y"}}})
        assert await stream.told() == ("MODIFIED", "a")
        kube.core.delete_namespaced_secret("a", NAMESPACE)
        deleted = await stream.event()
        assert deleted
        assert deleted["type"] == "DELETED"
        assert int(deleted["object"]["metadata"]["resourceVersion"]) > int(version) + 2


async def test_without_a_version_what_is_there_comes_first(kube: Kube, cluster: BackgroundServer) -> None:
    add(kube, "a")
    async with watching(cluster) as stream:
        assert await stream.told() == ("ADDED", "a")


async def test_what_does_not_match_any_more_is_gone_for_the_watch(kube: Kube, cluster: BackgroundServer) -> None:
    add(kube, "a", app="x")
    add(kube, "b")
    async with watching(cluster, labelSelector="app=x") as stream:
        assert await stream.told() == ("ADDED", "a")
        kube.core.patch_namespaced_secret("a", NAMESPACE, {"metadata": {"labels": {"app": "y"}}})
        assert await stream.told() == ("DELETED", "a")
        kube.core.patch_namespaced_secret("b", NAMESPACE, {"metadata": {"labels": {"app": "x"}}})
        assert await stream.told() == ("ADDED", "b")


async def test_a_watch_ends_after_its_time(kube: Kube, cluster: BackgroundServer) -> None:
    async with watching(cluster, timeoutSeconds="1") as stream:
        assert await stream.event() is None


async def test_a_version_may_be_too_old(kube: Kube, cluster: BackgroundServer) -> None:
    add(kube, "a")
    add(kube, "b")
    cluster.call(cluster.server.store.forget)
    with pytest.raises(ApiException) as raised:
        next(watched(kube.core.list_namespaced_secret, resource_version="2", timeout_seconds=5))
    assert raised.value.status == 410


async def test_a_watch_may_be_told_that_it_is_too_old(kube: Kube, cluster: BackgroundServer) -> None:
    async with watching(cluster) as stream:
        await until(lambda: cluster.server.watches.count)
        cluster.call(lambda: cluster.server.watches.end(expired=True))
        error = await stream.event()
        assert error
        assert (error["type"], error["object"]["reason"], error["object"]["code"]) == ("ERROR", "Expired", 410)
        assert await stream.event() is None


async def test_a_watch_may_be_refused_or_ended(kube: Kube, cluster: BackgroundServer) -> None:
    cluster.server.faults.answer(410, matches=of(verb="watch"))
    with pytest.raises(ApiException) as raised:
        next(watched(kube.core.list_namespaced_secret, timeout_seconds=5))
    assert raised.value.status == 410
    async with watching(cluster) as stream:
        await until(lambda: cluster.server.watches.count)
        cluster.call(cluster.server.watches.end)
        assert await stream.event() is None


async def test_the_official_client_follows_a_pod(kube: Kube) -> None:
    kube.pod(command=("true",))
    phases = []
    for event in watched(kube.core.list_namespaced_pod, timeout_seconds=10):
        phases.append(event["object"].status.phase)
        if phases[-1] == "Succeeded":
            break
    assert list(dict.fromkeys(phases)) in (["Pending", "Running", "Succeeded"], ["Running", "Succeeded"], ["Succeeded"])
