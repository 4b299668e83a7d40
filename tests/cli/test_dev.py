"""`steer dev` with a real server and the real worker: ready, used, ended, and what it says when something is wrong."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from steersman.cli.dev_processes import MAX_ENDS
from steersman.client import Steersman
from steersman.contracts import names
from tests.cli.steer import ROOT, Steer, ended, line_with
from tests.support.processes import until
from tests.support.temporal import free_port

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[Steer]:
    """The command for a server that the test starts itself."""
    command = Steer(f"127.0.0.1:{free_port()}", tmp_path)
    yield command
    for process in command.started:
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.communicate(), 30)
    await command.close()


WITHOUT_MODEL = ("--agent", "process")
"""For a worker of no other agent: a fifth of what a start costs is what those programs take to say their versions."""


async def dev(own: Steer, *words: str, ui: tuple[str, ...] = ("--headless",), **env: str) -> asyncio.subprocess.Process:
    """`steer dev`, ready."""
    port = own.env["TEMPORAL_ADDRESS"].rpartition(":")[2]
    process = await own.start("dev", "--port", port, *ui, *words, **env)
    await line_with(process, "Ctrl-C ends them")
    return process


def children(pid: int) -> dict[str, int]:
    """Command line -> pid of a process's children."""
    found = {}
    for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found[Path(f"/proc/{each}/cmdline").read_text().replace("\0", " ")] = int(each)
    return found


def child(pid: int, words: str) -> int:
    return next(number for command, number in children(pid).items() if words in command)


@pytest.mark.linux
async def test_dev_is_all_one_needs(own: Steer, tmp_path: Path) -> None:
    (before := tmp_path / "state" / "steersman" / "dev.db").parent.mkdir(parents=True)
    (kept := before.with_name("dev.db-wal")).touch()
    kept.chmod(0o644)  # as an earlier version left it
    process = await dev(own, "--max-runs", "7")
    server, worker = child(process.pid, "start-dev"), child(process.pid, "worker.py")
    answer = await own("run", "process", "hello", "-w", str(tmp_path), "--id", "run-dev", "--", "cat")
    assert answer.code == 0, answer.err
    assert "hello" in answer.out
    replayed = await own("replay", "run-dev", "--export", str(tmp_path / "history.json"), "--json")
    assert replayed.json["ok"], replayed.out
    assert (tmp_path / "history.json").stat().st_mode & 0o777 == 0o600
    assert (await own("replay", str(tmp_path / "history.json"))).code == 0
    (tmp_path / "open").mkdir()
    begun = await own("run", "process", "-d", "-w", str(tmp_path / "open"), "--id", "run-open", "--", "sleep", "60")
    assert begun.code == 0, begun.err
    still_open = await own("replay", "--open", "--json")
    assert [(each["id"], each["ok"]) for each in still_open.json] == [("run-open", True)], still_open
    assert (await own("stop", "run-open")).code == 0
    nothing_open = await own("replay", "--open", "--json")
    assert (nothing_open.code, nothing_open.json) == (0, [])
    checks = {each["check"]: each for each in (await own("doctor", "--json")).json}
    assert checks["server"]["ok"]
    assert checks["push cancel"]["ok"]
    assert checks["search attributes"]["ok"]
    assert checks["worker"]["ok"]
    assert checks["state directory"]["ok"]
    pruned = await own("prune", "--keep-days", "0", "--dry-run", "--json")
    assert sorted(pruned.json["pruned"]) == ["run-dev", "run-open"]
    elsewhere = await own("--namespace", "nowhere", "doctor", "--json")
    assert elsewhere.code == 1
    assert "nowhere" in elsewhere.json[0]["detail"]
    process.send_signal(signal.SIGINT)
    end = await ended(process)
    assert end.code == 0, end.err
    assert "no agent is at work" in end.err
    for pid in (server, worker):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert before.exists()
    for each in before.parent.glob("dev.db*"):
        assert each.stat().st_mode & 0o077 == 0 or each.suffix == ".lock", "it has every prompt"


