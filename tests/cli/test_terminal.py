"""`steer` at a real terminal: colors, Ctrl-C's menu, approvals, and typing while the agent talks."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from steersman.client import Steersman
from tests.cli.steer import Steer
from tests.cli.terminal import Terminal
from tests.cli.test_commands import begin
from tests.client.fake_host import FakeHost, init, said, succeeded, tool_use
from tests.support.temporal import DevServer

pytestmark = pytest.mark.acceptance
MENU = "[K]eep running"


async def until(what: object) -> None:
    """Wait until a condition holds."""
    assert callable(what)
    async with asyncio.timeout(10):
        while not what():
            await asyncio.sleep(0.01)


async def test_colors_only_where_they_are_wanted(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await begin(steersman, workspace)
    fake_host.show(run, init(), tool_use("Bash", command="ls"), said("hi \x1b[5mthere"))
    fake_host.finish(run, succeeded())
    colored = await steer.at_terminal("attach", run)
    assert await colored.ended() == 0
    await colored.until("succeeded")
    assert "\x1b[1;36mBash" in colored.raw
    assert "hi ␛[5mthere" in colored.raw
    assert "\x1b[1;32msucceeded" in colored.raw
    plain = await steer.at_terminal("attach", run, NO_COLOR="1")
    assert await plain.ended() == 0
    await plain.until("succeeded")
    assert "36m" not in plain.raw


async def test_ctrl_c_keeps_the_run_by_default(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await begin(steersman, workspace)
    fake_host.show(run, init(), said("first"))
    terminal = await steer.at_terminal("attach", run)
    await terminal.until("first")
    terminal.ctrl_c()
    await terminal.until(MENU)
    await terminal.until(">")
    fake_host.show(run, said("second"))
    terminal.type("x")
    await terminal.until("x")
    assert "second" not in terminal.text, "what is typed must stay readable"
    terminal.type("\x7f\n")
    await terminal.until("second")
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0


async def test_a_second_ctrl_c_leaves(steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str) -> None:
    run = await begin(steersman, workspace)
    fake_host.show(run, init(), said("first"))
    terminal = await steer.at_terminal("attach", run)
    await terminal.until("first")
    terminal.ctrl_c()
    await terminal.until(MENU)
    terminal.ctrl_c()
    assert await terminal.ended() == 130
    await terminal.until(f"steer attach {run} --after 2")
    assert (await steersman.state(run)).phase == "running"


async def test_leaving_a_closed_run_does_not_say_that_it_goes_on(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await begin(steersman, workspace)
    fake_host.show(run, init(), said("first"))
    terminal = await steer.at_terminal("attach", run)
    await terminal.until("first")
    await steersman.temporal.get_workflow_handle(run).terminate()
    terminal.ctrl_c()
    await terminal.until(MENU)
    terminal.ctrl_c()
    assert await terminal.ended() == 130
    await terminal.until(f"the run has closed; read on with: steer attach {run} --after 2")


async def test_interrupting_with_a_message(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await begin(steersman, workspace)
    fake_host.show(run, init(), said("first", delta=True))
    terminal = await steer.at_terminal("attach", run)
    await terminal.until("first")
    terminal.ctrl_c()
    await terminal.until(">")
    terminal.type("i\n")
    await terminal.until("Message")
    await terminal.until(">")
    terminal.type("use the other door\n")
    await terminal.until("interrupt acknowledged (mid_turn)")
    assert [(each.kind, each.text) for each in fake_host.fake_run(run).messages] == [
        ("interrupt", "use the other door")
    ]
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0


async def test_stopping_from_the_menu(steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str) -> None:
    run = await begin(steersman, workspace)
    terminal = await steer.at_terminal("attach", run)
    fake_host.show(run, said("first"))
    await terminal.until("first")
    terminal.ctrl_c()
    await terminal.until(">")
    terminal.type("s\n")
    await terminal.until("stopped: 3 processes terminated, 42 ms")
    await terminal.until("cancelled")
    assert await terminal.ended() == 6


@pytest.mark.exhaustive
async def test_run_can_be_left_while_it_is_queued(steer: Steer, steersman: Steersman, workspace: str) -> None:
    terminal = await steer.at_terminal("run", "claude", "hi", "-w", workspace, "--id", "run-queued")
    await terminal.until("run run-queued")
    await terminal.until("no worker has taken the run: it waits for one")
    await terminal.until("Take it back: steer stop run-queued")
    terminal.ctrl_c()
    await terminal.until(MENU)
    terminal.ctrl_c()
    assert await terminal.ended() == 130
    await steersman.temporal.get_workflow_handle("run-queued").terminate()


@pytest.mark.parametrize(
    ("keys", "decision", "remember", "message"),
    [("y", "allow", False, None), ("a", "allow", True, None), ("n", "deny", False, None), ("m", "deny", False, "no")],
)
async def test_approvals_are_asked(
    steer: Steer,
    fake_host: FakeHost,
    steersman: Steersman,
    workspace: str,
    keys: str,
    decision: str,
    remember: bool,  # noqa: FBT001 - pytest fills it in
    message: str | None,
) -> None:
    run = await begin(steersman, workspace)
    terminal = await steer.at_terminal("attach", run)
    fake_host.show(run, init())
    await terminal.until("session")
    terminal.type("y\n")  # typed before there was a question: no answer to it
    await fake_host.ask(run, "a-1", "Bash", command="make\x1b[2J install")
    await terminal.until("command: make␛[2J install")
    await terminal.until("Allow?")
    await terminal.until(">")
    assert not fake_host.fake_run(run).decisions
    terminal.type(f"{keys}\n")
    if message:
        await terminal.until("Tell the agent >")
        terminal.type(f"{message}\n")
    await until(lambda: fake_host.fake_run(run).decisions)
    made = fake_host.fake_run(run).decisions[0].decision
    assert (made.decision, made.remember, made.message) == (decision, remember, message)
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0


@pytest.mark.parametrize("typed", ["all the tests, not only the slow", "you should not", "maybe", "yes please"])
async def test_a_sentence_that_was_being_typed_decides_nothing(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str, typed: str
) -> None:
    run = await begin(steersman, workspace)
    terminal = await steer.at_terminal("attach", run)
    await fake_host.ask(run, "a-1", "Bash", command="make")
    await terminal.until("no, and say why) >")
    terminal.type(f"{typed}\n")
    await terminal.until("is none of y, n, a, m: nothing is decided")
    await terminal.until("no, and say why) >")
    assert not fake_host.fake_run(run).decisions
    terminal.type("No\n")
    await until(lambda: fake_host.fake_run(run).decisions)
    assert fake_host.fake_run(run).decisions[0].decision.decision == "deny"
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0


async def at_menu(steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str) -> tuple[str, Terminal]:
    """A run, and a terminal that is attached to it and shows the menu of Ctrl-C."""
    run = await begin(steersman, workspace)
    terminal = await steer.at_terminal("attach", run)
    fake_host.show(run, init())
    await terminal.until("session")
    terminal.ctrl_c()
    await terminal.until(MENU)
    return run, terminal


async def test_a_sentence_at_the_menu_of_ctrl_c_stops_nothing(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run, terminal = await at_menu(steer, fake_host, steersman, workspace)
    await terminal.until(") >")
    terminal.type("should go on\n")
    await terminal.until("'should go on' is none of k, i, s")
    await terminal.until(MENU)
    await terminal.until(") >")
    terminal.type("k\n")
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0


PASTED = "Do A.\rThen do B.\rNever delete C"


async def test_lines_that_are_pasted_at_a_question_are_one_message(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run, terminal = await at_menu(steer, fake_host, steersman, workspace)
    terminal.type("i\n")
    await terminal.until("just interrupt) >")
    terminal.type(PASTED)
    await terminal.until("interrupt acknowledged")
    await fake_host.ask(run, "a-1", "Bash", command="make")
    await terminal.until("Allow?")
    terminal.type("m\n")
    await terminal.until("Tell the agent >")
    terminal.type(PASTED)
    await until(lambda: fake_host.fake_run(run).decisions)
    told = PASTED.replace("\r", "\n")
    assert fake_host.fake_run(run).decisions[0].decision.message == told
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0
    assert [(each.kind, each.text) for each in fake_host.fake_run(run).messages] == [("interrupt", told)]


async def test_an_approval_given_elsewhere_takes_the_question_back(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await begin(steersman, workspace)
    terminal = await steer.at_terminal("attach", run)
    await fake_host.ask(run, "a-1", "Bash", command="make")
    await terminal.until("Allow?")
    await steersman.decide(run, "a-1", "allow")
    await terminal.until("allowed")
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0
    again = await steer.at_terminal("attach", run)
    assert await again.ended() == 0
    assert "Allow?" not in again.text, "a settled question is not asked again"


class Question:
    """Somebody at a terminal is asked whether a run may `make`; the server is the test's own."""

    def __init__(self, server: DevServer, fake_host: FakeHost, run: str, terminal: Terminal) -> None:
        self.server, self.terminal = server, terminal
        self._host, self._run = fake_host, run

    async def is_answered(self) -> None:
        """Said once the server is back, and heard by the agent."""
        self.server.start()
        while not self._host.fake_run(self._run).decisions:
            self.terminal.type("y\n")
            await asyncio.sleep(2)
        self._host.finish(self._run, succeeded())
        assert await self.terminal.ended() == 0


