"""`steer export`: a run in one file, without its secrets, which replays where there is no server."""

import asyncio
import base64
import json
import os
import re
import signal
import zipfile
from pathlib import Path
from typing import Any

import pytest

from activities.shim.client import RecordParser
from steersman.bundle import MAX_HISTORIES, file_name
from steersman.client import Steersman
from steersman.codec import VARIABLE
from steersman.contracts.names import RUN_WORKFLOW, TASK_QUEUE
from steersman.encryption import KEYS_VARIABLE, EncryptionCodec
from steersman.keys import add_key, new_key
from tests.acceptance.loops import process_loop
from tests.acceptance.site import Site
from tests.cli.steer import Steer
from tests.scripted_model import ScriptedModel, say
from tests.support.processes import until
from tests.support.temporal import new_namespace

OF_TERMINAL = "correct-horse-battery"
KEY = "sk-ant-api03-abcdefghijklmnop"
TOKEN = "t0k3n-of-the-agent"
LINE_OF_KEY = "MIIEowIBAAKCAQEAn7"
SAID = (
    f"echo plain words; echo {KEY}; echo API_TOKEN={TOKEN}; echo {OF_TERMINAL} >&2; "
    f"echo '-----BEGIN RSA PRIVATE KEY-----'; echo {LINE_OF_KEY}; echo '-----END RSA PRIVATE KEY-----'; echo last words"
)


