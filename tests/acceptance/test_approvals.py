"""A tool in mode "ask" waits for a person's word, for as long as it takes, and the first word counts."""

import asyncio
from functools import partial

import pytest

from steersman.client import Steersman
from steersman.contracts.run import Approval
from steersman.errors import AlreadyDecided
from tests.acceptance.site import Site, answered, following, in_order
from tests.scripted_model import Answer, ScriptedModel, Tool, say, tool
from tests.support.processes import until

ASK = {"mode": "ask"}


async def approval(steersman: Steersman, run: str, unlike: str = "") -> Approval:
    """The approval that waits, once there is one (other than `unlike`)."""

    async def waiting() -> Approval | None:
        return next(
            (each for each in (await answered(partial(steersman.state, run))).approvals if each.id != unlike), None
        )

    return await until(waiting)


async def permission_states(steersman: Steersman, run: str) -> list[str]:
    events = await steersman.events(run)
    assert in_order(events)
    return [event.state for event in events if event.type == "permission"]


@pytest.mark.exhaustive
async def test_allowed(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    workspace = shared.workspace()
    script = model.script("allow", tool("Bash", command="touch made"), say("made"))
    run = await steersman.start(shared.claude(script, workspace=workspace, permissions=ASK))

    asked = await approval(steersman, run)
    assert (asked.tool, asked.input["command"]) == ("Bash", "touch made")
    assert not (workspace / "made").exists()
    receipt = await steersman.decide(run, asked.id, "allow")
    result = await steersman.result(run)

    assert (receipt.id, receipt.decision, receipt.tool) == (asked.id, "allow", "Bash")
    assert (workspace / "made").exists()
    assert result.text == "made"
    assert (await steersman.state(run)).approvals == ()
    assert await permission_states(steersman, run) == ["asked", "allowed"]


async def test_denied_with_a_message_that_the_agent_hears(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    workspace = shared.workspace()
    script = model.script("deny", tool("Bash", command="touch made"), say("as you wish"))
    run = await steersman.start(shared.claude(script, workspace=workspace, permissions=ASK))

    asked = await approval(steersman, run)
    await steersman.decide(run, asked.id, "deny", "not on a Sunday")
    await steersman.result(run)

    assert not (workspace / "made").exists()
    assert script.requests[-1].saw("not on a Sunday")
    assert await permission_states(steersman, run) == ["asked", "denied"]


async def test_a_word_is_on_one_call_alone_also_where_the_model_calls_the_next_one_the_same(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    workspace = shared.workspace()
    calls = [Answer((Tool("Bash", {"command": f"touch {name}"}, id="call_0"),)) for name in ("made", "second")]
    run = await steersman.start(
        shared.claude(model.script("same", *calls, say("done")), workspace=workspace, permissions=ASK)
    )

    first = await approval(steersman, run)
    await steersman.decide(run, first.id, "allow")
    second = await approval(steersman, run, unlike=first.id)
    assert (second.tool_id, second.input["command"]) == (first.tool_id, "touch second")
    await steersman.decide(run, second.id, "deny")
    await steersman.result(run)

    assert (workspace / "made").exists()
    assert not (workspace / "second").exists()
    assert await permission_states(steersman, run) == ["asked", "allowed", "asked", "denied"]


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_a_decision_is_remembered_for_the_rest_of_the_run(
    shared: Site, steersman: Steersman, model: ScriptedModel, decision: str
) -> None:
    workspace = shared.workspace()
    commands = [tool("Bash", command=f"touch made-{number}") for number in range(3)]
    script = model.script("remember", *commands, say("done"))
    run = await steersman.start(shared.claude(script, workspace=workspace, permissions=ASK))

    asked = await approval(steersman, run)
    await steersman.decide(run, asked.id, "allow" if decision == "allow" else "deny", remember=True)
    await steersman.result(run)

    assert [(workspace / f"made-{number}").exists() for number in range(3)] == [decision == "allow"] * 3


@pytest.mark.exhaustive
async def test_the_first_word_counts(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    workspace = shared.workspace()
    commands = [tool("Bash", command="touch first"), tool("Bash", command="touch second")]
    script = model.script("first", *commands, say("done"))
    run = await steersman.start(shared.claude(script, workspace=workspace, permissions=ASK))

    first = await approval(steersman, run)
    both = await asyncio.gather(
        steersman.decide(run, first.id, "allow"), steersman.decide(run, first.id, "deny"), return_exceptions=True
    )
    second = await approval(steersman, run, unlike=first.id)
    with pytest.raises(AlreadyDecided, match="was already decided: "):
        await steersman.decide(run, first.id, "allow")
    with pytest.raises(AlreadyDecided, match="no approval unheard-of"):
        await steersman.decide(run, "unheard-of", "allow")
    await steersman.decide(run, second.id, "deny")
    await steersman.result(run)

    refused = [each for each in both if isinstance(each, AlreadyDecided)]
    assert len(refused) == 1
    allowed = not isinstance(both[0], AlreadyDecided)
    assert (workspace / "first").exists() == allowed
    assert not (workspace / "second").exists()


@pytest.mark.exhaustive
async def test_without_an_answer_it_is_denied_in_time_and_waiting_is_not_idling(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    workspace = shared.workspace()
    script = model.script("silence", tool("Bash", command="touch made"), say("nobody there"))
    limits = {"approval_s": 6, "idle_s": 4}
    run = await steersman.start(shared.claude(script, workspace=workspace, permissions=ASK, limits=limits))

    result = await steersman.result(run)

    assert result.text == "nobody there"
    assert not (workspace / "made").exists()
    assert script.requests[-1].saw("Nobody answered")
    assert await permission_states(steersman, run) == ["asked", "denied"]


@pytest.mark.exhaustive
async def test_an_interrupt_withdraws_the_question(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    workspace = shared.workspace()
    script = model.script("withdrawn", tool("Bash", command="touch made"), say("without it"))
    run = await steersman.start(shared.claude(script, workspace=workspace, permissions=ASK))

    async def open_questions() -> bool:
        return not (await steersman.state(run)).approvals

    asked = await approval(steersman, run)
    await steersman.interrupt(run)
    await until(open_questions)
    with pytest.raises(AlreadyDecided, match="withdrawn"):
        await steersman.decide(run, asked.id, "allow")
    await steersman.steer(run, "go on without it")
    await steersman.result(run)

    assert not (workspace / "made").exists()
    assert await permission_states(steersman, run) == ["asked", "withdrawn"]


@pytest.mark.exhaustive
async def test_a_stop_while_it_waits(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    script = model.script("stopped", tool("Bash", command="touch made"))
    run = await steersman.start(shared.claude(script, permissions=ASK))
    await approval(steersman, run)

    report = await steersman.stop(run)

    assert report.outcome == "stopped"
    assert (await steersman.state(run)).approvals == ()
    async with following(steersman, run) as attached:
        assert in_order(await attached.end())


async def test_the_temporal_cli_decides(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    workspace = shared.workspace()
    script = model.script("cli", tool("Bash", command="touch made"), say("made"))
    run = await steersman.start(shared.claude(script, workspace=workspace, permissions=ASK))

    asked = await approval(steersman, run)
    decision = f'{{"id": "{asked.id}", "decision": "allow"}}'
    await shared.temporal("workflow", "signal", "--workflow-id", run, "--name", "decide", "--input", decision)
    await steersman.result(run)

    assert (workspace / "made").exists()
