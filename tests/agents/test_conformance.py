"""What every agent must do on every runtime, the real programs included."""

import asyncio
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from activities.agents.agent_kind import what_is_wrong
from activities.agents.entry_points import installed_catalog
from activities.ports.runtime import Fenced, Launch, StopTimes
from activities.running.controller import RunController
from activities.workspaces.carry.session_names import named
from activities.workspaces.carry.sessions import session_at, stored
from steersman.contracts.activities import RunOutcome, Settlement
from steersman.contracts.attachments import Attachment
from steersman.contracts.errors import AgentNotInstalled, ErrorType, InvalidRequest
from steersman.contracts.events import is_terminal
from steersman.contracts.run import Approval, MessageKind
from tests.agents.kits import Kit, Staged
from tests.agents.stage import Stage, deliver, message, word
from tests.support.files import below
from tests.support.images import attached, png
from tests.support.processes import command_lines, lives, until

pytestmark = [pytest.mark.integration, pytest.mark.linux]


UNUSUAL = "ü 日本 \N{PILE OF POO} \u2028 \t \\ \" '"


async def ended(task: "asyncio.Task[RunOutcome]", patience_s: float = 40) -> RunOutcome:
    async with asyncio.timeout(patience_s):
        return await task


def said_by_agent(stage: Stage) -> list[str]:
    return [event.text for event in stage.said("message", role="assistant", delta=False)]


def test_workers_have_it_by_this_row(kit: Kit) -> None:
    """What is tested is what a worker of this installation offers."""
    catalog = installed_catalog((kit.name,))
    assert catalog.kinds.get(kit.name) is kit.kind, catalog.problems
    made, problems = catalog.make({}, frozenset())
    assert kit.name in made, problems
    assert what_is_wrong(replace(kit.kind, can=kit.can)) is None


async def test_it_answers(kit: Kit) -> None:
    async with kit.answering(UNUSUAL) as stage:
        outcome = await stage.play()
    assert (outcome.status, outcome.text, outcome.error) == ("succeeded", UNUSUAL, None)
    assert (outcome.attempts, bool(outcome.stop_reason)) == (1, True)
    events = stage.events
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[0].type == "init"
    assert {event.attempt for event in events} == {1}
    assert all(first.time <= second.time for first, second in pairwise(events))
    assert said_by_agent(stage) == [UNUSUAL]
    assert not any(is_terminal(event) for event in events), "the end is the workflow's to tell"
    ((handle, attempt),) = stage.listener.handles
    assert (handle.host, attempt, bool(handle.boot_id), handle.start_time > 0) == ("host", 1, True, True)
    assert outcome.last_event is not None
    assert outcome.last_event.seq <= len(events)
    await until(lambda: not stage.alive())


async def test_it_answers_beside_a_megabyte_of_errors(kit: Kit) -> None:
    """Half of these before the program begins, half while it works."""
    half = "i=0; while [ $i -lt 10 ]; do head -c 50000 /dev/zero | tr '\\0' x; i=$((i+1)); done"
    async with kit.answering(UNUSUAL) as stage:
        launch = stage.agent.launch
        noisy = ("/bin/sh", "-c", f'{{ {half}; }} >&2; {{ {half}; }} >&2 </dev/null & exec "$0" "$@"')

        def launched(*given: Any) -> Launch:
            made = launch(*given)
            return replace(made, argv=(*noisy, *made.argv))

        stage.agent.launch = launched  # type: ignore[method-assign,assignment]
        outcome = await stage.play()
        written = stage.directory.attempt(1).joinpath("journal").stat().st_size
    assert (outcome.status, outcome.text) == ("succeeded", UNUSUAL)
    assert written > 500_000
    assert said_by_agent(stage) == [UNUSUAL]


