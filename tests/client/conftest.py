"""A dev server for all tests of a directory, and a machine at work on it."""

from tests.client.fixtures import client, server, stand_in, steersman, workspace

__all__ = ["client", "server", "stand_in", "steersman", "workspace"]
