"""A cluster for each test, and clients of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes_server.kube import Kube
from tests.support.kubernetes import BackgroundServer, missing
from tests.support.kubernetes.fixtures import cluster, settings

__all__ = ["cluster", "settings"]

MISSING = missing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for each in items:
        if MISSING and Path(__file__).parent in each.path.parents:
            each.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture
def kube(cluster: BackgroundServer, tmp_path: Path) -> Iterator[Kube]:
    client = Kube(cluster.server.kubeconfig(tmp_path / "config"))
    yield client
    client.close()