async def test_another_worker_that_reads_a_finished_journal_comes_to_the_same(kit: Kit) -> None:
    async with kit.answering("the answer") as stage:
        first = await stage.play()
        written = stage.directory.events.read_bytes()
        again = await stage.play()
        assert stage.directory.events.read_bytes() == written
        stage.directory.events.unlink()
        anew = await stage.play()
        assert stage.directory.events.read_bytes() == written
    # Which event was the last is known to who wrote it; the workflow keeps what it was told.
    known = {"last_event"}
    assert first.model_dump(exclude=known) == again.model_dump(exclude=known) == anew.model_dump(exclude=known)
    assert anew.last_event == first.last_event


async def test_another_worker_goes_on_with_the_same_process(kit: Kit) -> None:
    async with kit.waiting("the end") as stage:
        stage.start()
        pid = await stage.pid()
        await stage.wait_for("message", text="at work", delta=kit.streams)
        await stage.detach()
        assert lives(pid)
        _, task = stage.start()
        await until(lambda: len(stage.listener.handles) == 2)
        await kit.go_on(stage)
        outcome = await ended(task)
        events = stage.events
    assert outcome.status == "succeeded"
    assert outcome.text.endswith("the end")
    assert outcome.attempts == 1
    assert [handle.pid for handle, _ in stage.listener.handles] == [pid, pid]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    # Claude Code says its usage twice at the end, which may be in one millisecond.
    said = [event.model_dump_json(exclude={"seq"}) for event in events if event.type != "usage"]
    assert len(set(said)) == len(said)
    sources = {tuple(json.loads(line)["source"]) for line in stage.directory.events.read_bytes().splitlines()}
    assert len(sources) == len(events), "each is of another place in the journal"


async def test_an_answer_given_while_nobody_listened_is_not_lost(kit: Kit) -> None:
    async with kit.waiting("said to nobody") as stage:
        stage.start()
        await stage.wait_for("message", text="at work", delta=kit.streams)
        await stage.detach()
        await kit.go_on(stage)
        outcome = await stage.play()
        assert outcome.status == "succeeded"
        assert "said to nobody" in outcome.text


async def test_the_newest_worker_has_it(kit: Kit) -> None:
    async with kit.waiting("the end") as stage:
        _, older = stage.start()
        await stage.wait_for("init")
        _, newer = stage.start()
        await until(lambda: len(stage.listener.handles) == 2)
        with pytest.raises(Fenced):
            await ended(older)
        with pytest.raises(Fenced):
            await stage.session(epoch=1).run()
        await kit.go_on(stage)
        assert (await ended(newer)).status == "succeeded"


async def test_a_stop_leaves_nothing(kit: Kit) -> None:
    async with kit.working() as stage:
        session, task = stage.start()
        await stage.wait_for("message", text="at work", delta=False)
        await until(lambda: Path(stage.request.workspace.path, "child").exists())
        assert len(stage.alive()) >= 2
        report = await session.stop("cancelled")
        assert not stage.alive()
        outcome = await ended(task)
    assert (report.outcome, report.how, report.left) == ("stopped", "killed", ())
    assert report.processes >= 2
    assert (outcome.status, outcome.error, outcome.attempts) == ("stopped", None, 1)


async def test_a_stop_by_another_hand_ends_the_session(kit: Kit) -> None:
    async with kit.working() as stage:
        _, task = stage.start()
        await stage.wait_for("message", text="at work", delta=False)
        report = await stage.runtime.stop(stage.key, StopTimes(0, 0.1), "cancelled")
        assert report.outcome == "stopped"
        assert (await ended(task)).status == "stopped"
        again = await stage.runtime.stop(stage.key, StopTimes(0, 0.1), "cancelled")
        assert again.outcome in {"stopped", "already_finished"}
        assert not stage.alive()
        assert (await stage.play()).status == "stopped", "nothing starts after a stop"
        assert not stage.alive()


async def test_a_stop_before_the_start_prevents_it(kit: Kit) -> None:
    async with kit.answering("never") as stage:
        report = await stage.runtime.stop(stage.key, StopTimes(0, 0.1), "cancelled")
        assert (report.outcome, report.processes) == ("stopped", 0)
        outcome = await stage.play()
        assert (outcome.status, outcome.attempts, stage.events) == ("stopped", 0, [])


