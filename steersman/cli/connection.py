"""From a command to the client: the connection's options, one event loop, and which run is meant."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from steersman.cli.exits import Exit
from steersman.cli.output import remark

if TYPE_CHECKING:
    from steersman.client import Steersman

NEWEST = "-"
RUN_HELP = "The run's id, or - for the newest."


@dataclass(frozen=True)
class Link:
    """The global options."""

    profile: str | None = None
    address: str | None = None
    namespace: str | None = None

    def environment(self) -> dict[str, str]:
        """The same for a child process, as Temporal's variables."""
        chosen = {
            "TEMPORAL_PROFILE": self.profile,
            "TEMPORAL_ADDRESS": self.address,
            "TEMPORAL_NAMESPACE": self.namespace,
        }
        return {name: value for name, value in chosen.items() if value is not None}


def link_of(ctx: typer.Context) -> Link:
    """The global options of this invocation."""
    link = ctx.find_root().obj
    return link if isinstance(link, Link) else Link()


def act(ctx: typer.Context, work: "Callable[[Steersman], Awaitable[Exit | None]]") -> None:
    """Connect, do the work, exit with its code."""
    import asyncio

    from steersman.client import Steersman

    link = link_of(ctx)

    async def connected() -> Exit | None:
        quiet()
        return await work(await Steersman.connect(link.profile, link.address, link.namespace))

    try:
        code = asyncio.run(connected())
    except KeyboardInterrupt:
        code = Exit.DETACHED
    raise typer.Exit(code or Exit.OK)


def quiet() -> None:
    """The SDK logs each retry to stderr by itself; what comes of it is said by us."""
    from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

    quiet = LoggingConfig(filter=TelemetryFilter(core_level="OFF", other_level="OFF"))
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=quiet)), error_if_already_set=False)


def withheld(steersman: "Steersman", reason: str) -> None:
    """Say so where the reason of a stop goes nowhere."""
    if reason and steersman.temporal.data_converter.payload_codec:
        remark("the reason is not sent: Temporal would keep it in the clear")


async def chosen(steersman: "Steersman", run: str, *, among_open: bool = False) -> str:
    """The run that is meant: `-` is the newest, or the newest open one where only an open one makes sense."""
    from steersman.errors import RunNotFound

    if run != NEWEST:
        return run
    found = await steersman.list('ExecutionStatus="Running"' if among_open else None, limit=1)
    if not found:
        raise RunNotFound("there is no open run" if among_open else "there is no run yet")
    remark(f"run {found[0].id}")
    return found[0].id


async def chosen_loop(steersman: "Steersman", loop: str, *, among_open: bool = False) -> str:
    """The loop that is meant: `-` is the newest, or the newest open one where only an open one makes sense."""
    from steersman.errors import RunNotFound

    if loop != NEWEST:
        return loop
    found = await steersman.loops.list('ExecutionStatus="Running"' if among_open else None, limit=1)
    if not found:
        raise RunNotFound("there is no open loop" if among_open else "there is no loop yet")
    remark(f"loop {found[0].id}")
    return found[0].id


async def here(steersman: "Steersman") -> dict[str, Any]:
    """A workspace is a directory of this machine: its own worker takes the run, where there is one."""
    from steersman.hosts import host_name, state_directory
    from steersman.serverchecks import has_worker

    host = host_name(state_directory())
    return {"runtime": {"host": host}} if await has_worker(steersman.temporal, host) else {}