@pytest.fixture
async def question(tmp_path: Path, workspace: str) -> AsyncIterator[Question]:
    server = DevServer(tmp_path).start()
    steer = Steer(server.address, tmp_path)
    try:
        steersman = Steersman(await server.default.connect())
        async with FakeHost(steersman.temporal).at_work() as fake_host:
            run = await begin(steersman, workspace)
            terminal = await steer.at_terminal("attach", run)
            await fake_host.ask(run, "a-1", "Bash", command="make")
            await terminal.until("Allow?")
            yield Question(server, fake_host, run, terminal)
    finally:
        await steer.close()
        server.close()


async def test_a_question_outlives_the_server(question: Question) -> None:
    question.server.kill()
    question.terminal.type("y\n")
    await question.terminal.until("does not answer")
    await question.terminal.until("Allow?")
    await question.is_answered()


@pytest.mark.exhaustive
@pytest.mark.timeout(240)
async def test_an_outage_is_told_at_a_question(question: Question) -> None:
    """A minute passes before the server counts as away."""
    question.server.kill()
    await question.terminal.until("waiting", 120)
    await question.terminal.until("Allow?")
    await question.is_answered()


async def test_what_waited_before_is_asked_too(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await begin(steersman, workspace)
    await fake_host.ask(run, "a-1", "Bash", command="x" * 3000 + " && rm -rf /")
    terminal = await steer.at_terminal("attach", run, "--after", "1")
    await terminal.until("are not shown")
    await terminal.until("[v]iew")
    terminal.type("v\n")
    await terminal.until("rm -rf /")
    await terminal.until(">")
    terminal.ctrl_c()
    await terminal.until(MENU)
    terminal.ctrl_c()
    assert await terminal.ended() == 130
    assert not fake_host.fake_run(run).decisions


async def test_a_run_that_ends_takes_its_questions_along(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await begin(steersman, workspace)
    terminal = await steer.at_terminal("attach", run)
    await fake_host.ask(run, "a-1", "Bash", command="make")
    await terminal.until("Allow?")
    terminal.ctrl_c()
    await terminal.until(MENU)
    terminal.type("s\n")
    await terminal.until("stopped: 3 processes")
    assert await terminal.ended() == 6


async def test_the_menu_offers_what_the_agent_can_do(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await steersman.start({"agent": "process", "command": ["true"], "workspace": {"path": workspace}})
    terminal = await steer.at_terminal("attach", run)
    fake_host.show(run, said("first"))
    await terminal.until("first")
    terminal.ctrl_c()
    await terminal.until("[S]top")
    await terminal.until(">")
    assert "[I]nterrupt" not in terminal.text
    terminal.type("i\n")
    await terminal.until('agent "process" cannot interrupt: stop the run, or wait for its end')
    await terminal.until(">")
    terminal.type("s\n")
    await terminal.until("cancelled")
    assert await terminal.ended() == 6
    assert fake_host.fake_run(run).messages == []