async def test_a_silent_agent_is_stopped(kit: Kit) -> None:
    async with kit.working(limits={"idle_s": 0.5}) as stage:
        outcome = await stage.play()
        assert not stage.alive()
    assert (outcome.status, outcome.error) == ("failed", ErrorType.RUN_TIMED_OUT)
    assert outcome.message == "limits.idle_s: the agent said nothing for 0.5 s"


async def test_a_killed_agent_goes_on_or_is_a_crash_with_facts(kit: Kit) -> None:
    async with kit.waiting("the end") as stage:
        _, task = stage.start()
        await stage.wait_for("message", text="at work", delta=kit.streams)
        await stage.kill()
        outcome = await ended(task, 100)  # a session of Gemini CLI's can be had again in the next minute
    if kit.can.resume:
        assert (outcome.status, outcome.attempts) == ("succeeded", 2), outcome
        assert outcome.text.endswith("the end")
        return
    assert (outcome.status, outcome.error, outcome.attempts) == ("failed", ErrorType.AGENT_CRASHED, 1)
    assert outcome.facts["signal"] == 9
    assert outcome.facts["exit_code"] is None


async def test_a_program_that_is_missing(kit: Kit) -> None:
    """Told when the host is claimed, or at the latest when the program is started."""
    try:
        async with kit.missing() as stage:
            outcome = await stage.play()
    except AgentNotInstalled:
        return
    assert (outcome.status, outcome.error, outcome.attempts) == ("failed", ErrorType.AGENT_NOT_INSTALLED, 0)


async def test_an_option_it_does_not_know_is_refused_by_name(kit: Kit) -> None:
    with pytest.raises(InvalidRequest, match="colour"):
        async with kit.answering("never", options={"colour": "red"}):
            pass


async def test_a_directory_that_vanished_is_a_workspace_error(kit: Kit) -> None:
    async with kit.answering("never") as stage:
        Path(stage.request.workspace.path).rmdir()
        outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.WORKSPACE_ERROR)
        assert "workspace.path" in (outcome.message or "")


async def test_secrets_are_in_no_argument_and_in_no_file_of_the_run(kit: Kit) -> None:
    secret = "sk-very-secret-value"
    async with kit.waiting("the end") as stage:
        stage.environment["ANTHROPIC_API_KEY"] = stage.environment["MY_TOKEN"] = secret
        _, task = stage.start()
        await stage.wait_for("init")
        assert not [line for line in command_lines().values() if secret in line]
        await kit.go_on(stage)
        await ended(task)
        files = [path for path in below(stage.directory.path) if path.is_file()]
        assert files
        assert not [path for path in files if secret.encode() in path.read_bytes()]
        # Of the library that opencode unpacks there the program alone decides the mode; nobody else comes that far.
        assert not [path for path in files if path.stat().st_mode & 0o077 and path.suffix != ".so"]
        assert not [path for path in files if path.parent.stat().st_mode & 0o077]


# Declared is observed: what an agent's row claims works, and what works is claimed.


SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
VALUE = {"answer": 42}


def told_of(outcome: RunOutcome, settled: Settlement) -> str:
    """What became of a message in the end."""
    return next((each.state for each in outcome.messages if each.id == settled.id), settled.state)


async def led_on(kit: Kit, stage: Stage, task: "asyncio.Task[RunOutcome]") -> RunOutcome:
    """How it ends that may go on: some break off what they wait for as soon as they are told something."""
    going = asyncio.create_task(kit.go_on(stage))
    await asyncio.wait([going, task], return_when=asyncio.FIRST_COMPLETED, timeout=40)
    going.cancel()
    return await ended(task)


async def played(staged: Staged) -> RunOutcome | None:
    """How a run ended that asks for what is not declared; None where the agent refused it."""
    try:
        async with staged as stage:
            return await stage.play()
    except InvalidRequest:
        return None


