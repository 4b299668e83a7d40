"""From a command to the client: the connection options, and one event loop for the command's work."""

import gc
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from steersman.cli.exits import Exit

GC_THRESHOLD = 50_000
"""Python looks for garbage after this many allocations, once all is loaded."""

if TYPE_CHECKING:
    from steersman.client import Steersman

    Work = Callable[[Steersman], Awaitable[Exit | None]]


@dataclass(frozen=True)
class ConnectionOptions:
    """The global options."""

    profile: str | None = None
    address: str | None = None
    namespace: str | None = None

    def environment(self) -> dict[str, str]:
        """The same options for a child process, as Temporal's environment variables."""
        chosen = {
            "TEMPORAL_PROFILE": self.profile,
            "TEMPORAL_ADDRESS": self.address,
            "TEMPORAL_NAMESPACE": self.namespace,
        }
        return {name: value for name, value in chosen.items() if value is not None}


def connection_options(ctx: typer.Context) -> ConnectionOptions:
    """The global options of this invocation."""
    options = ctx.find_root().obj
    return options if isinstance(options, ConnectionOptions) else ConnectionOptions()


def run_with_client(ctx: typer.Context, work: "Work") -> None:
    """Connect, do the work, exit with its code."""
    import asyncio

    with _no_pydantic_plugins():
        from steersman.client import Steersman

    gc.freeze()  # what was loaded stays: no look for garbage goes through it
    gc.set_threshold(GC_THRESHOLD)
    options = connection_options(ctx)

    async def connected() -> Exit | None:
        silence_sdk_logs()
        return await work(await Steersman.connect(options.profile, options.address, options.namespace))

    try:
        code = asyncio.run(connected())
    except KeyboardInterrupt:
        code = Exit.DETACHED
    raise typer.Exit(code or Exit.OK)


@contextmanager
def _no_pydantic_plugins() -> Iterator[None]:
    """Keep pydantic from reading the metadata of every installed distribution for plugins, which takes 20 ms.

    The variable is removed again, because child processes inherit it, and a worker may have plugins.
    """
    variable = "PYDANTIC_DISABLE_PLUGINS"
    if variable in os.environ:
        yield
        return
    os.environ[variable] = "__all__"
    try:
        yield
    finally:
        del os.environ[variable]


def silence_sdk_logs() -> None:
    """Keep the Temporal SDK from logging each retry to stderr: `steer` itself says what came of a call."""
    from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

    off = LoggingConfig(filter=TelemetryFilter(core_level="OFF", other_level="OFF"))
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=off)), error_if_already_set=False)
