"""A run of Claude Code that a person ends with its turn: at any moment, for good. Its session can be gone on with."""

import asyncio
import json
import os
import signal
from typing import Literal, cast

import pytest

from activities.agents.claude.conversation import ClaudeConversation
from activities.agents.claude.transcript import ClaudeTranscript
from activities.agents.claude.transport import ChannelTransport
from activities.ports.agent import ApprovalRequester
from activities.ports.runtime import Channel, ChannelClosed
from activities.running.controller import RunController
from steersman.contracts.activities import DeliverInput, OutgoingMessage, RunKey, RunOutcome, Settlement
from steersman.contracts.errors import ErrorType
from tests.agents.kits import ClaudeKit
from tests.agents.stage import deliver, message
from tests.scripted_model import Hold, Request, Say, Tool, Usage, answer, hold, say, tool
from tests.support.processes import until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

NAP = "python3 -c 'import time; time.sleep(600)'"


def end(*names: str) -> DeliverInput:
    """Interrupts that end the run."""
    messages = tuple(OutgoingMessage(id=name, kind="interrupt", end=True) for name in names or ("e-1",))
    return DeliverInput(key=RunKey(run="r", execution="e"), messages=messages, patience_s=20)


async def ended(task: "asyncio.Task[RunOutcome]", timeout_s: float = 20) -> RunOutcome:
    """The outcome of a run that was ended: no failure, nothing of it left open."""
    async with asyncio.timeout(timeout_s):
        outcome = await task
    assert (outcome.status, outcome.stop_reason, outcome.error) == ("succeeded", "interrupted", None)
    return outcome


async def told(session: RunController, parcel: DeliverInput) -> tuple[Settlement, ...]:
    return (await deliver(session, parcel)).messages


async def gone_on_with(claude: ClaudeKit, session_id: str | None) -> Request:
    """Another run takes the session up; what its model is asked."""
    assert session_id is not None
    async with claude.run(say("gone on"), session=session_id, prompt="go on now") as stage:
        outcome = await stage.play()
    assert (outcome.status, outcome.text, outcome.session_id) == ("succeeded", "gone on", session_id)
    return claude.script.requests[0]


class TestAtAnyMoment:
    async def test_while_it_speaks(self, claude: ClaudeKit) -> None:
        spoken = answer(Say("half a story"), Hold(), usage=Usage(input=1000))
        async with claude.run(spoken) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            await stage.wait_for("message", text="half a story", delta=True)
            (receipt,) = await told(session, end())
            assert (receipt.id, receipt.state, receipt.how) == ("e-1", "acknowledged", "interrupted")
            outcome = await ended(task)
            assert not stage.alive()
        assert (outcome.text, outcome.attempts, outcome.turns, outcome.usage.input_tokens) == (
            "half a story",
            1,
            1,
            1000,
        )
        assert outcome.cost_usd > 0.003
        assert outcome.messages == (receipt,)
        assert len(stage.said("progress", text="the turn was interrupted")) == 1
        asked = await gone_on_with(claude, outcome.session_id)
        assert asked.saw("do it")
        assert asked.saw("half a story")

    async def test_while_a_tool_runs(self, claude: ClaudeKit) -> None:
        async with claude.run(answer(Say("let me see"), Tool("Bash", {"command": NAP, "timeout": 600_000}))) as stage:
            session, task = stage.start()
            await until(lambda: [line for line in stage.alive().values() if "time.sleep(600)" in line])
            await told(session, end())
            outcome = await ended(task)
            assert not stage.alive()
        assert outcome.text == "let me see"
        assert (await gone_on_with(claude, outcome.session_id)).saw("let me see")

    async def test_while_an_approval_waits(self, claude: ClaudeKit) -> None:
        async with claude.run(tool("Bash", command="touch made-it"), permissions={"mode": "ask"}) as stage:
            session, task = stage.start()
            await until(lambda: stage.listener.asks)
            await told(session, end())
            outcome = await ended(task)
        assert stage.said("permission", state="withdrawn")
        await gone_on_with(claude, outcome.session_id)

    async def test_while_it_waits_for_a_person(self, claude: ClaudeKit) -> None:
        async with claude.run(hold("half a story")) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            await stage.wait_for("message", text="half a story", delta=True)
            await told(session, message("interrupt"))
            await until(lambda: (life := session._attempt) is not None and life.transcript.parked)  # noqa: SLF001
            (receipt,) = await told(session, end())
            assert (receipt.state, receipt.how) == ("acknowledged", "nothing was running")
            outcome = await ended(task)
        assert outcome.text == "half a story"
        await gone_on_with(claude, outcome.session_id)

    @pytest.mark.parametrize("pause_s", [0, 0.15])
    async def test_what_was_said_a_moment_before_is_in_the_session_or_rejected(
        self, claude: ClaudeKit, pause_s: float
    ) -> None:
        async with claude.run(hold("half a story"), hold("more")) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            await told(session, message("interrupt"))
            await until(lambda: (life := session._attempt) is not None and life.transcript.parked)  # noqa: SLF001
            steered = asyncio.create_task(told(session, message("steer", "use tabs", "s-1")))
            await asyncio.sleep(pause_s)
            await told(session, end())
            await steered
            outcome = await ended(task)
        (settled,) = (each for each in outcome.messages if each.id == "s-1")
        assert settled.state in {"acknowledged", "rejected"}
        next_request = await gone_on_with(claude, outcome.session_id)
        assert next_request.saw("use tabs") == (settled.state == "acknowledged")

    async def test_before_its_first_turn(self, claude: ClaudeKit) -> None:
        """Whatever it has come to in these milliseconds: the session that is told can be gone on with, or none is."""
        async with claude.run(hold("begun")) as stage:
            session, task = stage.start()
            await stage.pid()
            await told(session, end())
            outcome = await ended(task)
        assert bool(outcome.session_id) == bool(stage.said("init"))
        if outcome.session_id:
            assert (await gone_on_with(claude, outcome.session_id)).saw("do it")

    async def test_before_a_session_that_it_was_to_go_on_with(self, claude: ClaudeKit) -> None:
        async with claude.run(say("remembered: 7")) as stage:
            first = await stage.play()
        async with claude.run(hold("begun"), session=first.session_id) as stage:
            session, task = stage.start()
            await stage.pid()
            await told(session, end())
            assert (await ended(task)).session_id == first.session_id
        assert (await gone_on_with(claude, first.session_id)).saw("remembered: 7")

    async def test_while_a_sub_agent_works_behind(self, claude: ClaudeKit) -> None:
        steps = (
            tool("Agent", description="x", prompt="dig", subagent_type="general-purpose", run_in_background=True),
            hold("one of the two"),
            hold("the other"),
        )
        async with claude.run(*steps) as stage:
            session, task = stage.start()
            await claude.script.wait_requests(3)
            await told(session, end())
            await ended(task)
        assert len(claude.script.requests) == 3


