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


async def choose_host(steersman: "Steersman", asked: dict[str, Any]) -> None:
    """Let a request about a directory of this machine name this host, if it names none and this host has a worker."""
    from steersman._client.server_checks import has_worker
    from steersman.hosts import host_name, state_directory

    workspace, runtime, host = asked.get("workspace"), asked.get("runtime"), host_name(state_directory())
    named = [each.get("host") for each in (workspace, runtime) if isinstance(each, dict)]  # the second is an older name
    if isinstance(workspace, dict) and not any(named) and await has_worker(steersman.temporal, host):
        asked["workspace"] = {**workspace, "host": host}


def warn_unsent_reason(steersman: "Steersman", reason: str) -> None:
    """Say that the reason of a stop is not sent, where payloads are encrypted."""
    if reason and steersman.temporal.data_converter.payload_codec:
        remark("the reason is not sent: Temporal would keep it in the clear")
