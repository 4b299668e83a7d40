"""What `<Tab>` offers: ids of runs and loops, with their titles, and agents. Whatever goes wrong, it offers nothing."""

import os
from typing import TYPE_CHECKING

import typer

from steersman.cli.connection import ConnectionOptions, silence_sdk_logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from steersman.client import Steersman
    from steersman.reports import LoopSummary, RunSummary

    Listed = Callable[[Steersman, str | None], Awaitable[Sequence[RunSummary | LoopSummary]]]

ANSWER_S = 2.0
"""Nobody waits longer at a prompt."""
MAX_IDS = 50


def runs(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of runs that no loop has started, the newest first."""
    return _ids(ctx, incomplete, lambda client, query: client.list(query, limit=MAX_IDS, of_loops=bool(incomplete)))


def open_runs(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The same, of open ones."""
    return _ids(ctx, incomplete, lambda client, query: client.list(_open(query), limit=MAX_IDS))


def loops(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of loops."""
    return _ids(ctx, incomplete, lambda client, query: client.loops.list(query, limit=MAX_IDS))


def open_loops(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The same, of open ones."""
    return _ids(ctx, incomplete, lambda client, query: client.loops.list(_open(query), limit=MAX_IDS))


def agents(incomplete: str) -> list[str]:
    """Agents that come along."""
    from steersman.contracts.agents import CAPABILITIES

    return [name for name in CAPABILITIES if name.startswith(incomplete)]


def _open(query: str | None) -> str:
    return 'ExecutionStatus = "Running"' + (f" AND {query}" if query else "")


def _ids(ctx: typer.Context, incomplete: str, listed: "Listed") -> list[tuple[str, str]]:
    if not all(each.isalnum() or each in "._:-" for each in incomplete):
        return []
    import asyncio

    params = ctx.find_root().params  # callbacks do not run while a line is completed
    options = ConnectionOptions(*(params.get(name) for name in ("profile", "address", "namespace")))
    query = f'WorkflowId STARTS_WITH "{incomplete}"' if incomplete else None
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    try:
        return asyncio.run(asyncio.wait_for(_found(options, query, listed), ANSWER_S))
    except Exception:  # noqa: BLE001 - an error in the middle of a line that somebody types helps nobody
        return []


async def _found(options: ConnectionOptions, query: str | None, listed: "Listed") -> list[tuple[str, str]]:
    from steersman.client import Steersman
    from steersman.contracts.text import flat

    silence_sdk_logs()
    client = await Steersman.connect(options.profile, options.address, options.namespace)
    return [(each.id, flat(getattr(each, "title", None) or "")[:60]) for each in await listed(client, query)]
