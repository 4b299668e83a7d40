"""Steersman: coding agents as durable Temporal workflows.

    from steersman import RunCancelled, RunError, Steersman

All of it is loaded on demand: the command line needs little of it, and Temporal's client takes a while.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steersman.attachments import attachment
    from steersman.client import Steersman
    from steersman.contracts.errors import InvalidRequest, RunError
    from steersman.errors import RunCancelled, SteersmanError

    __version__: str

__all__ = [
    "InvalidRequest",
    "RunCancelled",
    "RunError",
    "Steersman",
    "SteersmanError",
    "__version__",
    "attachment",
]

_HOMES = {
    "InvalidRequest": "steersman.contracts.errors",
    "RunCancelled": "steersman.errors",
    "RunError": "steersman.contracts.errors",
    "Steersman": "steersman.client",
    "SteersmanError": "steersman.errors",
    "attachment": "steersman.attachments",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module  # noqa: PLC0415 - on demand

        return getattr(import_module(_HOMES[name]), name)
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # importlib.metadata would take a good part of the command line's start.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - on demand

    try:
        return version("steersman")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0.0.0"
