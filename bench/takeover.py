"""A worker is killed: how long until another leads its runs, and how long whoever asks stands still."""

import asyncio
import sys
import time
from collections.abc import Awaitable

from bench.agents import Bench, soon
from bench.figures import Figure, Goal
from bench.stack import Part

RUNS = 4
KILLS = 25
RESTARTS = 10
IDLE = "import time; time.sleep(100_000)"
LOOK_S = 0.01
SETTLED_S = 3.0
"""By then a run is idle. Its progress is told at once, after 2 s and after 4 s, and a workflow task that a killed
worker was at comes again after Temporal's 10 s.
"""


async def takeover(bench: Bench) -> list[Figure]:
    """Four idle runs; their worker is killed beside another one, again and again, and then as the only one. A fifth,
    begun a second before, is stopped at that moment.
    """
    client, lost = bench.stack.client, ""
    runs = [await client.start(bench.process(sys.executable, "-c", IDLE)) for _ in range(RUNS)]
    for run in runs:
        await _led(run, bench.stack.workers[-1])
    led: list[float] = []
    answered: list[float] = []
    stopped: list[float] = []
    for _ in range(KILLS):
        killed = bench.stack.workers[-1]
        fresh = await client.start(bench.process(sys.executable, "-c", IDLE))
        await _led(fresh, killed)
        idle_at = time.monotonic() + SETTLED_S
        heir = await bench.stack.start_worker(*bench.worker)
        await asyncio.sleep(idle_at - time.monotonic())
        await killed.kill()
        begun = time.monotonic()
        asking = asyncio.create_task(_taking(client.state(runs[0])))
        stopping = asyncio.create_task(_taking(client.stop(fresh)))
        await soon(asyncio.gather(*(_led(run, heir) for run in runs)), "the other worker leads")
        led.append(1000 * (time.monotonic() - begun))
        answered.append(await asking)
        stopped.append(await stopping)
    restarted: list[float] = []
    for _ in range(RESTARTS):
        await asyncio.sleep(SETTLED_S)
        await bench.stack.workers[-1].kill()
        again = await bench.stack.start_worker(*bench.worker)
        begun = time.monotonic()
        await soon(asyncio.gather(*(_led(run, again) for run in runs)), "the worker leads again")
        restarted.append(1000 * (time.monotonic() - begun))
    reports = [await client.stop(run) for run in runs]
    attempts = [(await client.state(run)).attempt for run in runs]
    if attempts != [1] * RUNS or any(report.outcome != "stopped" for report in reports):
        lost = f"agents did not survive: {attempts}, {reports}"
    return [
        Figure("SIGKILL of a worker -> another leads its 4 runs", "ms", tuple(led), Goal(1000, 2000), lost=lost),
        Figure("the same moment: `show` is answered", "ms", tuple(answered), Goal(p99=2000)),
        Figure("the same moment: `stop` of a fifth is carried out", "ms", tuple(stopped), Goal(p99=2000)),
        Figure(
            "an only worker killed and started -> it leads, from its `worker_ready`",
            "ms",
            tuple(restarted),
            Goal(p99=1000),
        ),
    ]


async def _led(run: str, worker: Part) -> None:
    """Until that worker says that it has the run's agent in its hands."""
    while not any(word in line for line in _lines(worker, run) for word in ('"agent_adopted"', '"agent_started"')):
        await asyncio.sleep(LOOK_S)


def _lines(worker: Part, run: str) -> list[str]:
    return [line for line in worker.log.read_text(encoding="utf-8", errors="replace").splitlines() if run in line]


async def _taking(call: Awaitable[object]) -> float:
    begun = time.monotonic()
    await call
    return 1000 * (time.monotonic() - begun)
