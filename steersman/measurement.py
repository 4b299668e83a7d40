"""How long a start, a message and a cancel take here, by runs that do nothing: `steer doctor --measure`."""

import os
import statistics
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import Final

from steersman._client.server_checks import Check
from steersman.client import Steersman
from steersman.contracts.errors import RunError
from steersman.errors import SteersmanError
from steersman.hosts import host_name, state_directory

TIMES: Final = 5
_PROGRAM: Final = ("sh", "-c", "echo ready; while read line; do :; done")


async def measure(client: Steersman) -> list[Check]:
    """Checks, as `check_server`: medians and the slowest of some runs on this machine, each stopped again.

    An agent's own start and interrupt are not in it: those would ask its model, which costs.
    """
    taken: dict[str, list[float]] = {"start": [], "message": [], "cancel": []}
    with tempfile.TemporaryDirectory(prefix="steer-") as directory:
        for number in range(TIMES):
            workspace = Path(directory, str(number))
            os.mkdir(workspace)  # noqa: PTH102 - nothing else runs
            try:
                await _once(client, workspace, taken)
            except (SteersmanError, RunError) as error:
                hint = (
                    "the worker of this machine has to allow agent process, and workspaces in the temporary directory"
                )
                return [Check(check="measured", ok=False, detail=str(error), hint=hint)]
    about = {
        "start": "from the call to the program's first word",
        "message": "from the call until the program was given it",
        "cancel": "from the call until nothing is left, proven",
    }
    return [
        Check(
            check=f"measured {name}",
            ok=True,
            detail=f"{statistics.median(times):.0f} ms, at most {max(times):.0f} ({about[name]}; {TIMES} runs)",
        )
        for name, times in taken.items()
    ]


async def _once(client: Steersman, workspace: Path, taken: dict[str, list[float]]) -> None:
    began = time.monotonic()
    run = await client.start(
        {
            "agent": "process",
            "command": list(_PROGRAM),
            "options": {"messages": "lines"},
            "workspace": {"path": str(workspace), "host": host_name(state_directory())},
        }
    )
    try:
        async with aclosing(client.attach(run)) as events:
            async for event in events:
                if event.type == "message":
                    break
        taken["start"].append((time.monotonic() - began) * 1000)
        asked = time.monotonic()
        await client.steer(run, "hello")
        taken["message"].append((time.monotonic() - asked) * 1000)
    finally:
        asked = time.monotonic()
        stopped = await client.stop(run, reason="measured")
    if stopped.outcome == "stopped":
        taken["cancel"].append((time.monotonic() - asked) * 1000)