class TestOnce:
    async def test_twice_is_fine(self, claude: ClaudeKit) -> None:
        async with claude.run(hold("working")) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            receipts = await asyncio.gather(told(session, end("e-1", "e-2")), told(session, end("e-1")))
            outcome = await ended(task)
        assert {(each.id, each.state) for each in receipts[0]} == {("e-1", "acknowledged"), ("e-2", "acknowledged")}
        assert len(stage.said("progress", text="the turn was interrupted")) == 1
        assert outcome.attempts == 1

    async def test_what_was_said_before_and_not_read_is_not_read_any_more(self, claude: ClaudeKit) -> None:
        async with claude.run(hold("working"), say("never")) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            await told(session, message("steer", "use tabs", "s-1"))
            await told(session, message("steer", "use spaces", "s-2"))
            await told(session, end())
            outcome = await ended(task)
        assert {(each.id, each.state) for each in outcome.messages} == {
            ("s-1", "rejected"),
            ("s-2", "rejected"),
            ("e-1", "acknowledged"),
        }
        assert len(claude.script.requests) == 1

    async def test_what_is_said_afterwards_is_too_late(self, claude: ClaudeKit) -> None:
        async with claude.run(hold("working"), say("never")) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            parcel = end()
            steer = OutgoingMessage(id="s-1", kind="steer", text="go on")
            receipts = await told(session, parcel.model_copy(update={"messages": (*parcel.messages, steer)}))
            await ended(task)
        assert {each.id: each.state for each in receipts} == {"e-1": "acknowledged", "s-1": "too_late"}
        assert len(claude.script.requests) == 1

    async def test_an_agent_that_had_finished_is_not_interrupted(self, claude: ClaudeKit) -> None:
        """Its background shell outlives its answer by a moment."""
        steps = (tool("Bash", command=NAP, run_in_background=True), say("the whole story"))
        async with claude.run(*steps) as stage:
            session, task = stage.start()
            await until(lambda: (life := session._attempt) is not None and life.is_over)  # noqa: SLF001
            (receipt,) = await told(session, end())
            async with asyncio.timeout(20):
                outcome = await task
        assert receipt.state == "too_late"
        assert (outcome.status, outcome.text, outcome.stop_reason) == ("succeeded", "the whole story", "end_turn")


