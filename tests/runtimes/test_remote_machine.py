"""What a worker knows of another machine: its answers are taken for what they are, and its clock for another one's."""

import time
from pathlib import Path
from typing import Any, cast

import pytest

from activities.runtimes.exec_access import ExecAccess
from activities.runtimes.mirror import Mirror
from activities.runtimes.remote_machine import RemoteMachine
from activities.shim.client import MachineUnreachable, Record


class Answers:
    """Stands for ExecAccess: what the machine says."""

    def __init__(self, **said: Any) -> None:
        self.said, self.asked = said, 0

    async def ask(self, command: str, *words: str) -> dict[str, Any]:
        self.asked += 1
        return {"home": "/home/there", "time_ms": round(time.time() * 1000), **self.said}


def machine(answers: Answers, directory: str | None = None) -> RemoteMachine:
    return RemoteMachine("place", cast("ExecAccess", answers), directory)


async def test_it_is_asked_once() -> None:
    answers = Answers()
    there = machine(answers)
    for _ in range(3):
        assert str(await there.directory()) == "/home/there/.local/state/steersman"
        assert await there.clock_ms() == 0
    assert answers.asked == 1
    assert str(await machine(answers, "/data").directory()) == "/data"


@pytest.mark.parametrize("behind_s", [-86400, -3, 3, 86400])
async def test_a_clock_that_is_wrong(behind_s: int) -> None:
    there = machine(Answers(time_ms=round((time.time() - behind_s) * 1000)))
    assert await there.clock_ms() == pytest.approx(behind_s * 1000, abs=1000)


@pytest.mark.parametrize("said", [{"home": "x"}, {"home": None}, {"home": "/a\0b"}, {"time_ms": "now"}, {"home": 3}])
async def test_an_answer_that_is_none(said: dict[str, Any]) -> None:
    with pytest.raises(MachineUnreachable, match="place does not say"):
        await machine(Answers(**said)).directory()


async def test_what_it_has_is_held_to_what_an_environment_can_be() -> None:
    environ = {"GOOD": "x", "BAD": 3, "NUL": "a\0b", "EQ=UAL": "x"}
    there = machine(Answers(environ=environ, programs={"a": "/a", "b": "b", "c": 1}, root="yes"))
    info = await there.info(["a", "b", "c"])
    assert (info.environ, info.programs, info.is_root) == ({"GOOD": "x"}, {"a": "/a"}, False)
    assert (await machine(Answers(environ=[], programs=None)).info([])).environ == {}


async def test_a_process_that_is_judged_and_then_started_takes_one_look() -> None:
    answers = Answers()
    there = machine(answers, "/data")
    first = await there.info(["claude"])
    assert await there.info(["claude"]) is first
    assert await there.clock_ms() == 0
    assert answers.asked == 1
    await there.info(["claude"])  # of the next process
    await there.info(["git"])
    assert answers.asked == 3


async def test_records_are_kept_by_the_clock_here(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "journal", 1, clock_ms=3_600_000)
    (kept,) = mirror.append([Record(1, 1_700_000_000_000, "out", b"x", "")])
    mirror.close()
    again = Mirror(tmp_path / "journal", 2, clock_ms=7_200_000)
    ((read,),) = [batch async for batch in again.replay(0, 0)]
    again.close()
    assert kept.time_ms == read.time_ms == 1_700_003_600_000


@pytest.mark.parametrize("time_ms", [10**19 - 1, 4_000_000_000_000])
async def test_no_record_is_of_the_future(tmp_path: Path, time_ms: int) -> None:
    """No limit would act for as long, and no date can hold some of them."""
    mirror = Mirror(tmp_path / "journal", 1, clock_ms=5)
    (kept,) = mirror.append([Record(1, time_ms, "out", b"x", "")])
    mirror.close()
    assert kept.time_ms <= time.time() * 1000