@pytest.mark.exhaustive
@pytest.mark.linux
@pytest.mark.parametrize(
    ("words", "name"),
    [("start-dev", "Temporal server"), ("webproxy", "Web UI's proxy")],
)
async def test_dev_says_what_ended_and_ends(own: Steer, words: str, name: str) -> None:
    process = await dev(own, ui=("--ui-port", str(free_port())))
    others = list(children(process.pid).values())
    os.kill(child(process.pid, words), signal.SIGKILL)
    end = await ended(process)
    assert end.code == 1
    assert f"the {name} ended by itself (signal SIGKILL)" in end.err
    assert "ending the Temporal server" in end.err or name == "Temporal server"
    for pid in others:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.linux
async def test_what_dev_started_ends_where_it_is_killed_and_agents_go_on(own: Steer, tmp_path: Path) -> None:
    process = await dev(own, *WITHOUT_MODEL, ui=("--ui-port", str(free_port())))
    begun = await own("run", "process", "-d", "-w", str(tmp_path), "--id", "long", "--", "sleep", "600")
    assert begun.code == 0, begun.err
    async with asyncio.timeout(20):
        while (await own("show", "long", "--json")).json["phase"] != "running":
            pass
    started = children(process.pid).values()
    process.kill()
    await process.wait()
    async with asyncio.timeout(20):
        while any(Path(f"/proc/{pid}").exists() for pid in started):
            await asyncio.sleep(0.05)
    again = await dev(own, *WITHOUT_MODEL)
    assert (await own("show", "long", "--json")).json["phase"] == "running"
    stopped = await own("stop", "long")
    assert stopped.code == 0, stopped.err
    again.send_signal(signal.SIGINT)
    assert (await ended(again)).code == 0


@pytest.mark.linux
async def test_a_worker_that_dies_is_replaced_and_its_agents_are_counted(own: Steer, tmp_path: Path) -> None:
    process = await dev(own, *WITHOUT_MODEL)
    begun = await own("run", "process", "-d", "-w", str(tmp_path), "--id", "long", "--", "sleep", "600")
    assert begun.code == 0, begun.err
    first = child(process.pid, "worker.py")
    os.kill(first, signal.SIGKILL)
    await line_with(process, "worker ready")
    assert child(process.pid, "worker.py") != first
    assert (await own("run", "process", "-w", str(tmp_path), "--on-overlap", "interrupt", "--", "true")).code == 0
    (tmp_path / "other").mkdir()
    again = await own("run", "process", "-d", "-w", str(tmp_path / "other"), "--id", "longer", "--", "sleep", "600")
    assert again.code == 0, again.err

    async def counted(phase: str) -> bool:
        query = f'ExecutionStatus = "Running" AND RunPhase = "{phase}"'
        return len((await own("list", query, "--json")).json) == 1

    await until(lambda: counted("running"))
    # It waits for a person: its agent is there all the same.
    steersman = await Steersman.connect(address=own.env["TEMPORAL_ADDRESS"])
    await steersman.temporal.get_workflow_handle("longer").signal(names.PROGRESSED, {"awaits_message": True})
    await until(lambda: counted("waiting"))
    process.send_signal(signal.SIGINT)
    end = await ended(process)
    assert end.code == 0, end.err
    assert "the worker ended by itself (signal SIGKILL)" in end.err
    assert "1 agent at work goes on by itself" in end.err
    await dev(own, *WITHOUT_MODEL)
    assert (await own("stop", "longer")).code == 0


@pytest.mark.linux
async def test_a_worker_that_dies_again_and_again_is_not_replaced(own: Steer) -> None:
    process = await dev(own, *WITHOUT_MODEL)
    for _ in range(MAX_ENDS - 1):
        os.kill(child(process.pid, "worker.py"), signal.SIGKILL)
        await line_with(process, "worker ready")
    os.kill(child(process.pid, "worker.py"), signal.SIGKILL)
    end = await ended(process)
    assert end.code == 1
    assert end.err.count("the worker ended by itself") == MAX_ENDS


