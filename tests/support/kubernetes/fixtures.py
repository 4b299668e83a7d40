"""A cluster of a test's own, which behaves as the test's `settings` say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kubernetes.background import BackgroundServer, background_server
from tests.support.kubernetes.containers import missing
from tests.support.kubernetes.settings import Settings


@pytest.fixture
def settings() -> Settings:
    return Settings()


@pytest.fixture
def cluster(tmp_path: Path, settings: Settings) -> Iterator[BackgroundServer]:
    if reason := missing():
        pytest.skip(reason)
    directory = tmp_path / "cluster"
    directory.mkdir()
    with background_server(directory, settings) as running:
        yield running
