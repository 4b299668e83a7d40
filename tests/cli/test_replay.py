"""`steer replay` of files: where the code at hand diverges, by which line, and stepped through."""

import asyncio
import json
import signal
import zipfile
from pathlib import Path

import pytest

from tests.cli.steer import ROOT, Steer

CANCELLED = ROOT / "tests/histories/cancelled.json"


@pytest.fixture
def offline(tmp_path: Path) -> Steer:
    """The command, where there is no server."""
    return Steer("127.0.0.1:1", tmp_path)


async def test_a_divergence_names_the_event_and_the_line_of_ours(offline: Steer, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(CANCELLED.read_text().replace('"run_agent"', '"other_agent"'))
    answer = await offline("replay", str(other), "--json")
    assert answer.code == 1
    assert answer.json["at"]["of"] == "other_agent"
    (deed,) = answer.json["did"]
    assert deed["what"] == "activity run_agent"
    file, _, line = deed["lines"][0].rpartition(":")
    assert "start_activity" in "".join((ROOT / file).read_text().splitlines()[int(line) - 2 : int(line) + 1])
    said = await offline("replay", str(other))
    assert "it does: activity run_agent, at workflows/agent_run/activities.py:" in said.out


@pytest.mark.parametrize("how", ["--json", "--debug"])
async def test_a_run_whose_start_is_delayed_has_nothing_to_diverge(offline: Steer, tmp_path: Path, how: str) -> None:
    delayed, cancelled = tmp_path / "delayed.json", json.loads(CANCELLED.read_text())
    delayed.write_text(json.dumps({"events": cancelled["events"][:1]}))
    answer = await asyncio.wait_for(offline("replay", str(delayed), how), 30)
    assert answer.code == 0, answer.err
    assert how == "--debug" or answer.json["ok"]


async def test_a_person_steps_through_it_in_pdb(offline: Steer) -> None:
    lines = (ROOT / "workflows/agent_run/workflow.py").read_text().splitlines()
    number = next(at for at, line in enumerate(lines, 1) if "activities.run_agent(" in line)
    typed = f"b workflows/agent_run/workflow.py:{number}\nc\np self.request.agent + '-seen'\nc\n"
    process = await offline.start("replay", str(CANCELLED), "--debug")
    out, err = await process.communicate(typed.encode())
    assert process.returncode == 0, err
    assert "process-seen" in out.decode()
    assert out.decode().endswith("replays\n")


@pytest.mark.linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=str)
async def test_one_that_is_ended_leaves_no_history_and_no_process(
    offline: Steer, tmp_path: Path, number: signal.Signals
) -> None:
    bundle, scratch = tmp_path / "run.zip", tmp_path / "scratch"
    with zipfile.ZipFile(bundle, "w") as packed:
        packed.write(CANCELLED, "histories/1-run.json")
        packed.writestr("bundle.json", "{}")
    scratch.mkdir()
    process = await offline.start("replay", str(bundle), "--debug", TMPDIR=str(scratch))
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readuntil(b"(Pdb)"), 30)
    assert list(scratch.iterdir())
    (debugger,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(number)
    assert await asyncio.wait_for(process.wait(), 30) == 143
    assert not list(scratch.iterdir())
    assert not Path(f"/proc/{debugger}").exists()


async def test_it_goes_with_one_run_and_a_person(offline: Steer, tmp_path: Path) -> None:
    assert (await offline("replay", "--open", "--debug")).code == 2
    assert (await offline("replay", str(CANCELLED), "--debug", "--json")).code == 2
    nothing = tmp_path / "nothing.json"
    nothing.write_text("{}")
    answer = await offline("replay", str(nothing), "--debug")
    assert (answer.code, "is no workflow history" in answer.err) == (2, True)