def contents(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as bundle:
        return {name: bundle.read(name) for name in bundle.namelist()}


def opened(value: Any) -> str:
    """All that stands in a history, its payloads opened."""
    if isinstance(value, dict):
        if isinstance(value.get("data"), str) and "metadata" in value:
            return base64.b64decode(value["data"]).decode("utf-8", "replace")
        return " ".join(opened(each) for each in value.values())
    if isinstance(value, list):
        return " ".join(map(opened, value))
    return str(value)


def steer_at(site: Site, home: Path, **env: str) -> Steer:
    made = Steer(site.namespace.address, home, site.namespace.name)
    made.env |= {"STEERSMAN_STATE_DIR": str(site.state), "DEPLOY_TOKEN": OF_TERMINAL, **env}
    return made


async def test_a_run_is_in_one_file_without_its_secrets(shared: Site, steersman: Steersman, tmp_path: Path) -> None:
    run = await steersman.start(shared.process("sh", "-c", SAID))
    await steersman.result(run)
    steer, file = steer_at(shared, tmp_path), tmp_path / "run.zip"
    answer = await steer("export", run, str(file), "--json")
    assert answer.code == 0, answer.err
    assert answer.json["missing"] == []
    assert answer.json["masked"] >= 6
    assert file.stat().st_mode & 0o777 == 0o600
    found = contents(file)
    journal = found[f"journals/{run}/1"]
    history = json.loads(found[f"histories/1-{run}.json"])
    everything = [*found.values(), opened(history).encode()]
    for secret in (OF_TERMINAL, KEY, TOKEN, LINE_OF_KEY):
        assert not [each for each in everything if secret.encode() in each]
    assert "plain words" in opened(history)
    for words in (b"plain words", b"last words"):
        assert words in found[f"events/{run}.jsonl"]
        assert words in journal
    assert [each.stream for each in RecordParser().feed(journal)][-1] == "exit"
    about = json.loads(found["bundle.json"])
    assert (about["id"], about["kind"], about["runs"]) == (run, "run", [run])
    # Where there is no server.
    replayed = await steer("replay", str(file), "--json", TEMPORAL_ADDRESS="127.0.0.1:1")
    assert replayed.code == 0, replayed.err
    assert [(each["id"], each["ok"]) for each in replayed.json] == [(run, True)]
    again = await steer("export", run, str(file))
    assert (again.code, "is there already" in again.err) == (2, True)


async def test_a_secret_that_comes_piece_by_piece_is_in_no_piece(
    shared: Site, steersman: Steersman, model: ScriptedModel, tmp_path: Path
) -> None:
    text = f"The words are {OF_TERMINAL}, and the key is {KEY}: plain words."
    run = await steersman.start(shared.claude(model.script("pieces", say(text, chunks=20))))
    await steersman.result(run)
    file = tmp_path / "run.zip"
    answer = await steer_at(shared, tmp_path)("export", run, str(file), "--json")
    assert answer.code == 0, answer.err
    found = contents(file)
    told = [json.loads(line) for line in found[f"events/{run}.jsonl"].splitlines()]
    said = "".join(each["text"] for each in told if each["type"] == "message" and each["delta"])
    records = [each for each in RecordParser().feed(found[f"journals/{run}/1"]) if each.stream == "out"]
    lines = [json.loads(each.data) for each in records]
    deltas = [each["event"]["delta"]["text"] for each in lines if "text_delta" in json.dumps(each)]
    assert len(deltas) > 10
    masked = text.replace(OF_TERMINAL, "*" * len(OF_TERMINAL)).replace(KEY, "*" * len(KEY))
    assert (said, "".join(deltas)) == (masked, masked)


async def test_a_loop_comes_with_its_runs(shared: Site, steersman: Steersman, tmp_path: Path) -> None:
    workspace = shared.workspace()
    (workspace / "PLAN.md").write_text("- [ ] one\n")
    done = {"items": {"kind": "checkboxes"}, "verify": {"command": "false"}}
    asked = process_loop(shared, "date +%N >> made", workspace, limits={"iterations": 2}, done=done)
    loop = await steersman.loops.start(asked)
    await steersman.loops.result(loop)
    steer, file = steer_at(shared, tmp_path), tmp_path / "loop.zip"
    assert (await steer("loop", "cleanup", loop, "--all", "--yes")).code == 0
    answer = await steer("export", loop, str(file), "--json")
    assert answer.code == 0, answer.err
    runs = [f"{loop}-{number}{verify}" for number in (1, 2) for verify in ("", "-verify")]
    assert (answer.json["kind"], answer.json["runs"], answer.json["missing"]) == ("loop", runs, [])
    assert len([name for name in contents(file) if name.startswith("histories/")]) == 5
    replayed = await steer("replay", str(file), TEMPORAL_ADDRESS="127.0.0.1:1")
    assert replayed.code == 0, replayed.out + replayed.err
    assert replayed.out.count("replays") == 5


async def encrypted_run(site: Site, keys: Path) -> tuple[str, dict[str, str]]:
    """One that has closed, and the variables of its worker."""
    add_key(keys, new_key("first"))
    encrypted = {VARIABLE: "steersman.encryption:EncryptionCodec", KEYS_VARIABLE: str(keys)}
    await site.worker(**encrypted).ready()
    steersman = await site.steersman(EncryptionCodec(keys))
    run = await steersman.start(site.process("echo", "plain words"))
    await steersman.result(run)
    return run, encrypted


async def test_encrypted_payloads_are_in_it_in_the_clear(site: Site, tmp_path: Path) -> None:
    """Whoever it is handed to has no key."""
    run, encrypted = await encrypted_run(site, tmp_path / "keys")
    file = tmp_path / "run.zip"
    answer = await steer_at(site, tmp_path, **encrypted)("export", run, str(file))
    assert answer.code == 0, answer.err
    assert "plain words" in opened(json.loads(contents(file)[f"histories/1-{run}.json"]))
    replayed = await steer_at(site, tmp_path)("replay", str(file), TEMPORAL_ADDRESS="127.0.0.1:1")
    assert replayed.code == 0, replayed.out + replayed.err


async def test_what_no_key_here_opens_stays_as_it_is_and_is_named(site: Site, tmp_path: Path) -> None:
    run, encrypted = await encrypted_run(site, tmp_path / "keys")
    add_key(others := tmp_path / "others", new_key("second"))
    steer, file = steer_at(site, tmp_path, **{**encrypted, KEYS_VARIABLE: str(others)}), tmp_path / "run.zip"
    answer = await steer("export", run, str(file))
    assert answer.code == 0, answer.err
    assert re.search(rf"missing: history of {run}: \d+ payloads stayed encrypted: .*first", answer.err), answer.err
    again = await steer("replay", str(file))
    assert (again.code, "cannot be replayed here" in again.err, "first" in again.err) == (2, True, True), again.err
    without = await steer_at(site, tmp_path)("replay", str(file))
    assert (without.code, "set STEERSMAN_CODEC" in without.err) == (2, True), without.err
    has_key = await steer_at(site, tmp_path, **encrypted)("replay", str(file))
    assert has_key.code == 0, has_key.out + has_key.err


async def test_what_cannot_be_had_is_named(shared: Site, steersman: Steersman, tmp_path: Path) -> None:
    run = await steersman.start(shared.process("true"))
    await steersman.result(run)
    steer = steer_at(shared, tmp_path, STEERSMAN_STATE_DIR=str(tmp_path / "elsewhere"))
    answer = await steer("export", run, str(tmp_path / "a.zip"))
    assert answer.code == 0
    assert f"journals of {run}: none is on this machine" in answer.err
    assert (await steer("export", "nobody-at-all", str(tmp_path / "b.zip"))).code == 3
    assert not (tmp_path / "b.zip").exists()
    assert (await steer("export", run, str(tmp_path / "none" / "c.zip"))).code == 1


@pytest.mark.parametrize("name", ["../../evil.json", "histories/../../evil.json", "/etc/evil.json"])
async def test_a_hostile_file_writes_nothing_elsewhere(tmp_path: Path, name: str) -> None:
    file = tmp_path / "x.zip"
    with zipfile.ZipFile(file, "w") as bundle:
        bundle.writestr("bundle.json", "{}")
        bundle.writestr(name, "{}")
        bundle.writestr("histories/1-a.json", "no json")
    answer = await Steer("127.0.0.1:1", tmp_path)("replay", str(file))
    assert (answer.code, "is no workflow history" in answer.err) == (2, True)
    assert not list(tmp_path.rglob("evil.json"))
    assert not re.search("Traceback", answer.err)


def bundled(file: Path, history: bytes, method: int = zipfile.ZIP_DEFLATED, copies: int = 1) -> Path:
    with zipfile.ZipFile(file, "w", method) as bundle:
        bundle.writestr("bundle.json", "{}")
        for number in range(copies):
            bundle.writestr(f"histories/{number}-a.json", history)
    return file


async def test_a_hostile_bundle_is_refused_before_it_fills_a_disk(tmp_path: Path) -> None:
    good = bundled(tmp_path / "good.zip", b" " * 2000)
    data = bytearray(good.read_bytes())
    at = data.rindex(b"histories/0-a.json", 0, data.index(b"PK\x01\x02")) + len(b"histories/0-a.json")
    data[at : at + 10] = bytes(10)
    (broken := tmp_path / "broken.zip").write_bytes(data)
    (tmp_path / "tmp").mkdir()
    steer = Steer("127.0.0.1:1", tmp_path)
    steer.env["TMPDIR"] = str(tmp_path / "tmp")
    for file, why in (
        (bundled(tmp_path / "many.zip", bytes(64 << 20), copies=9), "too large"),
        (bundled(tmp_path / "other.zip", b"{}", zipfile.ZIP_BZIP2), "compressed otherwise"),
        (broken, "is no bundle that can be read"),
        (bundled(tmp_path / "deep.zip", b"[" * 100_000), "is no workflow history"),
    ):
        answer = await steer("replay", str(file))
        assert (answer.code, why in answer.err) == (2, True), answer.err
        assert "Traceback" not in answer.err
    assert not list((tmp_path / "tmp").iterdir())


async def test_as_many_histories_as_a_bundle_may_have_are_replayed(tmp_path: Path) -> None:
    with zipfile.ZipFile(file := tmp_path / "many.zip", "w") as bundle:
        bundle.writestr("bundle.json", "{}")
        for number in range(MAX_HISTORIES):
            bundle.writestr(f"histories/{number}-{'a' * 230}.json", "{}")
    answer = await Steer("127.0.0.1:1", tmp_path)("replay", str(file), "--json")
    assert (answer.code, len(answer.json)) == (2, MAX_HISTORIES), answer.err


async def test_journals_are_those_of_this_namespace_alone(site: Site, dev_server: str, tmp_path: Path) -> None:
    """People choose the ids, and namespaces may share a state directory."""
    (tmp_path / "other").mkdir()
    other, run = Site(tmp_path / "other", await new_namespace(dev_server)), "../../team/fix 1"
    try:
        for place, said in ((site, "of this one"), (other, "of another")):
            await place.worker("--state-dir", str(site.state)).ready()
            temporal = (await place.steersman()).temporal
            await temporal.execute_workflow(RUN_WORKFLOW, place.process("echo", said), id=run, task_queue=TASK_QUEUE)
    finally:
        other.end()
    file = tmp_path / "run.zip"
    answer = await steer_at(site, tmp_path)("export", run, str(file))
    assert answer.code == 0, answer.err
    journals = b"".join(content for name, content in contents(file).items() if name.startswith("journals/"))
    assert b"of this one" in journals
    assert b"of another" not in journals
    assert file_name(run) == ".._.._team_fix_1.zip"


@pytest.mark.parametrize("instead", ["link", "linked directory", "pipe"])
async def test_what_an_agent_puts_in_a_journals_place_is_not_read(
    shared: Site, steersman: Steersman, tmp_path: Path, instead: str
) -> None:
    run = await steersman.start(shared.process("echo", "hello"))
    await steersman.result(run)
    (journal,) = shared.state.glob(f"runs/*{run}*/*/attempts/1/journal")
    diary = tmp_path / "elsewhere" / "journal"
    diary.parent.mkdir()
    diary.write_bytes(journal.read_bytes().replace(b"hello", b"diary"))
    journal.unlink()
    if instead == "pipe":
        os.mkfifo(journal)
    elif instead == "link":
        journal.symlink_to(diary)
    else:
        journal.parent.rename(tmp_path / "attempt")
        journal.parent.symlink_to(diary.parent)
    file = tmp_path / "run.zip"
    answer = await steer_at(shared, tmp_path)("export", run, str(file), "--json")
    assert answer.code == 0, answer.err
    assert b"diary" not in b"".join(contents(file).values())
    assert [each for each in answer.json["missing"] if str(journal) in each]


async def test_a_closed_run_is_exported_without_a_worker(site: Site, tmp_path: Path) -> None:
    worker = site.worker()
    await worker.ready()
    steersman = await site.steersman()
    run = await steersman.start(site.process("echo", "there"))
    await steersman.result(run)
    await worker.terminate()
    answer = await steer_at(site, tmp_path)("export", run, str(tmp_path / "run.zip"))
    assert answer.code == 0, answer.err
    assert "missing: events" in answer.err
    assert f"histories/1-{run}.json" in contents(tmp_path / "run.zip")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGINT, 130)], ids=str
)
async def test_one_that_is_ended_leaves_no_half_of_a_file(
    site: Site, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    worker = site.worker()
    await worker.ready()
    steersman = await site.steersman()
    run = await steersman.start(site.process("true"))
    await steersman.result(run)
    worker.freeze()  # its events are waited for
    file = tmp_path / "run.zip"
    process = await steer_at(site, tmp_path).start("export", run, str(file))
    await until(file.exists)
    await asyncio.sleep(0.5)
    process.send_signal(number)
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (code, b"", b"")
    assert not file.exists()


async def test_a_history_is_written_to_what_a_link_leads_to(shared: Site, steersman: Steersman, tmp_path: Path) -> None:
    run = await steersman.start(shared.process("true"))
    await steersman.result(run)
    (link := tmp_path / "link").symlink_to(tmp_path / "history.json")
    answer = await steer_at(shared, tmp_path)("replay", run, "--export", str(link))
    assert answer.code == 0, answer.err
    assert link.is_symlink()
    assert json.loads((tmp_path / "history.json").read_text())["events"]
