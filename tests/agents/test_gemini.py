"""What Gemini CLI does beyond every agent that speaks ACP: whose settings count, when a session may be loaded."""

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from activities.agents.gemini import sessions, trust
from activities.agents.gemini.agent import GeminiAgent
from activities.ports.admission import Admission, Untrusted
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import PlaceError
from steersman.contracts.request import parse_request
from tests.agents.kits import GeminiKit
from tests.agents.stage import deliver, end, message
from tests.scripted_model import ScriptedModel, hold, say
from tests.support.processes import until

pytestmark = [pytest.mark.integration, pytest.mark.linux]


@pytest.fixture
def gemini(private: Path, model: ScriptedModel) -> GeminiKit:
    kit = GeminiKit(private, model)
    if (missing := kit.not_installed()) is not None:
        pytest.skip(missing)
    return kit


@pytest.mark.exhaustive
@pytest.mark.parametrize("trusted", [True, False])
async def test_what_a_workspace_brings_along_runs_where_it_is_trusted(gemini: GeminiKit, trusted: bool) -> None:  # noqa: FBT001
    async with gemini.run(say("done")) as stage:
        stage.trusted = trusted
        witness = stage.workspace / "witness"
        (stage.workspace / ".gemini").mkdir()
        server = {"command": "touch", "args": [str(witness)]}
        (stage.workspace / ".gemini" / "settings.json").write_text(json.dumps({"mcpServers": {"x": server}}))
        (stage.workspace / "GEMINI.md").write_text("Speak like a pirate.")
        outcome = await stage.play()
        assert witness.exists() == trusted
    assert outcome.status == "succeeded"
    assert gemini.script.requests[0].saw("Speak like a pirate.")
    assert gemini.script.requests[0].saw("Nobody has vouched for the workspace") != trusted


@pytest.mark.exhaustive
async def test_its_tokens_are_counted(gemini: GeminiKit) -> None:
    async with gemini.run(say("done"), model="gemini-2.5-flash") as stage:
        outcome = await stage.play()
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (100, 20)


