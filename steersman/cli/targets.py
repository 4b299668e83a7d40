"""What a command acts on: the run or the loop that is meant, and the host for a new one."""

import contextlib
import re
from typing import TYPE_CHECKING, Any

import typer

from steersman.cli.output import remark

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from steersman.client import Steersman
    from steersman.reports import LoopSummary, RunSummary

NEWEST = "-"
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_WHOLE = re.compile(r".*-(?:[23456789bcdfghjkmnpqrstvwxz]{6}|[0-9a-f]{4}-[0-9a-f]{12})")
"""How ids end that clients make: nothing is looked for that begins with one."""


async def resolve_run(steersman: "Steersman", run: str, *, among_open: bool = False) -> str:
    """The run's id. `-` is the newest that no loop has started, or the newest open one for a command that needs an open
    run. What only one run's id begins with is that run.
    """
    is_open = 'ExecutionStatus="Running"'
    _check_given(run, "RUN")
    if run != NEWEST:
        return await _completed(steersman, run, lambda query: steersman.list(query, limit=_MANY))
    found = await steersman.list(is_open if among_open else None, limit=1, of_loops=False)
    if not found and among_open:  # that of a loop is better than none
        found = await steersman.list(is_open, limit=1)
    if not found:
        raise _not_found("there is no open run" if among_open else "there is no run yet")
    remark(f"run {found[0].id}")
    return found[0].id


async def resolve_loop(steersman: "Steersman", loop: str, *, among_open: bool = False) -> str:
    """The loop's id. `-` is the newest loop, or the newest open one for a command that needs an open loop; what only
    one loop's id begins with is that loop.
    """
    _check_given(loop, "LOOP")
    if loop != NEWEST:
        return await _completed(steersman, loop, lambda query: steersman.loops.list(query, limit=_MANY))
    found = await steersman.loops.list('ExecutionStatus="Running"' if among_open else None, limit=1)
    if not found:
        raise _not_found("there is no open loop" if among_open else "there is no loop yet")
    remark(f"loop {found[0].id}")
    return found[0].id


def _check_given(id: str, name: str) -> None:
    """An unset variable of a script is no id."""
    if not id.strip():
        raise typer.BadParameter(f"{name}: must not be empty")


_MANY = 20


async def _completed(
    steersman: "Steersman", part: str, listed: "Callable[[str], Awaitable[Sequence[RunSummary | LoopSummary]]]"
) -> str:
    """The one id that begins so; the word itself where it is one, or none begins so: lists lag, and lack the newest."""
    from steersman.errors import ServerRefused

    if _PART.fullmatch(part) is None or _WHOLE.fullmatch(part):
        return part
    try:
        found = sorted({each.id for each in await listed(f'WorkflowId STARTS_WITH "{part}"')})
    except ServerRefused:  # one that lists by other words
        return part
    if part in found or not found or await is_there(steersman, part):
        return part
    if len(found) > 1:
        shown = ", ".join(found[:5]) + (" ..." if len(found) > 5 else "")
        raise _not_found(f"{part} is the beginning of several: {shown}")
    remark(found[0])
    return found[0]


async def is_there(steersman: "Steersman", id: str) -> bool:
    """Whether the server has a workflow of this id, or does not say. Needs no worker."""
    from temporalio.service import RPCError, RPCStatusCode

    try:
        await steersman.temporal.get_workflow_handle(id).describe()
    except RPCError as error:
        return error.status != RPCStatusCode.NOT_FOUND  # else what is done says what is wrong
    return True


@contextlib.contextmanager
def filter_judged(query: str | None) -> "Iterator[None]":
    """A list's filter that the server does not take is wrong usage."""
    from steersman.errors import ServerRefused

    try:
        yield
    except ServerRefused as error:
        if query is None:
            raise
        raise typer.BadParameter(f"QUERY: {error}") from error


def _not_found(why: str) -> Exception:
    from steersman.errors import RunNotFound

    return RunNotFound(why)


async def choose_host(steersman: "Steersman", asked: dict[str, Any]) -> None:
    """Let a request about a directory of this machine name this host, if it names none and this host has a worker."""
    from steersman._client.server_checks import has_worker
    from steersman.hosts import host_name, state_directory

    workspace, host = asked.get("workspace"), host_name(state_directory())
    if isinstance(workspace, dict) and not named_host(asked) and await has_worker(steersman.temporal, host):
        asked["workspace"] = {**workspace, "host": host}


def named_host(asked: Any) -> str | None:
    """The host that a request of a run names; None where it names none, or is no request."""
    parts = [asked.get(name) for name in ("workspace", "runtime")] if isinstance(asked, dict) else []
    named = [each.get("host") for each in parts if isinstance(each, dict)]  # the second is an older name
    return next((each for each in named if each and isinstance(each, str)), None)


def warn_unsent_reason(steersman: "Steersman", reason: str) -> None:
    """Say that the reason of a stop is not sent, where payloads are encrypted."""
    if reason and steersman.temporal.data_converter.payload_codec:
        remark("the reason is not sent: Temporal would keep it in the clear")
