"""A cluster of a test's own, and what the workers of one host have in it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.runtimes.pod_site import PodSite
from tests.support.kubernetes import BackgroundServer, Settings, background_server, missing
from tests.support.processes import kill_marked


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BackgroundServer]:
    if reason := missing():
        pytest.skip(reason)
    directory = tmp_path / "cluster"
    directory.mkdir()
    with background_server(directory, Settings()) as running:
        yield running


@pytest.fixture
async def site(cluster: BackgroundServer, tmp_path: Path) -> AsyncIterator[PodSite]:
    site = PodSite(cluster, tmp_path)
    yield site
    await site.aclose()
    kill_marked(site.mark)
