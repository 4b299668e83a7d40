"""A worker with too few file descriptors: no agent is stopped for that, and the agents' own limit stays as it was."""

import asyncio
import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, leader, phase
from tests.support.processes import marked, until
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.linux

RUNS = 14
FEW = 64
"""Less than that many runs take together, and enough for a worker to begin."""
TRIES = 3
"""So many failures of another kind end a run."""


def most_failures(worker: WorkerProcess) -> int:
    """How often the worker has said of one run that it cannot lead it now."""
    said = [json.loads(line) for line in worker.log.read_text().splitlines()]
    return max(Counter(line["run"] for line in said if line["action"] == "not_led").values(), default=0)


async def test_agents_that_cannot_be_led_for_want_of_descriptors_work_on(site: Site, mark: str) -> None:
    first = site.worker()
    await first.ready()
    steersman = await site.steersman()
    runs = [await steersman.start(site.process(*python(OBEDIENT), mark=mark)) for _ in range(RUNS)]
    for run in runs:
        await phase(steersman, run, "running")
    agents = set(marked(mark))
    first.kill()
    few = site.worker_within(("prlimit", f"--nofile={FEW}:{FEW}"), "--max-runs", str(RUNS))
    await few.ready()
    warned = few.said("few_descriptors")
    assert warned
    assert warned["limit"] == FEW < warned["needed"]
    await until(lambda: most_failures(few) > TRIES, 60)
    said = few.said("not_led")
    assert said
    assert said["message"].startswith("this worker has no file descriptors left ([Errno 24] Too many open files")
    assert "LimitNOFILE=" in said["message"]
    few.kill()
    assert set(marked(mark)) == agents, "each works on"
    enough = site.worker("--max-runs", str(RUNS))
    await enough.ready()

    async def all_led() -> bool:
        return {await leader(steersman, run) for run in runs} == {enough.pid}

    await until(all_led, 60)
    assert set(marked(mark)) == agents
    await asyncio.gather(*(steersman.stop(run) for run in runs))


def limit_of(pid: int) -> list[str]:
    """The soft and the hard limit of open files."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line.split()[3:5] for line in lines if line.startswith("Max open files"))


@pytest.mark.parametrize("forked", [True, False])
async def test_a_worker_takes_what_it_may_and_its_agents_keep_their_own(site: Site, *, forked: bool) -> None:
    worker = site.worker_within(("prlimit", "--nofile=300:3000"))
    await worker.ready()
    steersman = await site.steersman()
    assert limit_of(worker.pid) == ["3000", "3000"]
    if not forked:
        children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        (server,) = [int(pid) for pid in children if b"\0serve\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert limit_of(server) == ["300", "3000"]
        os.kill(server, signal.SIGKILL)
    result = await steersman.run(site.process("sh", "-c", "ulimit -Sn; ulimit -Hn"))
    assert result.text.split() == ["300", "3000"]
