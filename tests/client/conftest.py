"""A dev server for all tests of a directory, and a machine at work on it."""

from tests.client.fixtures import client, loop_stand_in, stand_in, steersman, workspace

__all__ = ["client", "loop_stand_in", "stand_in", "steersman", "workspace"]
