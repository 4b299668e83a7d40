"""Which machine of a state directory's is the newest, and what a worker's identity says of it."""

import json
import time
from pathlib import Path

import pytest

from activities.takeover.machine_number import FILE, Generation, generation_of, identity_of, machine_number

STORE = "b7646a99830b251d"


LATER = 900_000_000


def of_now() -> int:
    return int(time.time()) // 10


async def test_it_is_higher_where_the_directory_comes_to_another_machine(tmp_path: Path) -> None:
    before = of_now()
    first = await machine_number(tmp_path)
    assert before <= first <= of_now()
    assert await machine_number(tmp_path) == first
    here = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({"number": LATER, "boot": "another"}))  # the clock was set back since
    assert await machine_number(tmp_path) == LATER + 1
    assert json.loads((tmp_path / FILE).read_text()) == {**here, "number": LATER + 1}
    (tmp_path / FILE).write_text(json.dumps({"number": 999_999_999, "boot": "another"}))
    assert await machine_number(tmp_path) == 999_999_999


async def test_it_does_not_go_back_with_the_directory(tmp_path: Path) -> None:
    """Else workers would take those of before for newer ones, as long as the server names them."""
    found = []
    for number in (8, 3):  # the second is from a backup, and the machine was restarted again and again since
        (tmp_path / FILE).write_text(json.dumps({"number": number, "boot": "another"}))
        found.append(await machine_number(tmp_path))
    before, restored = found
    assert restored >= before > 8


@pytest.mark.parametrize("said", ["", "[]", '{"number": -3, "boot": "b"}', '{"number": "x", "boot": "b"}', "[" * 5000])
async def test_what_an_agent_has_made_of_the_file_counts_for_nothing(tmp_path: Path, said: str) -> None:
    before = of_now()
    (tmp_path / FILE).write_text(said)
    assert before <= await machine_number(tmp_path) <= of_now()


def test_an_identity_says_which_store_and_machine() -> None:
    identity = identity_of("4711-98495200", STORE, 12, "vm-1.example")
    assert identity.startswith("4711-98495200")
    assert identity.endswith("@vm-1.example")
    assert generation_of(identity) == Generation(STORE[:8], 12)
    assert generation_of("4711-98495200@vm-1.example") is None
    assert generation_of("someone@vm-0a0b0c0d.3@x") is None


def test_only_one_of_the_same_store_on_a_later_machine_is_newer() -> None:
    own = Generation("b7646a99", 2)
    assert own.is_older_than(Generation("b7646a99", 3))
    for other in (Generation("b7646a99", 2), Generation("b7646a99", 1), Generation("00000000", 3)):
        assert not own.is_older_than(other)
