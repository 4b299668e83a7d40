"""A dev server for all tests of a directory, and a machine at work on it."""

from tests.client.fixtures import client, client_namespace, loop_stand_in, stand_in, steersman, workspace

__all__ = ["client", "client_namespace", "loop_stand_in", "stand_in", "steersman", "workspace"]