@pytest.mark.exhaustive
async def test_a_worker_that_cannot_start_is_shown_with_its_words(own: Steer) -> None:
    port = own.env["TEMPORAL_ADDRESS"].rpartition(":")[2]
    process = await own.start("dev", "--port", port, "--headless", "--max-runs", "many")
    end = await ended(process)
    assert end.code == 1
    assert "the worker ended by itself (exit code 2)" in end.err
    assert "--max-runs" in end.err


@pytest.mark.exhaustive
async def test_the_web_ui_that_is_said_to_be_ready_shows_pages(own: Steer) -> None:
    port, ui_port = own.env["TEMPORAL_ADDRESS"].rpartition(":")[2], free_port()
    process = await own.start("dev", "--port", port, "--ui-port", str(ui_port))
    await line_with(process, "Web UI's proxy ready")
    async with httpx2.AsyncClient() as browser:
        answer = await browser.get(f"http://127.0.0.1:{ui_port}/api/v1/namespaces/default")
    assert (answer.status_code, answer.json()["namespaceInfo"]["name"]) == (200, "default")


@pytest.mark.parametrize("option", ["--port", "--ui-port"])
async def test_a_port_in_use_is_said(own: Steer, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ports = {"--port": str(free_port()), "--ui-port": str(free_port()), option: port}
        answer = await own("dev", *(word for pair in ports.items() for word in pair))
    assert answer.code == 1
    assert f"port {port}" in answer.err
    assert f"Choose with {option}" in answer.err


async def test_what_is_no_database_is_left_as_it_is(own: Steer, tmp_path: Path) -> None:
    """Its mode too: by root, /etc would be closed to everybody else."""
    place, text = tmp_path / "place", tmp_path / "text"
    place.mkdir(mode=0o755)
    text.write_text("somebody's\n", encoding="utf-8")
    text.chmod(0o644)
    for given, why in ((place, "is no file"), (text, "is no database"), (place / "no" / "db", "there is no directory")):
        answer = await own("dev", "--port", str(free_port()), "--headless", "--db", str(given))
        assert (answer.code, why in answer.err, str(given) in answer.err) == (1, True, True), answer.err
    assert (stat.S_IMODE(place.stat().st_mode), stat.S_IMODE(text.stat().st_mode)) == (0o755, 0o644)
    assert {each.name for each in tmp_path.iterdir() if each.suffix == ".lock"} == set()


async def test_two_have_no_database_in_common(own: Steer, tmp_path: Path) -> None:
    """Each of two servers on one leads the other's workflows, and stalls them."""
    await dev(own, *WITHOUT_MODEL)
    port = str(free_port())
    second = await own("dev", "--port", port, "--headless")
    assert second.code == 1
    assert "another `steer dev` has" in second.err
    assert "--db FILE" in second.err
    link = tmp_path / "link.db"
    link.symlink_to(next(Path(own.env["XDG_STATE_HOME"]).rglob("dev.db")))
    assert "another `steer dev` has" in (await own("dev", "--port", port, "--headless", "--db", str(link))).err
    alone = await own.start("dev", "--port", port, "--headless", "--db", str(tmp_path / "second.db"))
    await line_with(alone, "Ctrl-C ends them")
    state = Path(own.env["XDG_STATE_HOME"])
    assert {each.name for each in state.rglob("*-server.log")} == {"dev-server.log", "second-server.log"}


@pytest.mark.parametrize("state", ["/dev/null", "/dev/null/below"])
async def test_a_state_directory_that_cannot_be(own: Steer, state: str) -> None:
    answer = await own("dev", "--port", str(free_port()), "--headless", STEERSMAN_STATE_DIR=state)
    assert (answer.code, "Traceback" in answer.err, "/dev/null" in answer.err) == (1, False, True), answer.err


async def test_a_temporal_of_the_operators_own_is_taken(own: Steer, tmp_path: Path) -> None:
    mine = tmp_path / "temporal"
    mine.write_text("#!/bin/sh\necho mine is no server\nexit 7\n")
    mine.chmod(0o700)
    port = str(free_port())
    by_variable = await own("dev", "--port", port, "--headless", STEERSMAN_TEMPORAL=str(mine))
    by_flag = await own("dev", "--port", port, "--headless", "--temporal", str(mine))
    for answer in (by_variable, by_flag):
        assert answer.code == 1
        assert "mine is no server" in answer.err
    missing = await own("dev", "--port", port, "--headless", "--temporal", str(tmp_path / "none"))
    assert missing.code == 3
    assert "is no program that can be run" in missing.err


@pytest.mark.exhaustive
async def test_a_history_that_is_no_history(own: Steer, tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text(json.dumps({"events": "?"}))
    answer = await own("replay", str(tmp_path / "no.json"), "--json")
    assert answer.code == 2
    assert (answer.json["ok"], answer.json["divergence"]) == (False, None)
    assert "is no workflow history" in answer.json["error"]
    said = await own("replay", str(tmp_path / "no.json"))
    assert (said.code, said.out) == (2, "")
    assert "is no workflow history" in said.err
    assert (await own("replay", str(tmp_path / "missing.json"))).code == 3


@pytest.mark.exhaustive
async def test_a_history_that_the_code_at_hand_would_not_have_made(own: Steer, tmp_path: Path) -> None:
    recorded = (ROOT / "tests/histories/cancelled.json").read_text()
    assert '"run_agent"' in recorded
    (tmp_path / "other.json").write_text(recorded.replace('"run_agent"', '"walk_agent"'))
    answer = await own("replay", str(tmp_path / "other.json"), "--json")
    assert answer.code == 1
    assert (answer.json["ok"], answer.json["workflow"], answer.json["error"]) == (False, "AgentRun", None)
    assert (answer.json["at"]["type"], answer.json["at"]["of"]) == ("activity_task_scheduled", "walk_agent")
    recorded_at = json.loads(recorded)["events"][answer.json["at"]["event"] - 1]
    assert recorded_at["activityTaskScheduledEventAttributes"]["activityType"]["name"] == "run_agent"
    assert answer.json["divergence"].startswith("[TMPRL1100] Nondeterminism error: Activity type")
    assert (
        "walk_agent; the code at hand does something else there"
        in (await own("replay", str(tmp_path / "other.json"))).out
    )


async def test_doctor_asks_the_worker_for_its_keys(own: Steer, tmp_path: Path) -> None:
    """Another terminal's environment says nothing of what a run would find."""
    own.env |= {"HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path)}
    for name in [name for name in own.env if name.endswith(("_KEY", "_TOKEN"))]:
        del own.env[name]
    key = "sk-never-shown"
    process = await dev(own, "--agent", "claude", "--agent", "process", ANTHROPIC_API_KEY=key)
    said = await own("doctor", "--measure", "--json")
    checks = {each["check"]: each for each in said.json}
    assert len(checks) == len(said.json)
    for name in ("start", "message", "cancel"):
        assert re.fullmatch(r"\d+ ms, at most \d+ \(.*; 5 runs\)", checks[f"measured {name}"]["detail"])
    assert (await own("list", "--json", 'ExecutionStatus = "Running"')).json == []
    assert checks["key for claude"]["detail"] == "ANTHROPIC_API_KEY (of the worker)"
    assert "agents" not in checks
    assert key not in said.out
    process.send_signal(signal.SIGINT)
    assert (await ended(process)).code == 0
    await dev(own, "--agent", "claude", "--agent", "process")
    said = await own("doctor", "--json", ANTHROPIC_API_KEY=key)
    checks = {each["check"]: each for each in said.json}
    assert said.code == 1
    assert checks["key for claude"]["detail"].startswith("none in this environment")
    assert checks["agents"] == {
        "check": "agents",
        "ok": False,
        "detail": "the worker has no agent with a key",
        "hint": checks["agents"]["hint"],
    }


async def test_doctor_without_a_server_says_what_to_do(own: Steer) -> None:
    answer = await own("doctor")
    assert answer.code == 1
    assert "steer dev" in answer.out
    assert own.env["TEMPORAL_ADDRESS"] in answer.out
