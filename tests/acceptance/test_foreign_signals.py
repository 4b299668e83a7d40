"""Signals that only a worker sends, sent by somebody else with whatever they like."""

from pathlib import Path

import pytest

from steersman.client import Steersman
from steersman.contracts import names
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, gone, phase

INTERNAL = (names.SESSION_STARTED, names.PROGRESSED, names.APPROVAL_ASKED, names.MESSAGES_SETTLED)
INPUTS: tuple[tuple[str, ...], ...] = (
    (),
    ("--input", "1", "--input", "2"),
    ("--input", "null"),
    ("--input", '{"usage": []}'),
    ("--input", '"x"', "--input-meta", "encoding=binary/plain"),
)


async def test_they_hold_no_run_up(shared: Site, steersman: Steersman, mark: str, tmp_path: Path) -> None:
    run = await steersman.start(shared.process(*python(OBEDIENT), mark=mark))
    await phase(steersman, run, "running")
    before = await steersman.state(run)
    for name in INTERNAL:
        for given in INPUTS:
            await shared.temporal("workflow", "signal", "--workflow-id", run, "--name", name, *given)
    state = await steersman.state(run)
    assert (state.handle, state.attempt, state.phase) == (before.handle, before.attempt, "running")
    assert (await steersman.stop(run)).outcome == "stopped"
    await gone(mark)


@pytest.mark.parametrize("name", INTERNAL)
async def test_not_even_before_it_begins(site: Site, name: str, mark: str) -> None:
    steersman = await site.steersman()
    run = await steersman.start(site.process("true", mark=mark))
    for given in INPUTS:
        await site.temporal("workflow", "signal", "--workflow-id", run, "--name", name, *given)
    await site.worker().ready()
    assert (await steersman.result(run)).status == "succeeded"
