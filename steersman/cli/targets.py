"""What a command acts on: the run or the loop that is meant, and the host for a new one."""

from typing import TYPE_CHECKING, Any

from steersman.cli.output import remark

if TYPE_CHECKING:
    from steersman.client import Steersman

NEWEST = "-"


async def resolve_run(steersman: "Steersman", run: str, *, among_open: bool = False) -> str:
    """The run's id: `-` is the newest run, or the newest open one for a command that needs an open run."""
    from steersman.errors import RunNotFound

    if run != NEWEST:
        return run
    found = await steersman.list('ExecutionStatus="Running"' if among_open else None, limit=1)
    if not found:
        raise RunNotFound("there is no open run" if among_open else "there is no run yet")
    remark(f"run {found[0].id}")
    return found[0].id


async def resolve_loop(steersman: "Steersman", loop: str, *, among_open: bool = False) -> str:
    """The loop's id: `-` is the newest loop, or the newest open one for a command that needs an open loop."""
    from steersman.errors import RunNotFound

    if loop != NEWEST:
        return loop
    found = await steersman.loops.list('ExecutionStatus="Running"' if among_open else None, limit=1)
    if not found:
        raise RunNotFound("there is no open loop" if among_open else "there is no loop yet")
    remark(f"loop {found[0].id}")
    return found[0].id


async def local_runtime(steersman: "Steersman") -> dict[str, Any]:
    """The `runtime` of a request about a directory of this machine: this host where it has a worker, else empty."""
    from steersman._client.server_checks import has_worker
    from steersman.hosts import host_name, state_directory

    host = host_name(state_directory())
    return {"runtime": {"host": host}} if await has_worker(steersman.temporal, host) else {}


def warn_unsent_reason(steersman: "Steersman", reason: str) -> None:
    """Say that the reason of a stop is not sent, where payloads are encrypted."""
    if reason and steersman.temporal.data_converter.payload_codec:
        remark("the reason is not sent: Temporal would keep it in the clear")