@pytest.mark.parametrize("asked", [False, True], ids=["unasked", "asked"])
async def test_messages_are_taken_as_declared(kit: Kit, *, asked: bool) -> None:
    """`steer`: acknowledged. `soft_steer`: given, and never acknowledged. Neither: rejected."""
    if asked and not kit.asked:
        pytest.skip("nothing has to be asked for")
    async with kit.waiting("the end", **(kit.asked if asked else {})) as stage:
        can = kit.kind.capabilities(stage.request)
        session, task = stage.start()
        await stage.wait_for("message", text="at work", delta=kit.streams)
        (settled,) = (await deliver(session, message("steer", "hello"))).messages
        outcome = await led_on(kit, stage, task)
    assert (outcome.status, outcome.text.endswith("the end")) == ("succeeded", True)
    last = told_of(outcome, settled)
    observed = "steer" if last == "acknowledged" else "soft_steer" if settled.state == "delivered" else last
    assert observed == ("steer" if can.steer else "soft_steer" if can.soft_steer else "rejected"), settled


async def test_it_is_interrupted_as_declared(kit: Kit) -> None:
    """The turn ends, and the same process goes on with what it is told."""
    async with kit.waiting("the end", **kit.asked) as stage:
        can = kit.kind.capabilities(stage.request)
        session, task = stage.start()
        await stage.wait_for("message", text="at work", delta=kit.streams)
        (settled,) = (await deliver(session, message("interrupt", "make it short"))).messages
        if can.interrupt:
            assert settled.state in {"acknowledged", "delivered"}, settled
        else:
            assert settled.state == "rejected", f"it takes an interrupt, and does not declare it: {settled}"
            await kit.go_on(stage)
        outcome = await ended(task)
    assert (outcome.status, outcome.attempts, outcome.text.endswith("the end")) == ("succeeded", 1, True)
    assert told_of(outcome, settled) == ("acknowledged" if can.interrupt else "rejected")


async def test_it_waits_where_an_interrupt_says_nothing(kit: Kit) -> None:
    """It says so at once, and does nothing until it is told how to go on."""
    if not kit.can.interrupt:
        return
    async with kit.waiting("the end", **kit.asked) as stage:
        session, task = stage.start()
        await stage.wait_for("message", text="at work", delta=kit.streams)
        (told,) = (await deliver(session, message("interrupt"))).messages
        assert told.state in {"acknowledged", "delivered"}, told
        await until(lambda: task.done() or any(each.awaits_message for each in stage.listener.progress))
        assert session.snapshot().awaits_message, "it is not `parked`"
        await deliver(session, message("interrupt", "make it short", "m-2"))
        await until(lambda: task.done() or not session.snapshot().awaits_message)
        outcome = await ended(task)
    assert (outcome.status, outcome.attempts, outcome.text.endswith("the end")) == ("succeeded", 1, True)


@pytest.mark.parametrize("kind", ["interrupt", pytest.param("steer", marks=pytest.mark.exhaustive)])
async def test_it_is_given_images_as_declared(kit: Kit, kind: MessageKind) -> None:
    """With its prompt, and with what it is told while it works."""
    first, second = (Attachment.model_validate(attached(png(red), f"{red}.png")) for red in (50, 250))
    if not kit.can.images:
        outcome = await played(kit.answering("seen", undeclared={"attachments": [first.model_dump()]}))
        assert outcome is None or first.data not in kit.asked_of_model(), "it is given images, and does not declare it"
        return
    if kind == "steer" and not (kit.can.steer or kit.can.soft_steer):
        return
    async with kit.waiting("the end", attachments=[first.model_dump()], **kit.asked) as stage:
        session, task = stage.start()
        await stage.wait_for("message", text="at work", delta=kit.streams)
        (settled,) = (await deliver(session, message(kind, "and that", images=(second,)))).messages
        assert settled.state in {"acknowledged", "delivered"}, settled
        outcome = await led_on(kit, stage, task)
    assert (outcome.status, outcome.text.endswith("the end")) == ("succeeded", True)
    asked = kit.asked_of_model()
    assert [each.name for each in (first, second) if each.data in asked] == ["50.png", "250.png"]
    assert "[Images: 50.png]" in asked