async def test_what_a_cancelled_turn_was_told_is_told_again(gemini: GeminiKit) -> None:
    """Gemini takes the turn out of its session, and would know nothing of the task."""
    async with gemini.run(hold("one"), say("two"), prompt="the task", system_prompt="be brief") as stage:
        session, task = stage.start()
        await gemini.script.wait_held()
        await deliver(session, message("interrupt", "rather that"))
        outcome = await task
        assert [each.text for each in stage.said("message", role="user")] == ["the task", "rather that"]
    assert outcome.text == "two"
    assert all(gemini.script.requests[-1].saw(each) for each in ("be brief", "the task", "rather that"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("ends", ["end", "kill"])
async def test_a_session_whose_turn_was_interrupted_goes_on(gemini: GeminiKit, ends: str) -> None:
    """Ended by a person, with the next run; killed while it waits for one, with the next process."""
    async with gemini.run(hold("one"), say("two"), prompt="the task") as stage:
        session, task = stage.start()
        await stage.wait_for("message", role="assistant", delta=True)
        if ends == "end":
            await deliver(session, end())
        else:
            await deliver(session, message("interrupt"))
            await stage.kill()
            await until(lambda: len(stage.listener.handles) == 3, 90)  # the second one finds no session
            await deliver(session, message("interrupt", "and then?", "m-2"))
        async with asyncio.timeout(100):
            outcome = await task
    if ends == "end":
        assert (outcome.text, outcome.stop_reason) == ("one", "interrupted")
        async with gemini.again(say("two"), session=outcome.session_id, prompt="and then?") as stage:
            outcome = await stage.play()
    assert (outcome.status, outcome.text) == ("succeeded", "two")
    assert all(gemini.script.requests[-1].saw(each) for each in ("the task", "and then?"))


@pytest.mark.parametrize("needed", ["trust", "session", "nothing"])
def test_settings_that_gemini_would_pass_over_are_refused_where_they_are_needed(needed: str, tmp_path: Path) -> None:
    """A directory that others can write to, as /tmp is, around the files beside the process."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    program = tmp_path / "gemini"
    program.touch(mode=0o755)
    session = {"session": "11111111-2222-4333-8444-555555555555"} if needed == "session" else {}
    request = parse_request({"agent": "gemini", "prompt": "p", "workspace": {"path": str(tmp_path)}, **session})
    admission = Admission({}, tmp_path, untrusted=Untrusted() if needed == "trust" else None)
    agent, key = GeminiAgent({"PATH": str(tmp_path)}), RunKey(run="r", execution="e")
    if needed == "nothing":
        assert agent.launch(key, request, admission, open_to_all / "files", None).argv[0] == str(program)
        return
    with pytest.raises(PlaceError, match="writable by others"):
        agent.launch(key, request, admission, open_to_all / "files", None)


class TestSessions:
    def test_one_of_this_minute_waits_for_the_next(self, tmp_path: Path) -> None:
        while time.time() % 60 > 55:
            time.sleep(0.5)
        minute = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M")
        chats = tmp_path / ".gemini" / "tmp" / "ws" / "chats"
        chats.mkdir(parents=True)
        (chats / f"session-{minute}-0c0ffee0.jsonl").touch()
        (chats / "session-2020-01-01T00-00-0ldc0ffe.jsonl").touch()
        environ = {"HOME": str(tmp_path)}
        left = 60 - time.time() % 60
        waits = sessions.wait_s("0c0ffee0-0000-4000-8000-000000000002", environ, is_here=True)
        assert left - 2 <= waits <= left + 2
        assert sessions.wait_s("0ldc0ffe-0000-4000-8000-000000000002", environ, is_here=True) == 0
        assert sessions.wait_s("0ldc0ffe-0000-4000-8000-000000000002", environ, is_here=False) > 0

    def test_one_that_was_brought_waits_for_nothing(self, tmp_path: Path) -> None:
        """What a process began where it works, it does, also if the run has another one."""
        agent, session = GeminiAgent({"HOME": str(tmp_path)}), "0c0ffee0-0000-4000-8000-000000000002"
        workspace, there = {"path": str(tmp_path)}, {"kind": "ssh", "address": "place"}
        given = {"agent": "gemini", "prompt": "p", "workspace": workspace, "runtime": there, "session": session}
        request = parse_request(given)
        assert agent.session_wait_s(request, session) == 0
        assert agent.session_wait_s(request, session.replace("2", "3")) > 0


class TestTrust:
    @pytest.mark.parametrize(
        ("record", "is_trusted"),
        [
            ({"/a/b": "TRUST_FOLDER"}, True),
            ({"/a": "TRUST_FOLDER"}, True),
            ({"/a": "TRUST_FOLDER", "/a/b": "DO_NOT_TRUST"}, False),
            ({"/a/other": "TRUST_PARENT"}, True),
            ({"/a/b/c": "TRUST_FOLDER"}, False),
            ({"/x": "TRUST_FOLDER"}, False),
            ({"/a/b": True}, False),
            ([], False),
            (None, False),
        ],
    )
    def test_by_its_own_record(self, tmp_path: Path, record: object, *, is_trusted: bool) -> None:
        (tmp_path / ".gemini").mkdir()
        if record is not None:
            (tmp_path / ".gemini" / "trustedFolders.json").write_text(json.dumps(record))
        assert trust.accepted(Path("/a/b"), {"HOME": str(tmp_path)}) is is_trusted


@pytest.mark.exhaustive
@pytest.mark.parametrize("restricted", [True, False])
async def test_a_text_reaches_no_command_of_its_own_where_requests_are_restricted(
    gemini: GeminiKit,
    restricted: bool,  # noqa: FBT001
) -> None:
    """`/extensions install` and the like would change the operator's own configuration, whatever the mode says."""
    command = " /memory list"
    async with gemini.run(say("done"), prompt=command) as stage:
        stage.restricted = restricted
        outcome = await stage.play()
    assert outcome.status == "succeeded"
    assert [request.saw(command) for request in gemini.script.requests] == ([True] if restricted else [])