class TestCalamities:
    async def test_an_agent_that_hangs_is_stopped(self, claude: ClaudeKit) -> None:
        async with claude.run(tool("Bash", command="true"), hold("working")) as stage:
            session, task = stage.start()
            await stage.wait_for("message", text="working")
            os.kill(await stage.pid(), signal.SIGSTOP)
            delivering = asyncio.create_task(session.deliver(end()))
            outcome = await ended(task)
            await asyncio.wait([delivering])
            assert not stage.alive()
        assert outcome.attempts == 1
        assert (await gone_on_with(claude, outcome.session_id)).saw("do it")

    async def test_an_agent_that_dies_of_it_is_not_resumed(self, claude: ClaudeKit) -> None:
        async with claude.run(hold("working")) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            await stage.wait_for("message", text="working", delta=True)
            pid = await stage.pid()
            os.kill(pid, signal.SIGSTOP)
            delivering = asyncio.create_task(session.deliver(end()))
            await until(lambda: b"end-e-1" in (stage.directory.attempt(1) / "journal").read_bytes())
            os.kill(pid, signal.SIGKILL)
            outcome = await ended(task)
            await asyncio.wait([delivering])
        assert outcome.attempts == 1
        assert (await gone_on_with(claude, outcome.session_id)).saw("do it")

    async def test_an_agent_that_was_dead_before_it_heard_of_it_is_not_resumed(self, claude: ClaudeKit) -> None:
        async with claude.run(hold("working")) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            await stage.wait_for("message", text="working", delta=True)
            await stage.kill()
            await session.deliver(end())
            outcome = await ended(task)
        assert outcome.attempts == 1
        assert len(claude.script.requests) == 1

    @pytest.mark.parametrize("when", ["before", "after"])
    async def test_the_next_worker_comes_to_the_same_end(self, claude: ClaudeKit, when: str) -> None:
        """The first worker goes once the end is in the journal; the turn ends before or after the next one comes."""
        async with claude.run(hold("working"), say("never")) as stage:
            session, _ = stage.start()
            await claude.script.wait_held()
            await stage.wait_for("message", text="working", delta=True)
            pid = await stage.pid()
            os.kill(pid, signal.SIGSTOP)
            delivering = asyncio.create_task(session.deliver(end()))
            await until(lambda: b"end-e-1" in (stage.directory.attempt(1) / "journal").read_bytes())
            await stage.detach()
            await asyncio.wait([delivering])
            if when == "before":
                os.kill(pid, signal.SIGCONT)
                await claude.script.wait_outcome(claude.script.requests[0])
            session, task = stage.start()
            again = asyncio.create_task(session.deliver(end()))
            os.kill(pid, signal.SIGCONT)
            outcome = await ended(task)
            await asyncio.wait([again])
        assert (outcome.text, outcome.attempts) == ("working", 1)
        assert outcome.messages == (Settlement(id="e-1", state="acknowledged", how="interrupted"),)
        assert len(stage.said("progress", text="the turn was interrupted")) == 1
        await gone_on_with(claude, outcome.session_id)

    async def test_a_limit_that_came_first_counts(self, claude: ClaudeKit) -> None:
        dear = answer(Say("dear"), Hold(), usage=Usage(input=2_000_000))
        async with claude.run(dear, limits={"cost_usd": 0.5}, stop={"terminate_after_s": 1}) as stage:
            session, task = stage.start()
            await until(lambda: (life := session._attempt) is not None and life.limit)  # noqa: SLF001
            delivering = asyncio.create_task(session.deliver(end()))
            async with asyncio.timeout(20):
                outcome = await task
            await asyncio.wait([delivering])
        assert (outcome.status, outcome.error) == ("failed", ErrorType.BUDGET_EXCEEDED)


class Gone:
    """The Channel of a process that has ended; see ports.Channel."""

    async def write(self, command: str, data: str | None) -> bool:
        raise ChannelClosed("the agent has ended")


@pytest.mark.parametrize("kind", ["steer", "interrupt"])
async def test_who_ended_before_its_handshake_is_a_process_that_has_ended(kind: Literal["steer", "interrupt"]) -> None:
    key, approvals = RunKey(run="r", execution="e"), cast("ApprovalRequester", None)
    conversation = ClaudeConversation(key, "full", cast("Channel", Gone()), ClaudeTranscript(), approvals)
    await conversation.open()
    with pytest.raises(ChannelClosed):
        await conversation.say(OutgoingMessage(id="m-1", kind=kind, text="still there?"))
    await conversation.close()


async def test_an_answer_to_an_agent_that_has_ended_goes_nowhere_and_a_message_says_so() -> None:
    """Answers are written in tasks of the SDK's, which nobody awaits: an exception would be an error in the log."""
    transport = ChannelTransport(cast("Channel", Gone()))
    response = {"subtype": "success", "request_id": "r", "response": {"behavior": "allow"}}
    await transport.write(json.dumps({"type": "control_response", "response": response}))
    with pytest.raises(ChannelClosed):
        await transport.write(json.dumps({"type": "control_request", "request_id": "1", "request": {"subtype": "x"}}))
