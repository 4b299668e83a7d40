"""With a codec, whoever reads Temporal's database learns nothing of what runs say; without one, all of it."""

import asyncio
import base64
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from steersman.client import Steersman
from steersman.codec import VARIABLE
from steersman.contracts.errors import RunError
from steersman.encryption import KEYS_VARIABLE, EncryptionCodec
from steersman.keys import add_key, new_key
from tests.acceptance.loops import ended, process_loop, project, reaches
from tests.acceptance.programs import python
from tests.acceptance.site import Site, phase
from tests.acceptance.test_approvals import approval
from tests.scripted_model import ScriptedModel, answer, say, structured, tool
from tests.support.processes import until
from tests.support.temporal import DevServer

CODEC = "steersman.encryption:EncryptionCodec"
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
ITERATION = """
until test -e go; do sleep 0.05; done
sed -i '0,/\\[ \\]/s//[x]/' PLAN.md
"""


class Canaries:
    """One word for each place, all with the same beginning."""

    def __init__(self) -> None:
        self.song = f"canary{secrets.token_hex(6)}"
        self.places: list[str] = []

    def __call__(self, place: str) -> str:
        self.places.append(place)
        return f"{self.song}{place}{self.song[:6]}"

    def heard(self, server: DevServer) -> set[str]:
        """The places whose word is somewhere in these bytes, plain or in base64 of any alignment."""
        files = [path.read_bytes() for path in server.database.parent.glob("temporal.db*")]
        content = b"".join([*files, server.log.read_bytes()])
        assert b"AgentRun" in content
        found = {place for place in self.places if f"{self.song}{place}{self.song[:6]}".encode() in content}
        if any(form in content for form in encoded(self.song)):
            found.add("base64")
        if self.song.encode() in content and not found:
            found.add("somewhere")
        return found


