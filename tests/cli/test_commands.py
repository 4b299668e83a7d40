"""`steer` on pipes: what a script and a person get from each command, and the exit codes."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.agents import CAPABILITIES
from steersman.contracts.errors import AgentFailed
from tests.cli.steer import ROOT, Steer, ended, line_with
from tests.client.fake_host import FakeHost, init, said, succeeded, tool_output, tool_result, tool_use
from tests.support.images import png
from tests.support.processes import until

pytestmark = pytest.mark.acceptance


async def begin(steersman: Steersman, workspace: str, **fields: Any) -> str:
    """A run of the fake host's, at work."""
    run = await steersman.start({"agent": "claude", "prompt": "go", "workspace": {"path": workspace}} | fields)

    async def running() -> bool:
        return (await steersman.state(run)).phase == "running"

    await until(running)
    return run


async def test_a_run_that_waits_to_be_told_how_to_go_on_says_so(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await begin(steersman, workspace)
    await fake_host.await_message(run)

    async def listed() -> bool:
        answer = await steer("list", f'WorkflowId="{run}" AND RunPhase="waiting"')
        return f"{run} waits for a message, as its turn was interrupted" in answer.out

    await until(listed)
    shown = dict(line.split(maxsplit=1) for line in (await steer("show", run)).out.splitlines())
    assert shown["phase"] == "waiting"
    assert shown["waits"] == "for a message, as its turn was interrupted"
    fake_host.finish(run, succeeded())
    await steersman.result(run)
    assert "waits for" not in (await steer("show", run)).out


async def test_run_streams_and_ends_with_what_it_cost(steer: Steer, fake_host: FakeHost, workspace: str) -> None:
    run = "run-streams"
    fake_host.show(
        run,
        init(),
        said("Look", delta=True, message_id="m1"),
        said("ing ...", delta=True, message_id="m1"),
        said("Looking ...", message_id="m1"),
        tool_use("Bash", command="git status"),
        tool_result("Bash", "\n".join(f"file {n}" for n in range(20))),
        said("All done", message_id="m2"),
    )
    fake_host.finish(run, succeeded())
    answer = await steer("run", "claude", "fix it", "-w", workspace, "--id", run)
    assert answer.code == 0
    assert answer.out.startswith(f"run {run}\n")
    assert answer.out.count("Looking ...") == 1
    assert "Bash git status" in answer.out
    assert "file 3" in answer.out
    assert "file 4" not in answer.out
    assert "16 more lines" in answer.out
    assert "succeeded · $0.0123 · 2 turns" in answer.out.splitlines()[-1]
    assert "\x1b" not in answer.out


async def test_output_of_tools_at_work_on_pipes(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await begin(steersman, workspace)
    output = [tool_output("Bash", f"test {number}\n") for number in range(10)]
    fake_host.show(run, init(), tool_use("Bash", command="make"), *output, tool_result("Bash", "all passed"))
    fake_host.finish(run, succeeded())
    plain = await steer("attach", run)
    assert plain.out.splitlines()[1:-1] == ["▸ Bash make", "  │ all passed"]
    lines = (await steer("attach", run, "-v")).out.splitlines()
    assert lines[-12:-1] == [*(f"  │ test {number}" for number in range(10)), "  │ all passed"]
    as_json = (await steer("attach", run, "--json")).lines
    assert [line["text"] for line in as_json if line["type"] == "tool_output"] == [each.text for each in output]
    assert (await steer("attach", run, "--tail", "3")).out.splitlines()[:2] == ["▸ Bash make", "  │ all passed"]
    assert len((await steer("attach", run, "--tail", "3", "--json")).lines) == 3


async def test_json_lines_are_the_events(steer: Steer, fake_host: FakeHost, workspace: str) -> None:
    run = "run-json"
    fake_host.show(run, init(), said("hi\x1b[31m\x9b\u202e"))
    fake_host.finish(run, succeeded())
    answer = await steer("run", "claude", "fix it", "-w", workspace, "--id", run, "--json")
    assert [line["type"] for line in answer.lines] == ["run", "init", "message", "done"]
    assert answer.lines[0]["id"] == run
    assert answer.lines[2]["text"] == "hi\x1b[31m\x9b\u202e"
    assert answer.out.isascii()
    last = await steer("attach", run, "--json", "--tail", "1")
    assert [line["type"] for line in last.lines] == ["done"]
    assert (await steer("attach", run, "--tail", "1", "--after", "1")).code == 2
    again = await steer("attach", run, "--json", "--after", "1")
    assert [(line["seq"], line["type"]) for line in again.lines] == [(2, "message"), (3, "done")]


async def test_every_word_of_run_reaches_the_request(
    steer: Steer, fake_host: FakeHost, workspace: str, tmp_path: Path
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    words = [
        *("run", "claude", "-", "-d", "-w", workspace, "--id", "run-words", "--model", "m", "--mode", "ask"),
        *("--allow", "Read", "--allow", "Bash(git *)", "--deny", "Write", "--session", "s-9", "--fork"),
        *("--system-prompt", "be brief", "--schema", str(schema), "--env", "A=1=2", "--env", "KEY=from_env:MY_KEY"),
        *("--max-turns", "3", "--max-cost", "0.5", "--max-duration", "15m", "--idle", "90"),
        *("--label", "team=blue", "--option", 'add_dirs=["/x"]', "--on-overlap", "queue"),
    ]
    answer = await steer(*words, stdin="fix\nit")
    assert (answer.code, answer.out) == (0, "run-words\n")
    await asyncio.wait_for(fake_host.fake_run("run-words").started.wait(), 10)
    request = fake_host.fake_run("run-words").request
    assert request.model_dump(mode="json", exclude_defaults=True) == {
        "agent": "claude",
        "prompt": "fix\nit",
        "workspace": {"path": workspace, "on_overlap": "queue"},
        "model": "m",
        "session": "s-9",
        "fork_session": True,
        "system_prompt": "be brief",
        "permissions": {"mode": "ask", "allow": ["Read", "Bash(git *)"], "deny": ["Write"]},
        "output_schema": {"type": "object"},
        "env": {"A": "1=2", "KEY": {"from_env": "MY_KEY"}},
        "limits": {"turns": 3, "cost_usd": 0.5, "duration_s": 900.0, "idle_s": 90.0},
        "labels": {"team": "blue"},
        "options": {"add_dirs": ["/x"]},
    }


async def test_a_request_from_a_file_with_words_over_it(steer: Steer, fake_host: FakeHost, workspace: str) -> None:
    base = {"agent": "process", "command": ["cat"], "workspace": {"path": workspace}, "limits": {"idle_s": 5}}
    answer = await steer(
        "run", "--request", "-", "-d", "--id", "run-file", "--max-duration", "60", "--", "tr", "a", "b",
        stdin=json.dumps(base),
    )  # fmt: skip
    assert answer.code == 0, answer.err
    await asyncio.wait_for(fake_host.fake_run("run-file").started.wait(), 10)
    request = fake_host.fake_run("run-file").request
    assert (request.command, request.limits.idle_s, request.limits.duration_s) == (("tr", "a", "b"), 5, 60)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run", "claude", "fix", "the", "bug"], "unexpected extra argument"),
        (["run", "claude"], "prompt"),
        (["run", "No-Body", "x"], "agent"),
        (["run", "claude", "x", "--env", "API_TOKEN=abc"], "API_TOKEN"),
        (["run", "claude", "x", "--max-duration", "soon"], "--max-duration"),
        (["run", "claude", "x", "--schema", "/nowhere"], "/nowhere"),
        (["run", "claude", "x", "--", "ls"], "command"),
        (["run", "claude", "x", "--max-turns", "0"], "limits.turns"),
        (["run", "claude", "x", "--max-cost", "0"], "limits.cost_usd"),
        (["run", "claude", "x", "--label", "blue"], "--label"),
        (["run", "claude", "x", "--attach", "/nowhere"], "/nowhere"),
        (["steer", "run-1", "x", "--attach", "/bin/sh"], "neither an image"),
        (["attach"], "RUN"),
    ],
)
async def test_wrong_words_are_named_and_exit_with_2(steer: Steer, words: list[str], named: str) -> None:
    answer = await steer(*words)
    assert answer.code == 2
    assert named in answer.err
    assert "Traceback" not in answer.err
    assert "abc" not in answer.err


async def test_how_a_run_ended_is_the_exit_code(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    failed = await begin(steersman, workspace)
    fake_host.finish(failed, AgentFailed("no idea"))
    answer = await steer("attach", failed)
    assert answer.code == 1
    assert "AgentFailed: no idea" in answer.out
    stopped = await begin(steersman, workspace)
    report = await steer("stop", stopped)
    assert (report.code, report.out) == (0, "stopped: 3 processes terminated, 42 ms\n")
    assert (await steer("attach", stopped)).code == 6
    nothing = await steer("attach", stopped, "--after", "9")
    assert (nothing.code, nothing.out) == (6, "")
    assert "no events after number 9" in nothing.err
    again = await steer("stop", stopped, "--json")
    assert (again.code, again.json["outcome"]) == (0, "already_finished")
    fake_host.refuse = "workspace.path: not here"
    refused = await steer("run", "claude", "x", "-w", workspace)
    assert refused.code == 2
    assert "InvalidRequest: workspace.path: not here" in refused.out


async def test_what_is_not_there_has_codes_of_its_own(steer: Steer, fake_host: FakeHost, workspace: str) -> None:
    for words in (["show", "run-none"], ["attach", "run-none"], ["say", "run-none", "x"], ["replay", "run-none"]):
        assert (await steer(*words)).code == 3, words
    assert (await steer("stop", "run-none", "--json")).code == 3
    nowhere = await steer("list", TEMPORAL_ADDRESS="127.0.0.1:1")
    assert nowhere.code == 4
    assert "127.0.0.1:1" in nowhere.err
    assert "steer dev" in nowhere.err


async def test_saying_something(steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str) -> None:
    run = await begin(steersman, workspace)
    answer = await steer("steer", run, "-", stdin="to the left")
    assert answer.code == 0
    assert answer.out.startswith("acknowledged (mid_turn)")
    receipt = await steer("interrupt", run, "stop that", "--id", "m-1", "--json")
    assert (receipt.json["id"], receipt.json["state"]) == ("m-1", "acknowledged")
    assert [(each.kind, each.text) for each in fake_host.fake_run(run).messages] == [
        ("steer", "to the left"),
        ("interrupt", "stop that"),
    ]
    fake_host.finish(run, succeeded())
    await steersman.result(run)
    late = await steer("say", run, "too late")
    assert late.code == 5
    assert "closed" in late.err


async def test_files_that_go_along(steer: Steer, fake_host: FakeHost, workspace: str, tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(png())
    (tmp_path / "notes").write_text("look here")
    files = ["--attach", f"{tmp_path}/red.png", "--attach", f"{tmp_path}/notes"]
    answer = await steer("run", "claude", "what is it?", "-w", workspace, "-d", "--id", "run-files", *files)
    assert answer.code == 0, answer.err
    run = fake_host.fake_run("run-files")
    await asyncio.wait_for(run.started.wait(), 10)
    assert [(each.name, each.is_image) for each in run.request.attachments] == [("red.png", True), ("notes", False)]
    for words in (["steer", "run-files", "and now?"], ["interrupt", "run-files", "stop that"]):
        assert (await steer(*words, *files)).code == 0
    assert [[each.content for each in message.attachments] for message in run.messages] == [[png(), b"look here"]] * 2
    assert "and now? [red.png] [notes]" in (await steer("show", "run-files")).out
    without = await steer("interrupt", "run-files", *files)
    assert (without.code, "attachments go with a text" in without.err) == (2, True)


async def test_approvals(steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str) -> None:
    run = await begin(steersman, workspace)
    assert (await steer("approve", run)).code == 5
    await fake_host.ask(run, "a-1", "Bash", command="make")
    await fake_host.ask(run, "a-2", "Bash", command="rm -rf build")
    which = await steer("approve", run)
    assert which.code == 3
    assert re.search(r"a-2  Bash, denied at [0-9: -]+: rm -rf build", which.err)
    denied = await steer("deny", run, "a-2", "-m", "too much")
    assert (denied.code, denied.out) == (0, "denied Bash: rm -rf build\n")
    assert (await steer("deny", run, "a-2")).code == 5
    allowed = await steer("approve", run, "--remember", "--json")
    assert (allowed.code, allowed.json["id"]) == (0, "a-1")
    decisions = fake_host.fake_run(run).decisions
    await until(lambda: len(decisions) == 2)
    assert [(each.decision.id, each.decision.remember) for each in decisions] == [("a-2", False), ("a-1", True)]
    fake_host.finish(run, succeeded())
    await steersman.result(run)
    closed = await steer("approve", run)
    assert (closed.code, closed.err) == (5, f"error: run {run} has already closed\n")


async def test_looking(steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str) -> None:
    run = await begin(steersman, workspace, labels={"team": "blue"})
    shown = await steer("show", run)
    assert workspace in shown.out
    assert "team=blue" in shown.out
    assert (await steer("show", run, "--json")).json["phase"] == "running"
    while not (await steersman.list(f'WorkflowId="{run}"')):
        await asyncio.sleep(0.05)
    listed = await steer("list", f'WorkflowId="{run}"', "--json")
    assert [(each["id"], each["agent"]) for each in listed.json] == [(run, "claude")]
    assert run in (await steer("list")).out
    assert set((await steer("agents", "--json")).json) == set(CAPABILITIES)
    agents = (await steer("agents")).out
    assert ["process", "no", "asked", "no"] in [line.split()[:4] for line in agents.splitlines()]
    assert "process: soft steer where the request asks for it, by options.messages" in agents
    swept = await steer("prune", "--host", fake_host.host, "--json")
    assert swept.json["pruned"] == ["run-old"]


async def test_a_run_is_known_by_what_was_asked(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    begun = await steer("run", "claude", "Mend the parser, please", "-d", "-w", workspace)
    run = begun.out.strip()
    assert re.fullmatch(r"mend-parser-[2-9a-z]{6}", run)
    other = await steersman.start({"agent": "claude", "prompt": "mend the roof", "workspace": {"path": workspace}})
    await until(lambda: listed(steersman, run, other))
    narrow = await steer.at_terminal("list", COLUMNS="80")
    assert await narrow.ended() == 0
    (row,) = (line for line in narrow.text.splitlines() if run in line)
    assert len(row.rstrip()) <= 80
    assert row.split()[1] in ("claude", "queued")
    assert "Mend the parser, please" in (await steer("list")).out
    wrong = await steer("list", "Colour=1")
    assert (wrong.code, "Colour" in wrong.err) == (2, True)
    shown = await steer("show", "mend-parser")
    assert (shown.code, shown.err) == (0, f"{run}\n")
    assert "Mend the parser, please" in shown.out
    several = await steer("show", "mend")
    assert (several.code, several.out) == (3, "")
    assert f"mend is the beginning of several: {', '.join(sorted((run, other)))}" in several.err
    await fake_host.fake_run(run).started.wait()
    fake_host.finish(run, succeeded("it was a comma"))
    answer = await steer("result", run)
    assert (answer.code, answer.out) == (0, "it was a comma\n")
    assert (await steer("result", run, "--json")).json["text"] == "it was a comma"
    # Lists lag: an id that is one is never taken for the beginning of another.
    newest = await steersman.start({"agent": "claude", "prompt": "x", "workspace": {"path": workspace}}, run_id="mend")
    assert (await steer("show", newest)).err == ""
    assert "it was a comma" in (await steer("show", run)).out


async def listed(steersman: Steersman, *runs: str) -> bool:
    """Whether the server's lists, which lag, have them all."""
    return set(runs) <= {each.id for each in await steersman.list()}


async def test_nothing_the_agent_says_reaches_the_terminal_as_a_command(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2066[bold red]\r\x08 ok"
    run = await begin(steersman, workspace)
    fake_host.show(
        run,
        said(evil),
        said(evil, delta=True, message_id="m"),
        said(evil, message_id="m"),
        tool_use(evil, command=evil),
        tool_result("Bash", evil),
    )
    fake_host.finish(run, AgentFailed(evil))
    answer = await steer("attach", run, FORCE_COLOR="1")
    shown = await steer("show", run)
    for text in (answer.out.replace("\x1b[0m", "").replace("\x1b[", "", 200), shown.out):
        assert not set(text) & set("\x07\x08\r\x9b\u202e\u2066")
    assert "\x1b]" not in answer.out
    assert "\x1b[2J" not in answer.out
    assert "\x1b" not in shown.out
    assert "[bold red]" in answer.out


@pytest.mark.exhaustive
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_detaches_where_nobody_can_be_asked(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str, number: signal.Signals, code: int
) -> None:
    run = await begin(steersman, workspace)
    fake_host.show(run, init(), said("hello"))
    process = await steer.start("attach", run)
    await line_with(process, "hello")
    process.send_signal(number)
    answer = await ended(process)
    assert answer.code == code
    assert f"steer attach {run} --after 2" in answer.err
    assert (await steersman.state(run)).phase == "running"


async def test_a_run_that_was_started_with_a_delay_is_queued_until_then(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = "run-later"
    request = {"agent": "claude", "prompt": "go", "workspace": {"path": workspace}}
    delay = timedelta(seconds=8)
    begins = datetime.now().astimezone() + delay
    await steersman.temporal.start_workflow(
        "AgentRun", request, id=run, task_queue="steersman", start_delay=delay, execution_timeout=timedelta(minutes=5)
    )
    fake_host.show(run, init(), said("hello"))
    fake_host.finish(run, succeeded())
    following = await steer.start("attach", run)
    shown = await steer("show", run)
    assert (shown.code, shown.err) == (0, "")
    assert re.search(r"^phase +queued$", shown.out, re.MULTILINE)
    told = re.search(r"^begins +(\S+ \S+)$", shown.out, re.MULTILINE)
    assert told
    assert abs(datetime.fromisoformat(told[1]).astimezone() - begins) < timedelta(seconds=4)
    assert (await steer("show", run, "--json")).json["phase"] == "queued"
    answer = await ended(following)
    assert answer.code == 0
    assert "hello" in answer.out
    assert not re.search(r"^begins", (await steer("show", run)).out, re.MULTILINE)


async def test_a_run_whose_log_is_gone_says_so(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await begin(steersman, workspace)
    fake_host.show(run, init(), said("hello"))
    fake_host.finish(run, succeeded())
    await steersman.result(run)
    told = f"the events of run {run} are gone from host {fake_host.host}: "
    assert told not in (await steer("attach", run)).err
    del fake_host.fake_runs[run]
    plain = await steer("attach", run)
    assert plain.code == 0
    assert "succeeded" in plain.out
    assert plain.err.startswith(told)
    as_json = await steer("attach", run, "--json")
    assert [line["type"] for line in as_json.lines] == ["done"]
    assert as_json.err.startswith(told)
    assert told in (await steer("attach", run, "--after", "2")).err
    terminal = await steer.at_terminal("attach", run)
    await terminal.until(f"events of run {run} are gone")
    assert await terminal.ended() == 0


async def test_a_reader_that_has_enough_is_no_error(steer: Steer, fake_host: FakeHost, workspace: str) -> None:
    command = f"{sys.executable} -m steersman.cli agents --json | true"
    done = await asyncio.to_thread(
        subprocess.run, ["bash", "-c", command], env=steer.env, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_help_loads_neither_temporal_nor_the_contracts() -> None:
    probe = (
        "import sys; sys.argv = ['steer', '--help']\n"
        "import steersman.cli.main as m; m._code()\n"
        "heavy = {'temporalio', 'pydantic', 'asyncio.subprocess'} & set(sys.modules) - {'asyncio.subprocess'}\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Exit codes" in done.stdout


@pytest.mark.parametrize("words", [("show",), ("stop",), ("list",), ("loop", "show")])
async def test_a_word_that_is_no_text_is_named(steer: Steer, words: tuple[str, ...]) -> None:
    """As a terminal of another encoding gives it."""
    said = await steer(*words, os.fsdecode(b"a\xff"))
    assert (said.code, said.out) == (2, "")
    assert said.err == "error: 'a\\udcff' is no text in UTF-8\n"