@pytest.mark.timeout(300)  # of which Gemini CLI waits a minute before it goes on with a session
async def test_it_resumes_and_forks_sessions_as_declared(kit: Kit) -> None:
    async with kit.answering("first") as stage:
        first = await stage.play()
    begun, used = first.session_id, (first.turns, first.usage, first.cost_usd)
    if not kit.can.resume:
        again = await played(kit.answering("second", undeclared={"session": begun or "some-session"}))
        resumed = again is not None and again.status == "succeeded" and again.session_id == (begun or "some-session")
        assert not resumed, "it resumes sessions, and does not declare it"
        assert (stage.agent.sessions, kit.can.fork) == (None, False)
        return
    assert begun
    async with kit.answering("second", session=begun) as stage:
        outcome = await stage.play()
    assert (outcome.status, outcome.text, outcome.session_id) == ("succeeded", "second", begun)
    assert (outcome.turns, outcome.usage, outcome.cost_usd) == used, "the past is no part of what it used"
    if not kit.can.fork:
        forked = await played(kit.answering("third", undeclared={"session": begun, "fork_session": True}))
        assert forked is None or forked.session_id in {None, begun}, "it forks sessions, and does not declare it"
        return
    async with kit.answering("third", session=begun, fork_session=True) as stage:
        outcome = await stage.play()
    assert (outcome.status, outcome.text) == ("succeeded", "third")
    assert outcome.session_id not in {None, begun}
    assert (outcome.turns, outcome.usage, outcome.cost_usd) == used, "the past is no part of what it used"
    async with kit.answering("fourth", session=begun) as stage:
        outcome = await stage.play()
    assert (outcome.text, outcome.session_id) == ("fourth", begun), "the session that was forked is as it was"


async def test_it_answers_by_a_schema_as_declared(kit: Kit) -> None:
    if not kit.can.structured_output:
        answered = await played(kit.answering_by_schema(VALUE, undeclared={"output_schema": SCHEMA}))
        assert answered is None or answered.structured is None, "it answers by a schema, and does not declare it"
        return
    async with kit.answering_by_schema(VALUE, output_schema=SCHEMA) as stage:
        outcome = await stage.play()
    assert (outcome.status, outcome.structured) == ("succeeded", VALUE)
    async with kit.answering("that is no answer by a schema") as stage:
        assert (await stage.play()).structured is None, "nobody asked for one"


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_it_asks_for_approval_as_declared(kit: Kit, decision: str) -> None:
    if not kit.can.permissions:
        await _asks_nobody(kit.asking(undeclared={"permissions": {"mode": "ask"}}))
        return
    async with kit.asking(permissions={"mode": "ask"}) as stage:
        session, task = stage.start()
        await until(lambda: stage.listener.asks or task.done(), 40)
        assert stage.listener.asks, "it declares that it asks, and asked nobody"
        asked, made = stage.listener.asks[0].approval, stage.workspace / "asked"
        assert not made.exists(), "it did it before it was allowed"
        await deliver(session, word(asked.id, decision, asked.tool))
        if kit.asks_twice:
            await _a_second_call_is_a_second_question(stage, session, task, asked)
        await ended(task)
        assert made.exists() == (decision == "allow")
        assert not (stage.workspace / "again").exists(), "it did what it was refused"


async def _a_second_call_is_a_second_question(
    stage: Stage, session: RunController, task: "asyncio.Task[RunOutcome]", first: Approval
) -> None:
    """Also where the model gives both the same id. An agent may end its turn where the first one was denied."""
    await until(lambda: stage.listener.asks[1:] or task.done(), 40)
    for each in stage.listener.asks[1:]:
        assert each.approval.id != first.id, "a word on the first call would count for the second one"
        await deliver(session, word(first.id, "allow", first.tool))
        await deliver(session, word(each.approval.id, "deny", first.tool))


