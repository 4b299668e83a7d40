"""Who has a workspace and who waits: the arithmetic of paths, the order, and the files that hold it."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from activities.store import disk
from activities.store.hold_files import MAX_WAITING, Hold, HoldFiles, PlaceLost, file_name, in_order, in_the_way
from activities.store.ownership import Ownership
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import InvalidRequest

OWNER = Ownership("c", "n")


def key(name: str) -> RunKey:
    return RunKey(run=name, execution=f"{name}-x")


def hold(name: str, path: str = "/w", number: int = 1, *, held: bool = True, parent: str | None = None) -> Hold:
    above = key(parent) if parent else None
    return Hold(OWNER, key(name), path, number=number, held=held, parent=above)


@pytest.mark.parametrize(
    ("one", "other", "overlaps"),
    [
        ("/w", "/w", True),
        ("/w/a", "/w", True),
        ("/w/a/b/c", "/w/a", True),
        ("/", "/w/a", True),
        ("/w/a", "/w/b", False),
        ("/w/a", "/w/ab", False),
        ("/w/a ", "/w/a", False),
        ("/w/A", "/w/a", False),
    ],
)
def test_workspaces_overlap_where_one_is_or_contains_the_other(one: str, other: str, *, overlaps: bool) -> None:
    assert hold("a", one).overlaps(other) is overlaps
    assert hold("a", other).overlaps(one) is overlaps


def names(holds: list[Hold]) -> list[str]:
    return [each.key.run for each in holds]


def test_whoever_has_it_and_whoever_came_before_is_in_the_way() -> None:
    mine = hold("mine", number=5, held=False)
    others = [
        hold("later", number=6, held=False),
        hold("earlier", number=3, held=False),
        hold("inside", "/w/a", number=7),
        hold("beside", "/v", number=1),
        mine,
    ]
    assert names(in_the_way(mine, others)) == ["inside", "earlier"]


def test_the_same_id_in_another_namespace_is_somebody_else() -> None:
    foreign = replace(hold("mine"), owner=Ownership("c", "other"))
    assert in_the_way(hold("mine", number=2, held=False), [foreign]) == [foreign]


def test_a_child_shares_what_its_parent_has_and_passes_those_who_wait_for_it() -> None:
    loop, waiting = hold("loop"), hold("waiting", number=2, held=False)
    child = hold("loop-1", number=3, held=False, parent="loop")
    assert in_the_way(child, [loop, waiting]) == []
    assert in_the_way(replace(child, path="/w/inside"), [loop, waiting]) == []
    assert names(in_the_way(replace(child, path="/"), [loop, waiting])) == ["waiting"]
    assert names(in_the_way(waiting, [loop, replace(child, held=True)])) == ["loop", "loop-1"]


def test_no_child_shares_what_its_parent_only_waits_for_or_has_elsewhere() -> None:
    other = hold("other")
    child = hold("loop-1", number=3, held=False, parent="loop")
    assert names(in_the_way(child, [other, hold("loop", number=2, held=False)])) == ["other"]
    assert names(in_the_way(child, [other, hold("loop", "/w/a")])) == ["other"]
    foreign = replace(hold("loop"), owner=Ownership("c", "other"))
    assert names(in_the_way(child, [foreign])) == ["loop"]


def test_a_parent_is_not_kept_out_by_its_own_child() -> None:
    assert in_the_way(hold("loop", number=2, held=False), [hold("loop-1", parent="loop")]) == []


def test_those_who_have_a_workspace_come_before_those_who_wait() -> None:
    holds = [hold("c", number=3), hold("b", number=2, held=False), hold("a", number=4, held=False)]
    assert names(in_order(holds)) == ["c", "b", "a"]


async def test_it_is_taken_once_and_passes_on_in_order(tmp_path: Path) -> None:
    files = HoldFiles(tmp_path)
    asked = [Hold(OWNER, key(name), "/w") for name in ("a", "b", "c")]
    assert await files.enter(asked[0], waits=True) == []
    assert names(await files.enter(asked[1], waits=True)) == ["a"]
    assert names(await files.enter(asked[2], waits=True)) == ["a", "b"]
    assert names(await files.enter(asked[1], waits=True)) == ["a"]
    assert await files.enter(asked[0], waits=True) == []
    await files.remove(OWNER, key("a"))
    assert names(await files.enter(asked[2], waits=True)) == ["b"]
    assert await files.enter(asked[1], waits=True) == []
    assert [(each.key.run, each.held) for each in files.all()] == [("b", True), ("c", False)]


async def test_who_does_not_wait_leaves_nothing(tmp_path: Path) -> None:
    files = HoldFiles(tmp_path)
    await files.enter(Hold(OWNER, key("a"), "/w"), waits=False)
    assert names(await files.enter(Hold(OWNER, key("b"), "/w/inside"), waits=False)) == ["a"]
    assert names(files.all()) == ["a"]


async def test_of_many_at_once_exactly_one_gets_it(tmp_path: Path) -> None:
    stores = [HoldFiles(tmp_path) for _ in range(30)]
    asked = [Hold(OWNER, key(f"run-{number}"), "/w") for number in range(30)]
    found = await asyncio.gather(*(files.enter(each, waits=True) for files, each in zip(stores, asked, strict=True)))
    assert sorted(map(len, found)) == list(range(30))


async def test_a_run_whose_workspace_lies_elsewhere_by_now_asks_anew(tmp_path: Path) -> None:
    files = HoldFiles(tmp_path)
    await files.enter(Hold(OWNER, key("a"), "/w"), waits=True)
    await files.enter(Hold(OWNER, key("b"), "/v"), waits=True)
    assert names(await files.enter(Hold(OWNER, key("a"), "/v/a"), waits=True)) == ["b"]
    assert [(each.key.run, each.path, each.held) for each in files.all()] == [("b", "/v", True), ("a", "/v/a", False)]


async def test_names_of_any_bytes_survive(tmp_path: Path) -> None:
    files = HoldFiles(tmp_path)
    path = b"/w/\xff\n".decode("utf-8", "surrogateescape")
    await files.enter(Hold(OWNER, key("a"), path), waits=True)
    assert [each.path for each in HoldFiles(tmp_path).all()] == [path]


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '"x"', '{"path": 1}', "[" * 100_000, '{"owner": null, "parent": null}']
)
async def test_a_file_that_no_worker_has_written_says_nothing(tmp_path: Path, text: str) -> None:
    files = HoldFiles(tmp_path)
    await files.enter(Hold(OWNER, key("a"), "/w"), waits=True)
    (file,) = (tmp_path / "holds").iterdir()
    file.write_text(text)
    assert files.all() == []
    assert await files.enter(Hold(OWNER, key("b"), "/w"), waits=True) == []


async def test_a_copied_file_holds_nothing_twice(tmp_path: Path) -> None:
    files = HoldFiles(tmp_path)
    await files.enter(Hold(OWNER, key("a"), "/w"), waits=True)
    (file,) = (tmp_path / "holds").iterdir()
    facts = json.loads(file.read_text())
    (tmp_path / "holds" / "copy.json").write_text(json.dumps(facts))
    assert names(files.all()) == ["a"]


async def test_whoever_ends_the_holder_goes_before_those_who_wait(tmp_path: Path) -> None:
    files = HoldFiles(tmp_path)
    for name, answer in (("a", "reject"), ("b", "queue"), ("c", "interrupt"), ("d", "rollback"), ("e", "queue")):
        await files.enter(Hold(OWNER, key(name), "/w", on_overlap=answer), waits=True)  # type: ignore[arg-type]
    assert names(files.all()) == ["a", "c", "d", "b", "e"]
    await files.remove(OWNER, key("a"))
    with pytest.raises(PlaceLost):
        await files.turn(Hold(OWNER, key("a"), "/w"))
    assert await files.turn(Hold(OWNER, key("c"), "/w", on_overlap="interrupt")) == []


async def test_a_place_is_given_up_and_what_is_held_stays(tmp_path: Path) -> None:
    files = HoldFiles(tmp_path)
    held, waits = Hold(OWNER, key("a"), "/w"), Hold(OWNER, key("b"), "/w", on_overlap="queue")
    for each in (held, waits):
        await files.enter(each, waits=True)
        await files.leave(each)
    assert names(files.all()) == ["a"]


async def test_whose_changes_are_to_be_undone_is_kept_with_the_place(tmp_path: Path) -> None:
    files = HoldFiles(tmp_path)
    await files.enter(Hold(OWNER, key("a"), "/w"), waits=True)
    mine = Hold(OWNER, key("b"), "/w", on_overlap="rollback")
    await files.enter(mine, waits=True)
    await files.note(mine, [key("a")])
    await files.remove(OWNER, key("a"))
    assert await HoldFiles(tmp_path).turn(mine) == []
    found = HoldFiles(tmp_path).of(OWNER, key("b"))
    assert found is not None
    assert (found.held, found.takes_back) == (True, (key("a"),))


async def test_no_more_wait_than_there_is_room_for(tmp_path: Path) -> None:
    files = HoldFiles(tmp_path)
    (tmp_path / "holds").mkdir()
    await files.enter(Hold(OWNER, key("a"), "/w"), waits=True)
    for number in range(MAX_WAITING):
        waiting = Hold(OWNER, key(f"w{number}"), "/w", number=number + 2, on_overlap="queue")
        (tmp_path / "holds" / file_name(waiting)).write_text(waiting.to_json())
    with pytest.raises(InvalidRequest, match=f"{MAX_WAITING} runs of this host wait"):
        await files.enter(Hold(OWNER, key("b"), "/w"), waits=True)
    assert await files.enter(Hold(OWNER, key("b"), "/v"), waits=True) == []
    assert len(await files.enter(Hold(OWNER, key("w7"), "/w", on_overlap="queue"), waits=True)) == 8


async def test_whoever_finds_it_locked_waits_a_moment(tmp_path: Path) -> None:
    files = HoldFiles(tmp_path)
    with disk.locked(tmp_path / "holds"):
        entering = asyncio.create_task(files.enter(Hold(OWNER, key("a"), "/w"), waits=True))
        await asyncio.wait({entering}, timeout=0.1)
        assert not entering.done()
    assert await entering == []


async def test_whoever_waits_makes_no_order_in_place_of_one_that_is_away(tmp_path: Path) -> None:
    """Else it would have the workspace in that one, and be in the way of others once the disk is back."""
    state = tmp_path / "mounted" / "state"
    state.mkdir(parents=True)
    files = HoldFiles(state)
    assert await files.enter(hold("first", held=False), waits=False) == []
    assert await files.enter(hold("second", held=False), waits=True)
    (tmp_path / "mounted").rename(tmp_path / "away")
    with pytest.raises(PlaceLost):
        await files.turn(hold("second", held=False))
    with pytest.raises(PlaceLost):
        await files.note(hold("second", held=False), ())
    with pytest.raises(FileNotFoundError):
        await files.enter(hold("third", held=False), waits=True)
    await files.leave(hold("second", held=False))
    assert not (tmp_path / "mounted").exists()
