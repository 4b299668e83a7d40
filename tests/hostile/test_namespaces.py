"""Two Temporal namespaces on one state directory: neither reads, stops or ends what is the other's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activities.loops.loop_store import LoopStore
from activities.runtimes.shim_runtime import ShimRuntime
from activities.store.ownership import Ownership
from activities.store.run_directory import RunDirectory
from activities.store.runs import RunStore
from steersman._client.host_calls import call_host
from steersman.client import Steersman
from steersman.contracts import names
from steersman.contracts.activities import FinalizeInput, ReadEvents, RunKey, StopInput, Swept
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.events import CancelledEvent
from steersman.contracts.loop_activities import DiffInput, DropInput, KeptInput, LoopKey, RestoreInput, SurveyInput
from steersman.contracts.request import parse_request
from steersman.errors import ServerRefused
from tests.acceptance.loops import process_loop, project, reaches
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, following
from tests.hostile.test_event_log import NOW
from tests.support.processes import marked
from tests.support.temporal import new_namespace

KEY = RunKey(run="r", execution="e")
MINE = Ownership("cluster", "default")
OTHERS = [Ownership("cluster", "other"), Ownership("other", "default")]


def seen(store: RunStore) -> list[RunKey]:
    return [each.key for each in store.mine()]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("door", [RunStore.directory, RunStore.create, RunStore.count_failure])
def test_a_foreign_run_has_no_door(
    tmp_path: Path, other: Ownership, door: Callable[[RunStore, RunKey], RunDirectory | int]
) -> None:
    before = RunStore(tmp_path, MINE).create(KEY).path
    kept = (before / "run.json").read_bytes()
    with pytest.raises(InvalidRequest, match="another Temporal namespace") as refused:
        door(RunStore(tmp_path, other), KEY)
    assert "default" not in refused.value.message
    assert (before / "run.json").read_bytes() == kept
    assert sorted(each.name for each in before.iterdir()) == ["run.json"]
    assert seen(RunStore(tmp_path, MINE)) == [KEY]


@pytest.mark.parametrize("facts", [None, b"", b"{", b"[]", b"null", b'{"cluster": "cluster"}', b"[" * 5000, b"\xff"])
@pytest.mark.parametrize("holds", ["events.jsonl", "attempts"])
def test_a_run_whose_owner_was_removed_can_be_stopped_and_not_read(
    tmp_path: Path, facts: bytes | None, holds: str
) -> None:
    store = RunStore(tmp_path, MINE)
    path = store.create(KEY).path
    (path / holds).mkdir()
    (path / "run.json").unlink()
    if facts is not None:
        (path / "run.json").write_bytes(facts)
    with pytest.raises(InvalidRequest, match=r"run\.json"):
        store.readable(KEY)
    assert store.directory(KEY).path == path
    assert store.create(KEY).path == path
    assert store.readable(KEY).path == path
    assert seen(store) == [KEY]


@pytest.mark.parametrize("facts", [None, b"", b"{"])
def test_a_directory_that_was_only_begun_is_made_whole(tmp_path: Path, facts: bytes | None) -> None:
    store = RunStore(tmp_path, MINE)
    path = store.create(KEY).path
    (path / "run.json").unlink()
    if facts is not None:
        (path / "run.json").write_bytes(facts)
    assert store.create(KEY).path == path
    assert seen(store) == [KEY]


async def test_a_foreign_runtime_stops_nothing(tmp_path: Path) -> None:
    RunStore(tmp_path, MINE).create(KEY)
    store = RunStore(tmp_path, OTHERS[0])
    runtime = ShimRuntime(store, "host")
    for look in (runtime.attempts, runtime.has_living):
        with pytest.raises(InvalidRequest):
            look(KEY)
    with pytest.raises(InvalidRequest):
        await runtime.release(KEY)


@pytest.mark.parametrize("other", OTHERS)
def test_a_foreign_loop_has_no_door(tmp_path: Path, other: Ownership) -> None:
    LoopStore(tmp_path, MINE).create("nightly")
    facts = (tmp_path / "loops" / "nightly" / "loop.json").read_bytes()
    for door in (LoopStore(tmp_path, other).create, LoopStore(tmp_path, other).check):
        with pytest.raises(InvalidRequest, match="nightly"):
            door("nightly")
    assert (tmp_path / "loops" / "nightly" / "loop.json").read_bytes() == facts
    LoopStore(tmp_path, other).create("weekly")
    assert [each.loop for each in LoopStore(tmp_path, other).mine()] == ["weekly"]


async def test_two_namespaces_on_one_state_directory(site: Site, mark: str) -> None:
    ours = site.worker()
    steersman = await site.steersman()
    host = await ours.ready()
    other = await new_namespace(site.namespace.address)
    foreign = await other.connect()
    await site.worker(**other.env).ready()
    run = await steersman.start(site.process(*python(OBEDIENT), mark=mark))
    done = await steersman.start(site.process("true"))
    workspace = project(site)
    loop = await steersman.loops.start(process_loop(site, "sleep 600", workspace), loop_id="nightly")
    await reaches(steersman, loop, lambda now: now.checkpoints)
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")
        await steersman.result(done)
        (execution,) = [each.name for each in (site.state / "runs" / run).iterdir()]
        key, request = RunKey(run=run, execution=execution), parse_request(site.process("true"))
        end = FinalizeInput(key=key, request=request, event=CancelledEvent(time=NOW))
        here, template = LoopKey(loop="mine", execution="e"), parse_request(site.process("true", workspace=workspace))
        restore = RestoreInput(key=here, run=template, source="nightly", number=1)
        questions: list[tuple[str, Any]] = [
            (names.READ_EVENTS, ReadEvents(key=key)),
            (names.STOP_AGENT, StopInput(key=key, request=request, phase="running", reason="x")),
            (names.FINALIZE_RUN, end),
            (names.DROP_CHECKPOINTS, DropInput(loop="nightly", workspace=str(workspace), all=True)),
            (names.LIST_CHECKPOINTS, KeptInput(loop="nightly", workspace=str(workspace))),
            (names.DIFF_CHECKPOINTS, DiffInput(loop="nightly", workspace=str(workspace), older=1)),
            (names.RESTORE_CHECKPOINT, restore),
            (names.SURVEY_WORKSPACE, SurveyInput(key=LoopKey(loop="nightly", execution="e"), run=template, number=1)),
        ]
        for activity, question in questions:
            with pytest.raises(ServerRefused, match="another Temporal namespace"):
                await call_host(foreign, host, activity, question, Swept)
        # Nor does cleaning up there touch what is here, closed or not.
        assert (await Steersman(foreign).prune(host, 0)).pruned == ()
        assert marked(mark)
        assert (await steersman.stop(run)).outcome == "stopped"
        assert [event.type for event in await attached.end()] == ["init", "message", "cancelled"]
    assert [event.type for event in await steersman.events(done)][-1] == "done"
    assert (await steersman.loops.diff(loop, 0)).patch == ""  # its files are as they were, and still kept
    await steersman.loops.stop(loop)
