"""A dev server for all tests of the directory, and a fake host on it."""

from tests.client.fixtures import client, fake_host, loop_host, steersman, workspace

__all__ = ["client", "fake_host", "loop_host", "steersman", "workspace"]
