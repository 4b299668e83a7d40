"""What is said to a running agent reaches it once, in order, and is acknowledged; the session goes on."""

import asyncio
import json

import pytest

from steersman.client import Steersman
from steersman.contracts.attachments import Attachment
from steersman.contracts.run import MessageRecord
from steersman.errors import MessageRefused, RunNotRunning
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, following, in_order, phase
from tests.scripted_model import Request, ScriptedModel, hold, say, tool
from tests.support.histories import searched_phases
from tests.support.images import attached, png
from tests.support.processes import marked, until

LONG_TOOL = tool("Bash", command="python3 -c 'import time; time.sleep(60)'")
TOOL_UNTIL_GO = tool("Bash", command="until test -e go; do sleep 0.05; done")


def said(request: Request, text: str) -> int:
    """How often the model sees a text."""
    return sum(each.count(text) for each in request.texts)


async def messages(steersman: Steersman, run: str) -> dict[str, MessageRecord]:
    return {each.id: each for each in (await steersman.state(run)).messages}


@pytest.mark.exhaustive
async def test_an_interrupt_with_a_text_ends_the_turn_and_goes_on_with_it(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    script = model.script("redirect", hold("the wrong way"), say("the right way"))
    run = await steersman.start(shared.claude(script))
    await script.wait_held()
    await phase(steersman, run, "running")

    receipt = await steersman.interrupt(run, "turn round", reason="it was wrong")
    result = await steersman.result(run)

    assert receipt.state in {"delivered", "acknowledged"}
    assert receipt.how == "interrupted" or receipt.how is None or "turn" in receipt.how
    # The interrupted turn's own late result is not the run's.
    assert (result.text, result.attempts, result.messages_delivered) == ("the right way", 1, 1)
    assert await script.wait_outcome(script.requests[0]) == "hung up"
    assert said(script.requests[1], "turn round") == 1
    record = (await messages(steersman, run))[receipt.id]
    assert (record.state, record.reason) == ("acknowledged", "it was wrong")
    assert "waiting" not in await searched_phases(steersman.temporal.get_workflow_handle(run))
    events = await steersman.events(run)
    assert in_order(events)
    assert [event.type for event in events].count("done") == 1


async def test_an_interrupt_without_a_text_parks_the_run_until_a_steer(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    script = model.script("park", hold("the wrong way"), hold("the right way"))
    run = await steersman.start(shared.claude(script, limits={"idle_s": 60}))
    async with following(steersman, run) as attached:
        await script.wait_held()
        await phase(steersman, run, "running")
        receipt = await steersman.interrupt(run)
        await attached.until(lambda e: e.type == "progress" and "interrupted" in e.text)

        assert (receipt.state, receipt.how) == ("acknowledged", "interrupted")
        await phase(steersman, run, "waiting")
        assert (await steersman.state(run)).awaits_message
        assert len(script.requests) == 1

        await steersman.steer(run, "now go on")
        await phase(steersman, run, "running")
        await script.release()
        result = await steersman.result(run)
        assert in_order(await attached.end())

    assert result.text == "the right way"
    assert said(script.requests[1], "now go on") == 1


@pytest.mark.exhaustive
async def test_an_interrupt_ends_a_tool_and_its_processes(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    script = model.script("tool", LONG_TOOL, say("something else"))
    run = await steersman.start(shared.claude(script, mark=mark, permissions={"mode": "full"}))
    await until(lambda: any("time.sleep(60)" in line for line in marked(mark).values()))

    await steersman.interrupt(run, "do something else")
    result = await steersman.result(run)

    assert (result.text, result.attempts) == ("something else", 1)
    assert not marked(mark)
    assert said(script.requests[-1], "do something else") == 1


@pytest.mark.exhaustive
async def test_three_interrupts_each_end_their_own_turn(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    script = model.script("three", hold("one"), hold("two"), hold("three"), say("four"))
    run = await steersman.start(shared.claude(script))
    texts = ("turn number one", "turn number two", "turn number three")
    for number, text in enumerate(texts, start=1):
        await script.wait_requests(number)
        await script.wait_held()
        await steersman.interrupt(run, text)
    result = await steersman.result(run)

    assert result.text == "four"
    assert [said(script.requests[-1], text) for text in texts] == [1, 1, 1]
    assert {each.state for each in (await steersman.state(run)).messages} == {"acknowledged"}


@pytest.mark.exhaustive
async def test_five_steers_are_read_in_order_within_the_turn(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    workspace = shared.workspace()
    script = model.script("five", TOOL_UNTIL_GO, say("read"))
    run = await steersman.start(shared.claude(script, workspace=workspace, permissions={"mode": "full"}))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "tool_use")
        texts = [f"word number {number}" for number in range(5)]
        receipts = [await steersman.steer(run, text) for text in texts]
        (workspace / "go").touch()
        result = await steersman.result(run)
        events = await attached.end()

    assert {receipt.state for receipt in receipts} == {"delivered"}
    assert (result.text, result.messages_delivered, len(script.requests)) == ("read", 5, 2)
    conversation = "\n".join(script.requests[1].texts)
    assert [conversation.count(text) for text in texts] == [1] * 5
    assert sorted(texts, key=conversation.index) == texts
    assert [each.text for each in (await steersman.state(run)).messages] == texts
    assert {each.state for each in (await steersman.state(run)).messages} == {"acknowledged"}
    assert [e.text for e in events if e.type == "message" and e.role == "user" and e.text in texts] == texts


@pytest.mark.exhaustive
async def test_the_same_id_twice_is_one_message(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    workspace = shared.workspace()
    script = model.script("twice", TOOL_UNTIL_GO, say("read"))
    run = await steersman.start(shared.claude(script, workspace=workspace, permissions={"mode": "full"}))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "tool_use")
        receipts = await asyncio.gather(*(steersman.steer(run, "only once", id="mine") for _ in range(3)))
        (workspace / "go").touch()
        await steersman.result(run)

    assert {receipt.id for receipt in receipts} == {"mine"}
    assert said(script.requests[-1], "only once") == 1
    assert list(await messages(steersman, run)) == ["mine"]


@pytest.mark.exhaustive
async def test_a_steer_that_an_interrupt_overtakes_is_read_or_said_to_be_lost(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    script = model.script("overtaken", LONG_TOOL, say("and then"), say("and after that"))
    run = await steersman.start(shared.claude(script, permissions={"mode": "full"}))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "tool_use")
        steer = await steersman.steer(run, "the small thing")
        interrupt = await steersman.interrupt(run, "the great thing")
        await steersman.result(run)

    record = await messages(steersman, run)
    assert record[interrupt.id].state == "acknowledged"
    assert said(script.requests[-1], "the great thing") == 1
    assert record[steer.id].state in {"acknowledged", "rejected"}
    assert said(script.requests[-1], "the small thing") == (record[steer.id].state == "acknowledged")


@pytest.mark.exhaustive
async def test_the_temporal_cli_steers_and_interrupts(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    script = model.script("cli", hold("the wrong way"), hold("another wrong way"), say("the right way"))
    run = await steersman.start(shared.claude(script))
    await script.wait_held()
    await phase(steersman, run, "running")

    interrupt = ("--workflow-id", run, "--name", "interrupt", "--input")
    answer = await shared.temporal("workflow", "update", "execute", *interrupt, '{"text": "by update"}')
    await script.wait_requests(2)
    await script.wait_held()
    await shared.temporal("workflow", "signal", *interrupt, '{"text": "by signal"}')
    result = await steersman.result(run)

    assert answer["result"]["state"] in {"delivered", "acknowledged"}
    assert result.text == "the right way"
    assert script.requests[1].saw("by update")
    assert script.requests[2].saw("by signal")


async def test_who_cannot_listen_says_so(shared: Site, steersman: Steersman) -> None:
    run = await steersman.start(shared.process(*python(OBEDIENT)))
    await phase(steersman, run, "running")

    with pytest.raises(MessageRefused, match='agent "process" cannot steer'):
        await steersman.steer(run, "listen")
    with pytest.raises(MessageRefused, match='agent "process" cannot interrupt'):
        await steersman.interrupt(run)
    await steersman.stop(run)

    with pytest.raises(RunNotRunning):
        await steersman.steer(run, "too late")
    assert (await steersman.state(run)).messages == ()


async def test_images_reach_the_model_with_the_prompt_and_with_a_message(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    first, second = attached(png(50), "50.png"), attached(png(250), "250.png")
    script = model.script("seen", hold("the first"), say("the second"))
    run = await steersman.start(shared.claude(script, attachments=[first, attached(b"x = 41", "a.py")]))
    await script.wait_held()
    assert script.requests[0].saw("x = 41")
    assert first["data"] in json.dumps(script.requests[0].body)

    receipt = await steersman.interrupt(run, "and this one?", attachments=[Attachment.model_validate(second)])
    result = await steersman.result(run)

    assert (result.text, result.messages_delivered) == ("the second", 1)
    assert second["data"] in json.dumps(script.requests[1].body)
    assert (await messages(steersman, run))[receipt.id].attachments == ("250.png",)


BLIND = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    answer = {"initialize": {"protocolVersion": 1, "agentCapabilities": {}}, "session/new": {"sessionId": "s"}}
    if asked["method"] == "session/prompt":
        turn = asked["id"]
    elif asked["method"] == "session/cancel":
        print(json.dumps({"jsonrpc": "2.0", "id": turn, "result": {"stopReason": "cancelled"}}), flush=True)
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer[asked["method"]]}), flush=True)
"""
"""An agent that speaks ACP, announces nothing, and works until it is cancelled."""


async def test_an_image_for_an_agent_that_takes_none_ends_no_turn(shared: Site, steersman: Steersman) -> None:
    request = shared.process(*python(BLIND), agent="acp", prompt="go")
    run = await steersman.start(request)
    image = Attachment.model_validate(attached(png(50), "50.png"))
    receipt = await steersman.interrupt(run, "like this", attachments=[image])
    said = (await messages(steersman, run))[receipt.id]
    assert (said.state, said.how) == ("rejected", "the agent does not announce that it takes images")
    assert (await steersman.state(run)).phase == "running"

    interrupted = await steersman.interrupt(run)
    # Else there would be no turn left to interrupt.
    assert (await messages(steersman, run))[interrupted.id].how == "interrupted"
    await steersman.stop(run)
