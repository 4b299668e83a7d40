"""Client and worker that do not agree on a codec, and payloads that nobody with a key made: told, and harmless."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.common import RawValue

from steersman.client import Steersman
from steersman.codec import VARIABLE
from steersman.contracts import names
from steersman.contracts.errors import InvalidRequest
from steersman.encryption import KEYS_VARIABLE, EncryptionCodec, encrypt
from steersman.errors import ServerRefused, UnreadablePayload
from steersman.keys import Key, add_key, new_key, read_keys
from tests.acceptance.loops import process_loop, project
from tests.acceptance.site import Site, phase
from tests.cli.steer import Steer

CODEC = "steersman.encryption:EncryptionCodec"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    add_key(path, new_key("first"))
    return path


def with_codec(keys: Path) -> dict[str, str]:
    return {VARIABLE: CODEC, KEYS_VARIABLE: str(keys)}


async def plain_and_sealed(site: Site, keys: Path) -> tuple[Steersman, Steersman]:
    """Two clients: without a codec, and with one."""
    return await site.steersman(), await site.steersman(EncryptionCodec(keys))


def sealed(value: Any, key: Key) -> Payload:
    return encrypt(Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(value).encode()), key)


@pytest.mark.exhaustive
async def test_a_client_without_the_codec_is_told_so(site: Site, keys: Path, tmp_path: Path) -> None:
    await site.worker(**with_codec(keys)).ready()
    plain, coded = await plain_and_sealed(site, keys)

    # Whoever has no codec may start runs all the same, and cannot read what comes of them.
    run = await plain.start(site.process("echo", "hello"))
    assert (await coded.result(run)).text == "hello"
    for reading in (plain.result(run), plain.state(run), plain.events(run)):
        with pytest.raises(UnreadablePayload, match="set STEERSMAN_CODEC"):
            await reading
    failed = await coded.start(site.process("sh", "-c", "exit 3"))
    with pytest.raises(UnreadablePayload, match="set STEERSMAN_CODEC"):
        await plain.result(failed)
    assert {each.id for each in await plain.list()} == {run, failed}

    steer = Steer(site.namespace.address, tmp_path, site.namespace.name)
    said = await steer("show", run)
    assert (said.code, "set STEERSMAN_CODEC" in said.err, "Traceback" in said.err) == (2, True, False), said
    # Its input is in the clear, what the worker has answered is not.
    replayed = await steer("replay", run)
    assert (replayed.code, "set STEERSMAN_CODEC" in replayed.err) == (2, True), replayed
    exported = await steer("export", run, str(tmp_path / "run.zip"))
    assert (exported.code, "stayed encrypted" in exported.err, f"events of {run}" in exported.err) == (0, True, True)
    here = {"STEERSMAN_STATE_DIR": str(site.state)}
    for environment, ok in (({}, False), (with_codec(keys), True)):
        checks = (await steer("doctor", "--json", **here, **environment)).json
        (found,) = [each for each in checks if each["check"] == "codec"]
        assert found["ok"] is ok, found
        assert ("STEERSMAN_CODEC" in (found["hint"] or "")) is not ok
        (mine,) = [each for each in checks if each["check"] == "payload codec"]
        assert (CODEC in mine["detail"]) is ok
    shown = await steer("show", run, **with_codec(keys))
    assert (shown.code, "closed" in shown.out) == (0, True)
    replayed = await steer("replay", run, **with_codec(keys))
    assert replayed.code == 0, replayed


async def test_a_worker_without_the_codec_refuses_the_run_at_once(site: Site, keys: Path) -> None:
    await site.worker().ready()
    plain, coded = await plain_and_sealed(site, keys)

    run = await coded.start(site.process("echo", "hello"))
    assert run.startswith("run-")  # ids are not encrypted, and say nothing of what is asked then

    with pytest.raises(InvalidRequest, match="set STEERSMAN_CODEC"):
        await plain.result(run)


@pytest.mark.parametrize("queried", [True, False], ids=["asked with its first task", "asked afterwards"])
async def test_whoever_looks_at_such_a_run_hears_why_it_ended(site: Site, keys: Path, queried: bool) -> None:  # noqa: FBT001
    plain, coded = await plain_and_sealed(site, keys)
    worker = site.worker()
    run = await coded.start(site.process("echo", "hello"))
    asking = asyncio.create_task(plain.state(run)) if queried else None
    await worker.ready()
    if asking is None:
        with pytest.raises(InvalidRequest):
            await plain.result(run)
        asking = asyncio.create_task(plain.state(run))
    with pytest.raises(ServerRefused, match="set STEERSMAN_CODEC"):
        await asking
    with pytest.raises(InvalidRequest, match="set STEERSMAN_CODEC"):
        await plain.result(run)


async def test_a_worker_that_lacks_the_key_is_not_called_none(site: Site, keys: Path, tmp_path: Path) -> None:
    """The run waits for the key; its workflow task fails meanwhile."""
    theirs = tmp_path / "theirs"
    theirs.write_bytes(keys.read_bytes())
    theirs.chmod(0o600)
    await site.worker(**with_codec(theirs)).ready()
    add_key(keys, new_key("second"))
    _, coded = await plain_and_sealed(site, keys)
    run = await coded.start(site.process("echo", "hello"))
    with pytest.raises(ServerRefused, match="whether it has the key"):
        await coded.state(run)
    theirs.write_bytes(keys.read_bytes())
    assert (await coded.result(run)).text == "hello"


async def test_forged_payloads_end_no_run_and_hold_none_up(site: Site, keys: Path) -> None:
    await site.worker(**with_codec(keys)).ready()
    plain, coded = await plain_and_sealed(site, keys)
    impostor = Key("first", bytes(32))
    good = sealed({"text": "hello"}, read_keys(keys)[0])
    forged = [
        sealed({"text": "obey"}, impostor),
        Payload(metadata=dict(good.metadata), data=good.data[:-1]),
        Payload(metadata=dict(good.metadata), data=b""),
        Payload(metadata={"encoding": b"binary/encrypted"}, data=good.data),
        Payload(metadata={**good.metadata, "encryption-key-id": b"\xff" * 1000}, data=good.data),
        Payload(metadata={**good.metadata, "encryption-key-id": b"nobody"}, data=good.data),
    ]

    with pytest.raises(InvalidRequest, match="changed, or is forged"):
        await coded.result(await start_raw(coded, site, sealed(site.process("true"), impostor)))
    run = await coded.start(site.process("sleep", "600"))
    await phase(coded, run, "running")
    handle: WorkflowHandle[Any, Any] = plain.temporal.get_workflow_handle(run)
    for payload in forged:
        for signal in (names.STEER, names.DECIDE, "progressed"):
            await handle.signal(signal, RawValue(payload))
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update(names.STEER, RawValue(payload))
        with pytest.raises(WorkflowQueryFailedError):
            await handle.query(names.STATE_QUERY, RawValue(payload))
    assert (await coded.state(run)).phase == "running"
    stopped = await coded.stop(run)
    assert stopped.outcome == "stopped"


@pytest.mark.exhaustive
async def test_a_run_waits_for_the_key_of_its_request(site: Site, keys: Path) -> None:
    await site.worker(**with_codec(keys)).ready()
    _, coded = await plain_and_sealed(site, keys)
    late = new_key("late")
    run = await start_raw(coded, site, sealed(site.process("echo", "hello"), late))
    handle = coded.temporal.get_workflow_handle(run)
    async with asyncio.timeout(30):
        failed = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
        while failed not in {event.event_type for event in (await handle.fetch_history()).events}:
            await asyncio.sleep(0.05)

    add_key(keys, late, last=True)

    assert (await coded.result(run)).text == "hello"


async def start_raw(steersman: Steersman, site: Site, payload: Payload) -> str:
    """A run whose input is exactly this payload."""
    plain = await site.steersman()
    await plain.temporal.start_workflow(names.RUN_WORKFLOW, RawValue(payload), id="raw", task_queue=names.TASK_QUEUE)
    return "raw"


async def test_a_question_that_the_worker_has_no_key_for_is_told_as_such(
    site: Site, keys: Path, tmp_path: Path
) -> None:
    await site.worker(**with_codec(keys)).ready()
    coded = await site.steersman(EncryptionCodec(keys))
    loop = await coded.loops.start(process_loop(site, "true", project(site), limits={"iterations": 1}))
    await coded.loops.result(loop)
    assert len(await coded.loops.checkpoints(loop)) == 2
    (newer := tmp_path / "newer").write_bytes(keys.read_bytes())
    newer.chmod(0o600)
    add_key(newer, new_key("second"))
    rotated = await site.steersman(EncryptionCodec(newer))
    with pytest.raises(ServerRefused, match="it does not have this terminal's key, or its codec"):
        await rotated.loops.checkpoints(loop)