async def _asks_nobody(staged: Staged) -> None:
    try:
        async with staged as stage:
            _, task = stage.start()
            await until(lambda: stage.listener.asks or task.done(), 40)
            assert not stage.listener.asks, "it asks for approval, and does not declare it"
    except InvalidRequest:
        return


async def test_output_of_a_tool_at_work_is_told_as_the_kit_says(kit: Kit) -> None:
    staged = kit.working_aloud()
    if staged is None:
        pytest.skip("it has no tool that puts anything out")
    async with staged as stage:
        _, task = stage.start()
        await until(lambda: stage.said("tool_use"), 40)
        if kit.tells_output:
            await until(lambda: stage.said("tool_output"), 40)
            assert not stage.said("tool_result"), "it is told while the tool works"
        (stage.workspace / "go").touch()
        outcome = await ended(task, 60)
        (used,), told, (result,) = (stage.said(f"tool_{kind}") for kind in ("use", "output", "result"))
        written = stage.directory.events.read_bytes()
        stage.directory.events.unlink()
        await stage.play()
        assert stage.directory.events.read_bytes() == written
    assert outcome.status == "succeeded"
    assert bool(told) == kit.tells_output, "it does not tell what its kit says" if kit.tells_output else "it tells more"
    assert {event.id for event in (*told, result)} == {used.id}
    assert all(used.seq < event.seq < result.seq for event in told)
    assert "working" in "".join(event.text for event in told) or not told
    assert "worked" in result.text


async def test_it_reports_what_it_uses_as_declared(kit: Kit) -> None:
    async with kit.answering("42, of course") as stage:
        outcome = await stage.play()
    tokens = sum(outcome.usage.model_dump().values())
    used = {"turns": outcome.turns > 0, "tokens": tokens > 0, "cost": outcome.cost_usd > 0}
    declared = {name for name in used if getattr(kit.can, name)}
    assert {name for name, is_used in used.items() if is_used} - kit.more == declared, outcome


@pytest.mark.parametrize("renamed", [True, False])
async def test_its_session_goes_on_wherever_its_files_are(kit: Kit, private: Path, *, renamed: bool) -> None:
    """In another directory of another machine, and under another id, a conversation that only grows."""
    async with kit.answering("the first word") as stage:
        session = (await stage.play()).session_id
    sessions = stage.agent.sessions
    if sessions is None:
        return
    assert kit.can.resume
    assert session
    assert sessions.begun(stage.directory.agent_key, 1) in (session, None)
    home, files = Path(sessions.home(stage.environment) or ""), sessions.files(session, stage.workspace)
    assert files
    sent = stored(home, files)
    assert sent
    conversation = Path(session_at(str(home), files).location(""))
    its = [path for path in below(home) if session in str(path.relative_to(home)) and path.is_file()]
    others = [str(path.relative_to(home)) for path in its if path != conversation]
    others = [name for name in others if not re.fullmatch(kit.broken_off, name)]
    assert all(files.folder and name.startswith(f"{files.folder}/") for name in others)

    (private / "there").mkdir()
    name = sessions.kept(stage.directory.agent_key, session) if renamed else session
    async with kit.elsewhere(private / "there").answering("the second word", session=name) as there:
        copied = sessions.files(name, there.workspace)
        assert copied
        brought = named(sent, (session, files), (name, copied), ())
        at = session_at(sessions.home(there.environment) or "", copied, copied.brought or brought.at)
        brought.write(at)
        place = Path(at.location(""))
        before = place.read_bytes()
        outcome = await there.play()
    assert (outcome.text, outcome.session_id) == ("the second word", name)
    assert place.read_bytes().startswith(before)
    assert len(place.read_bytes()) > len(before)
