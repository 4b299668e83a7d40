"""The other machine restarts in the midst of a run: every process there dies at once, and sshd comes back later."""

import asyncio
import os
import signal
import uuid
from contextlib import suppress

import pytest

from steersman.contracts.errors import AgentCrashed
from tests.acceptance.programs import OBEDIENT
from tests.acceptance.site import following, in_order
from tests.acceptance.test_changes import EDIT, made
from tests.acceptance.test_isolated import COMMIT, copy_of
from tests.acceptance.test_ssh import Elsewhere, elsewhere
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.disks import may_mount
from tests.support.processes import marked, until

__all__ = ["elsewhere"]

pytestmark = [pytest.mark.acceptance, pytest.mark.linux]


async def restart(place: Elsewhere, *, away_s: float = 0) -> None:
    """Nothing that was at work there lives, nor has seen anything else die; the machine has another boot id."""
    place.sshd.stop()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in marked(str(place.home)):
            with suppress(ProcessLookupError):  # what a connection had begun ends with that
                os.kill(pid, number)
    await until(lambda: not marked(str(place.home)))
    if may_mount():
        boot = place.site.root / "boot"
        boot.mkdir()
        (boot / "id").write_text(f"{uuid.uuid4()}\n")
        (boot / "up").write_text("0.01 0.01\n")
        mounts = f"mount --bind {boot}/id /proc/sys/kernel/random/boot_id && mount --bind {boot}/up /proc/uptime"
        place.sshd.within = ("unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh")
    await asyncio.sleep(away_s)
    place.sshd.start()


@pytest.mark.exhaustive
@pytest.mark.parametrize("away_s", [0, 15])
async def test_a_program_has_crashed_and_what_it_did_comes_back(elsewhere: Elsewhere, mark: str, away_s: float) -> None:
    await elsewhere.site.worker(*elsewhere.flags).ready()
    steersman = await elsewhere.site.steersman()
    repository = made(elsewhere.site.workspace())
    run = await steersman.start(elsewhere.process(EDIT + COMMIT + OBEDIENT, workspace=repository, mark=mark))
    async with following(steersman, run) as attached:
        await attached.until(lambda event: event.type == "message")
        await restart(elsewhere, away_s=away_s)
        events = await attached.end(90)
    with pytest.raises(AgentCrashed, match="its end was not seen") as crashed:
        await steersman.result(run)
    assert crashed.value.result
    assert crashed.value.result.finalize
    assert crashed.value.result.finalize.status == "succeeded"
    assert in_order(events)
    assert (repository / "edited").read_text() == "one\nTWO\nthree\n"
    assert elsewhere.kept == []


async def test_claude_goes_on_with_its_session(elsewhere: Elsewhere, model: ScriptedModel, mark: str) -> None:
    await elsewhere.site.worker(*elsewhere.flags).ready()
    steersman = await elsewhere.site.steersman()
    repository = made(elsewhere.site.workspace())
    steps = (tool("Bash", command="echo a first step > step"), hold("thinking"), say("finished"))
    script = model.script("reboot", *steps)
    request = elsewhere.claude(script, "build it", mark=mark, workspace=repository, permissions={"mode": "full"})
    run = await steersman.start(request)
    async with following(steersman, run) as attached:
        await script.wait_held()
        await attached.until(lambda e: e.type == "message" and e.text == "thinking")
        await copy_of(steersman, run)
        await restart(elsewhere)
        events = await attached.end(90)
    result = await steersman.result(run)
    assert (result.status, result.text, result.attempts) == ("succeeded", "finished", 2)
    assert in_order(events)
    assert (repository / "step").read_text() == "a first step\n"
    assert elsewhere.kept == []
