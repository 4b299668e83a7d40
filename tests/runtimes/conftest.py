"""A cluster of a test's own, and what the workers of one host have in it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.runtimes.pod_site import PodSite
from tests.support.kubernetes import BackgroundServer
from tests.support.kubernetes.fixtures import cluster, settings
from tests.support.processes import kill_marked

__all__ = ["cluster", "settings"]


@pytest.fixture
async def site(cluster: BackgroundServer, tmp_path: Path) -> AsyncIterator[PodSite]:
    site = PodSite(cluster, tmp_path)
    yield site
    await site.aclose()
    kill_marked(site.mark)