def encoded(word: str) -> Iterator[bytes]:
    """How base64 writes the word, whatever stands before it."""
    for before in range(3):
        text = base64.b64encode(bytes(before) + word.encode())
        yield text[(0, 2, 3)[before] : len(text) // 4 * 4 - 4]


def test_the_words_would_be_found() -> None:
    for before in range(7):
        assert any(
            form in base64.b64encode(bytes(before) + b"canary0123456789 and on") for form in encoded("canary0123456789")
        )


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A file with one key."""
    path = tmp_path / "keys"
    add_key(path, new_key("first"))
    return path


def listened_to(pipe: Path) -> int | None:
    """The pipe, open for writing, once somebody reads from it."""
    with suppress(OSError):
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    return None


async def claude_says(site: Site, steersman: Steersman, model: ScriptedModel, canary: Canaries) -> str:
    """A run that is asked, denied, steered and answers in a structure. Its id."""
    workspace = site.workspace() / canary("workspace")
    workspace.mkdir()
    (workspace / "words").write_text(canary("output"))
    os.mkfifo(workspace / "more")
    script = model.script(
        "canary",
        tool("Bash", command=f"touch {canary('command')}"),
        tool("Bash", command="cat words more"),
        tool("Write", file_path=str(workspace / canary("file")), content=canary("content")),
        answer(say(canary("said")), structured({"answer": canary("structured")})),
        say("done"),
    )
    request = site.claude(
        script,
        canary("prompt"),
        workspace=workspace,
        system_prompt=canary("system"),
        permissions={"mode": "ask", "allow": ["Bash(cat *)", "Write"]},
        labels={"team": canary("label")},
        env={"WORD": canary("env")},
        output_schema={**SCHEMA, "description": canary("schema")},
    )
    run = await steersman.start(request)
    asked = await approval(steersman, run)
    await steersman.decide(run, asked.id, "deny", canary("decision"))
    pipe = await until(lambda: listened_to(workspace / "more"))
    await steersman.steer(run, canary("message"))
    os.close(pipe)
    assert (await steersman.result(run)).structured
    return run


async def programs_say(site: Site, steersman: Steersman, canary: Canaries) -> list[str]:
    """A run that succeeds, one that fails and one that is stopped. Their ids."""
    good = await steersman.start(site.process(*python(f"print('{canary('text')}')")))
    bad = await steersman.start(site.process("sh", "-c", f"echo {canary('stderr')} >&2; exit 7"))
    refused = await steersman.start({**site.process("true"), "workspace": {"path": f"/nowhere/{canary('invalid')}"}})
    long = await steersman.start(site.process("sh", "-c", f"echo {canary('argument')}; sleep 600"))
    await steersman.result(good)
    for run in (bad, refused):
        with pytest.raises(RunError):
            await steersman.result(run)
    await phase(steersman, long, "running")
    stopped = await steersman.stop(long, reason=canary("reason"))
    assert stopped.outcome == "stopped"
    return [good, bad, refused, long]


async def loop_says(site: Site, steersman: Steersman, canary: Canaries) -> str:
    """A loop with feedback, a pause with a reason, and a verification. Its id."""
    plan = f"# Plan\n\n- [ ] {canary('item')}\n- [ ] two\n"
    workspace = project(site, {"PLAN.md": plan})
    verify = {"command": f"test $(grep -c x PLAN.md) -ge 2 || {{ echo {canary('verification')}; exit 1; }}"}
    request = process_loop(
        site,
        ITERATION,
        workspace,
        done={"items": {"kind": "checkboxes"}, "verify": verify},
        prompt=f"{{plan}} {canary('template')}",
    )
    loop = await steersman.loops.start(request)
    await reaches(steersman, loop, lambda state: state.run)
    await steersman.loops.feedback(loop, canary("feedback"))
    await steersman.loops.pause(loop, reason=canary("pause"))
    (workspace / "go").touch()
    await reaches(steersman, loop, "paused")
    await steersman.loops.resume(loop, canary("resume"))
    assert (await ended(steersman, loop)).status == "completed"
    return loop


async def everything_is_read(steersman: Steersman, runs: list[str], loop: str) -> None:
    """As a person does who looks at each run."""
    for run in runs:
        async with asyncio.timeout(30):
            assert [event async for event in steersman.attach(run)]
        assert (await steersman.state(run)).phase == "closed"
        assert await steersman.events(run)
    assert await steersman.loops.checkpoints(loop)
    assert (await steersman.loops.state(loop)).status == "completed"
    listed = await steersman.list()
    assert {run.workspace for run in listed if run.id in runs} - {None}
    assert await steersman.loops.list()


async def life(site: Site, model: ScriptedModel, canary: Canaries, codec: EncryptionCodec | None) -> None:
    """All that can be said to runs, their worker and server at an end."""
    steersman = await site.steersman(codec)
    runs = [await claude_says(site, steersman, model, canary), *await programs_say(site, steersman, canary)]
    loop = await loop_says(site, steersman, canary)
    await everything_is_read(steersman, [*runs, f"{loop}-1"], loop)
    await site.workers[0].terminate()
    site.server.stop()
    with closing(sqlite3.connect(site.server.database)) as database:
        database.execute("PRAGMA wal_checkpoint(FULL)")


async def test_a_canary_is_nowhere_in_the_servers_database(
    site_with_server: Site, model: ScriptedModel, keys: Path
) -> None:
    site, canary = site_with_server, Canaries()
    await site.worker(**{VARIABLE: CODEC, KEYS_VARIABLE: str(keys)}).ready()

    await life(site, model, canary, EncryptionCodec(keys))

    assert canary.heard(site.server) == set()


@pytest.mark.exhaustive
async def test_without_a_codec_every_canary_is_in_the_servers_database(
    site_with_server: Site, model: ScriptedModel
) -> None:
    site, canary = site_with_server, Canaries()
    await site.worker().ready()

    await life(site, model, canary, None)

    assert set(canary.places) - canary.heard(site.server) == set()
