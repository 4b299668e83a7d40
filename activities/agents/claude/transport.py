"""The SDK's transport over a Channel, and the ids under which its frames are written once."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from claude_agent_sdk import CLIConnectionError, Transport

from activities.agents.frames import Frame
from activities.ports.runtime import Channel, ChannelClosed, Fenced

_command: ContextVar[str] = ContextVar("command")


class ChannelTransport(Transport):
    """Each write has an id and is done once, whichever worker tries. Frames for the SDK are pushed."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._frames: asyncio.Queue[Frame | None] = asyncio.Queue()

    async def connect(self) -> None: ...

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None: ...

    async def close(self) -> None:
        self.push(None)

    async def write(self, data: str) -> None:
        frame = json.loads(data)
        try:
            await self._channel.write(_command_id(frame), data)
        except (ChannelClosed, Fenced):
            # The SDK answers the agent's requests in tasks of its own, which nobody awaits.
            if frame.get("type") != "control_response":
                raise

    def push(self, frame: Frame | None) -> None:
        """Hand a frame to the SDK; None ends its reading."""
        self._frames.put_nowait(frame)

    async def read_messages(self) -> AsyncIterator[Frame]:
        while (frame := await self._frames.get()) is not None:
            yield frame


@contextlib.contextmanager
def writing_as(command: str) -> Iterator[None]:
    """What the SDK writes in this context has this id. Raises ChannelClosed, also if the process ended before."""
    token = _command.set(command)
    try:
        yield
    except CLIConnectionError as error:
        raise ChannelClosed(str(error)) from error
    finally:
        _command.reset(token)


def _command_id(frame: dict[str, Any]) -> str:
    """The id of a frame that the SDK writes: an answer's by its request, a message's or interrupt's by `writing_as`."""
    if frame.get("type") == "control_response":
        request_id = str(frame["response"]["request_id"])
        return f"answer-{uuid5(NAMESPACE_URL, request_id)}"
    if frame.get("type") == "user":
        return _command.get()
    if frame["request"].get("subtype") == "interrupt":
        return _command.get()
    return f"control-{frame['request_id']}"
