"""How leading one process ends, whatever cuts that off: nothing waits any more."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from activities.agents.claude.transcript import ClaudeTranscript
from activities.agents.process.conversation import Silence
from activities.ports.agent import Progress
from activities.running.attempt import AttemptRunner
from activities.running.attempt_state import AttemptState
from activities.shim.client.journal import Record
from activities.store.eventlog import EventLog
from tests.hostile.test_stalls import Journal, Quiet


class Endless(Journal):
    """The channel of a process that says nothing."""

    async def records(self, after: int = 0, offset: int = 0) -> AsyncGenerator[Sequence[Record], None]:
        await asyncio.Event().wait()
        yield []


class Conversation(Silence):
    closed = False

    async def close(self) -> None:
        self.closed = True


class Writing:
    """Snapshots on a disk that takes none for a while."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()

    async def close(self) -> None:
        self.waits.set()
        await asyncio.Event().wait()


async def test_a_second_cancel_leaves_no_conversation_open(tmp_path: Path) -> None:
    """Of Claude Code's SDK tasks would stay, until the garbage collector came upon them."""
    conversation, writing = Conversation(), Writing()
    with closing(EventLog(tmp_path / "events.jsonl")) as log:
        state, channel = AttemptState(1), Endless(())
        life = AttemptRunner(state, channel, ClaudeTranscript(), conversation, log, Quiet(), Progress())
        life.resume(cast("Any", writing), None)
        leading = asyncio.create_task(life.run())
        await asyncio.sleep(0)
        leading.cancel()
        await writing.waits.wait()
        assert not conversation.closed
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
    assert conversation.closed
