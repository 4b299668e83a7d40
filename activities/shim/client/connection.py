"""A connection to a living shim: commands with ids, each answered.

What must not live here: starting a shim, reading its journal file, and deciding when to reconnect.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import uuid
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from activities.shim.client.access import LOCAL, Directory, ShimAccess
from activities.shim.client.dialing import DIAL_TIMEOUT, let_go
from activities.shim.client.errors import ShimGone, ShimUnresponsive, error_of
from activities.shim.client.reports import Status, StopReport, as_text
from steersman import timeouts

ANSWER_TIMEOUT = timedelta(seconds=30)
_GIVE_UP_S = 10.0  # twice what the shim itself takes after SIGKILL until it gives up


@dataclass(frozen=True, slots=True)
class Written:
    """Where a write is in the journal, and whether the same id had been written before."""

    seq: int
    duplicate: bool


class Connection:
    """One connection, made by `connect`. Every method raises ShimGone, ShimUnresponsive and Fenced."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: dict[str, Any]) -> None:
        self.hello = Status.from_wire(hello["status"])
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._lost: ShimGone | None = None
        self._listener = asyncio.create_task(self._listen())

    async def write(self, data: str | bytes, *, id: str | None = None) -> Written:
        """Write to the agent's stdin, once for each id.

        Raises:
            StdinClosed: nothing can be written any more.
            AgentExited: the agent has ended.
            NotController: this connection has no epoch.
            JournalFull: nothing was written, for now.
            InvalidCommand: the id is not printable ASCII, or too long.
        """
        reply = await self._ask("write", id or uuid.uuid4().hex, data=as_text(data))
        return Written(reply["seq"], reply.get("duplicate", False))

    async def close_stdin(self, *, id: str | None = None) -> None:
        """Close the agent's stdin after everything that was written has gone in."""
        await self._ask("close_stdin", id or uuid.uuid4().hex)

    async def stop(
        self,
        *,
        terminate_after: timedelta | None = None,
        kill_after: timedelta | None = None,
        reason: str | None = None,
    ) -> StopReport:
        """Stop the agent and everything that it started; the times are the spec's where they are not given.

        Stopping twice is fine: the second joins the first, and makes it quicker where it asks for that.
        """
        times: dict[str, object] = {"reason": reason}
        patience = timedelta(days=2)
        if terminate_after is not None:
            times["terminate_after_s"] = terminate_after.total_seconds()
        if kill_after is not None:
            times["kill_after_s"] = kill_after.total_seconds()
            patience = kill_after + timedelta(seconds=_GIVE_UP_S)
        return StopReport.from_wire(await self._ask("stop", None, patience, **times))

    async def status(self) -> Status:
        return Status.from_wire((await self._ask("status", None))["status"])

    async def renew(self) -> None:
        """Say that a controller lives: the lease starts anew, as with every other command."""
        await self._ask("renew", None)

    async def release(self) -> None:
        """Let the shim go, after the agent's end; raises AgentRunning before it."""
        await self._ask("release", None)

    async def aclose(self) -> None:
        """Leave; the agent works on."""
        self._listener.cancel()
        try:
            await asyncio.gather(self._listener, return_exceptions=True)
        finally:  # also where whoever closes it is cancelled meanwhile
            await let_go(self._writer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _ask(
        self, op: str, ident: str | None, patience: timedelta = ANSWER_TIMEOUT, **fields: object
    ) -> dict[str, Any]:
        if self._lost is not None:
            raise ShimGone(str(self._lost))
        key = ident or f"#{next(self._numbers)}"
        if (waiting := self._waiting.get(key)) is None:
            waiting = self._waiting[key] = asyncio.get_running_loop().create_future()
        command = {"op": op, "id": key, **fields}
        self._writer.write(json.dumps(command).encode() + b"\n")
        try:
            async with timeouts.timeout(patience.total_seconds()):
                reply = await asyncio.shield(waiting)
        except TimeoutError:
            raise ShimUnresponsive(f"the shim did not answer {op!r} within {patience}") from None
        if not reply.get("ok"):
            raise error_of(reply)
        return reply

    async def _listen(self) -> None:
        try:
            while line := await self._reader.readline():
                reply = json.loads(line)
                waiting = self._waiting.pop(str(reply.get("id")), None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
        except (OSError, ValueError, AttributeError, RecursionError):
            pass  # a connection that breaks is one that has ended
        finally:
            self._lost = ShimGone("the connection to the shim has ended")
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(self._lost)
                    waiting.exception()  # whoever asked may have gone


async def connect(
    directory: Directory, *, epoch: int | None, timeout: timedelta = DIAL_TIMEOUT, access: ShimAccess = LOCAL
) -> Connection:
    """Connect to the shim that lives in this directory, as a controller (with an epoch) or as an observer (None).

    A controller fences off all with a lower epoch; an equal one is the same controller again. An observer may look
    and stop, but not write. A shim that is just starting is waited for.

    Raises:
        ShimGone: no shim lives there.
        Fenced: a newer controller has it.
        ProtocolMismatch: it speaks no version that this program speaks; its agent is left at work.
        ShimUnresponsive: it lives and does not answer, or what answers is none.
        NotAdmitted: this process descends from an agent.
    """
    reader, writer, hello = await access.dial(directory, epoch, timeout)
    try:
        return Connection(reader, writer, hello)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError):
        writer.close()
        raise ShimUnresponsive(f"what answers in {os.fspath(directory)} is no shim") from None
