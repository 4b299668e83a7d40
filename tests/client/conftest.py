"""A dev server for all tests of the directory, and a fake host on it."""

from tests.client.fixtures import client, client_namespace, fake_host, loop_host, steersman, workspace

__all__ = ["client", "client_namespace", "fake_host", "loop_host", "steersman", "workspace"]
