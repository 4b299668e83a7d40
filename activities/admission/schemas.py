"""Validation by a requester's JSON Schema, in a process of its own: a schema can keep a processor busy for ever.

What is wrong with a schema or an answer is found by schema_program; its time and its environment are set here.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from steersman import timeouts
from steersman.contracts.errors import AgentFailed, InvalidRequest, RunError
from steersman.contracts.model import JsonObject, JsonValue
from steersman.contracts.request import RunRequest

DEADLINE_S = 5
"""A check may use this many seconds of processor time."""
WALL_S = 60.0
"""A check may take this many seconds on a busy machine."""
MAX_CHECKS = 4
"""At most this many checks run at once; others wait, and their waiting is not counted."""
PROGRAM = Path(__file__).with_name("schema_program.py")

LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Some interpreters do not start without these variables."""

Gates = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]

_admitting: Gates = WeakKeyDictionary()
_judging: Gates = WeakKeyDictionary()
"""Two gates: requests, which any client may send, do not keep the answers of runs waiting."""


class _TooLong(Exception):
    """The check used up its time or its memory."""


async def admit_schema(request: RunRequest) -> None:
    """Raises InvalidRequest where output_schema is no JSON Schema, or nobody can tell in time."""
    if request.output_schema is None:
        return
    try:
        wrong = await _ask({"schema": request.output_schema}, _admitting)
    except _TooLong:
        raise InvalidRequest(f"output_schema: could not be checked within {DEADLINE_S} s") from None
    if wrong is not None:
        raise InvalidRequest(f"output_schema: not a JSON Schema: {wrong}")


async def mismatch(schema: JsonObject | None, answer: JsonValue) -> RunError | None:
    """What is wrong with an agent's answer; None where no schema was given or it fits."""
    if schema is None:
        return None
    if answer is None:
        return AgentFailed("output_schema: the agent gave no structured answer")
    try:
        wrong = await _ask({"schema": schema, "value": answer}, _judging)
    except _TooLong:
        return AgentFailed(f"output_schema: the answer could not be checked within {DEADLINE_S} s")
    return None if wrong is None else AgentFailed(f"output_schema: the answer does not fit: {wrong}")


async def _ask(question: dict[str, Any], gates: Gates) -> str | None:
    """The program's answer. Raises _TooLong, also where it went beyond its memory."""
    gate = gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_CHECKS))
    async with gate:
        # Isolated and without environment: nothing that anybody put there is loaded, and no proxy is asked. A session
        # of its own: Ctrl-C at a worker's terminal is no word on an answer.
        command = (sys.executable, "-I", "-B", str(PROGRAM), str(DEADLINE_S))
        env = {name: os.environ[name] for name in LIBRARIES if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=env, start_new_session=True
        )
        try:
            async with timeouts.timeout(WALL_S):
                output, _ = await process.communicate(json.dumps(question).encode())
        except TimeoutError:
            raise _TooLong from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode:
        raise _TooLong
    wrong: str | None = json.loads(output)
    return wrong
