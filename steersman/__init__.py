"""Steersman: coding agents as durable Temporal workflows."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("steersman")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0.0.0"
