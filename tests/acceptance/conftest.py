"""Machines for acceptance tests: one that all share and nobody harms, and as many as a test wants for itself."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from steersman.client import Steersman
from tests.acceptance.own_cluster import OwnCluster, settings
from tests.acceptance.site import Site
from tests.scripted_model import ScriptedModel
from tests.support.kubernetes import background_server, missing
from tests.support.temporal import Namespace, new_namespace


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/acceptance/" in item.nodeid:
            item.add_marker(pytest.mark.acceptance)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, dev_server: str) -> Iterator[Site]:
    """A machine with one worker at work, for tests that leave both alone."""
    site = Site(tmp_path_factory.mktemp("shared"), asyncio.run(new_namespace(dev_server)))
    try:
        asyncio.run(site.worker().ready())
        yield site
    finally:
        site.end()


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, dev_server: str) -> Iterator[Site]:
    """A machine and a namespace of the test's own, without a worker as yet."""
    yield from _made(request, tmp_path_factory, asyncio.run(new_namespace(dev_server)))


@pytest.fixture
def site_with_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The same with a server of its own, which the test may stop. Its parameter, if any: the server's settings."""
    yield from _made(request, tmp_path_factory, None)


def _made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, namespace: Namespace | None
) -> Iterator[Site]:
    # Half of what a worker's start costs is what Claude Code takes, which no run of a test without a model is of.
    flags = () if "model" in request.fixturenames else ("--agent", "process")
    made = Site(tmp_path_factory.mktemp("site"), namespace, getattr(request, "param", ()), flags)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
async def steersman(shared: Site) -> Steersman:
    """A client of the shared machine."""
    return await shared.steersman()


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    """A scripted model; the test fails if a script ran out."""
    async with ScriptedModel() as serving:
        yield serving


@pytest.fixture
def mark() -> str:
    """What tells the processes of this test from all others."""
    return f"mark-{secrets.token_hex(8)}"


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory, dev_server: str) -> Iterator[OwnCluster]:
    """A machine with one worker at work, whose runs are in pods of a cluster of the module's own: one after another."""
    if reason := missing():
        pytest.skip(reason)
    site = Site(tmp_path_factory.mktemp("pods"), asyncio.run(new_namespace(dev_server)))
    (site.root / "cluster").mkdir()
    with background_server(site.root / "cluster", settings()) as cluster:
        try:
            found = OwnCluster(site, cluster)
            asyncio.run(found.worker())
            yield found
        finally:
            site.end()  # before its cluster
