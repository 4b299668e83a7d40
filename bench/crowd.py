"""Many runs at once: what each costs, and that none is lost."""

import asyncio
import json
import os
import secrets
import time
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.worker import Worker

from bench.agents import Bench, soon
from bench.figures import Figure, Goal
from bench.stack import is_there, until
from steersman.contracts.run import RunResult

RUNS = 200
WARM_UP = 10
BESIDE = 300
CANCELS, STORM_CANCELS = 40, 5
IDLE, AT_ONCE = 1000, 100
SETTLE_S, LOOK_S = 60.0, 60.0
"""What a run has said last is told until then; the worker is looked at for so many seconds."""
PATIENCE_S = 300.0
"""A busy machine is slow, and that is no loss."""
MIB = 1024 * 1024


async def crowd(bench: Bench) -> list[Figure]:
    """200 processes that wait until all are there; before them, as many workflows of which each calls one activity."""
    trivial_s = await _trivial(bench)
    await asyncio.gather(*(bench.stack.client.run(bench.process("true")) for _ in range(WARM_UP)))
    gate, here = bench.workspace / "gate", bench.workspace / "here"
    os.mkfifo(gate)
    command = f"echo x >> {here}; echo begun; read _ < {gate}; echo ended"
    worker = bench.stack.workers[-1].pid
    before = memory(worker)
    begun = time.monotonic()
    runs = await asyncio.gather(*(bench.stack.client.start(bench.process("sh", "-c", command)) for _ in range(RUNS)))
    await _all_at_work(here, RUNS)
    all_there = time.monotonic() - begun
    during = memory(worker)
    shims = [memory(pid)["Rss"] for pid in _shims(bench.stack.state, runs)]
    lost = await _released(bench, gate, runs)
    took = time.monotonic() - begun
    told = "" if not lost and len(shims) == RUNS else f"{len(lost)} runs lost, {RUNS - len(shims)} shims not found"
    each = {name: (during[name] - before[name]) / RUNS for name in during}
    note = (
        f"worker RSS {before['Rss']:.0f} -> {during['Rss']:.0f} MiB, "
        f"PSS {before['Pss']:.0f} -> {during['Pss']:.0f} MiB ({each['Pss']:.2f} a run)"
    )
    return [
        Figure(f"{RUNS} runs at once: worker memory a run", "MiB", (each["Rss"],), Goal(p50=1), "", note, told),
        Figure(f"{RUNS} runs at once: RSS of each shim", "MiB", tuple(shims), Goal(p99=14)),
        Figure(
            f"{RUNS} runs at once: all at work",
            "s",
            (all_there,),
            Goal(p50=2 * trivial_s),
            f"{RUNS} workflows of one trivial activity, all ended: {trivial_s:.1f} s",
        ),
        Figure(
            f"{RUNS} runs at once: none lost, all of it", "s", (took,), None, "", f"all at work after {all_there:.1f} s"
        ),
    ]


async def _all_at_work(here: Path, count: int) -> None:
    """Each says so by a line in that file."""
    await until("all runs are at work", lambda: here.exists() and here.stat().st_size == 2 * count, PATIENCE_S)


async def _released(bench: Bench, gate: Path, runs: list[str]) -> list[str]:
    """Let all that wait at the gate go on to their ends; the runs that did not say their words."""
    # Opening both ways needs no reader; whoever reads gets a line of its own.
    descriptor = os.open(gate, os.O_RDWR)
    os.write(descriptor, b"\n" * len(runs))
    results = await asyncio.gather(
        *(soon(bench.stack.client.result(run), run, PATIENCE_S) for run in runs), return_exceptions=True
    )
    os.close(descriptor)
    return [run for run, result in zip(runs, results, strict=True) if not whole(result)]


@activity.defn(name="bench-nothing")
async def _nothing() -> None:
    """What a workflow of one trivial activity calls."""


@workflow.defn(name="bench-trivial", sandboxed=False)
class _Trivial:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(_nothing, schedule_to_close_timeout=timedelta(minutes=5))


async def _trivial(bench: Bench) -> float:
    """Seconds that as many workflows take on the same server, of a worker in this process."""
    client = bench.stack.client.temporal
    async with Worker(client, task_queue="bench-trivial", workflows=[_Trivial], activities=[_nothing]):
        begun = time.monotonic()
        await asyncio.gather(
            *(
                client.execute_workflow(_Trivial.run, id=f"trivial-{secrets.token_hex(6)}", task_queue="bench-trivial")
                for _ in range(RUNS)
            )
        )
        return time.monotonic() - begun


async def cancelled_beside(bench: Bench) -> list[Figure]:
    """300 idle processes are started at once; beside them one run after another is started and cancelled."""
    client = bench.stack.client
    gate, here = bench.workspace / "gate", bench.workspace / "here"
    os.mkfifo(gate)
    command = f"echo x >> {here}; read _ < {gate}; echo begun; echo ended"
    begun = time.monotonic()
    runs = await asyncio.gather(*(client.start(bench.process("sh", "-c", command)) for _ in range(BESIDE)))
    storm = [await _cancelled(bench) for _ in range(STORM_CANCELS)]
    await _all_at_work(here, BESIDE)
    all_there = time.monotonic() - begun
    idle = [await _cancelled(bench) for _ in range(CANCELS)]
    lost = await _released(bench, gate, runs)
    told = f"{len(lost)} runs lost" if lost else ""
    what = f"cancel -> the agent is gone, beside {BESIDE} runs"
    return [
        Figure(f"{what} at work", "ms", tuple(idle), Goal(p99=1000), lost=told),
        Figure(f"{what} that are starting", "ms", tuple(storm), None),
        Figure(f"{BESIDE} runs at once beside those that are cancelled: all at work", "s", (all_there,)),
    ]


async def idle(bench: Bench) -> list[Figure]:
    """What the worker of 1,000 silent runs does."""
    worker, client = bench.stack.workers[-1].pid, bench.stack.client
    before = await _share(worker)
    gate, here = bench.workspace / "gate", bench.workspace / "here"
    os.mkfifo(gate)
    command = f"echo x >> {here}; read _ < {gate}; echo begun; echo ended"
    runs: list[str] = []
    while len(runs) < IDLE:
        runs += await asyncio.gather(*(client.start(bench.process("sh", "-c", command)) for _ in range(AT_ONCE)))
        await _all_at_work(here, len(runs))
    await asyncio.sleep(SETTLE_S)
    share = await _share(worker)
    lost = await _released(bench, gate, runs)
    told = f"{len(lost)} runs lost" if lost else ""
    return [
        Figure(
            f"{IDLE} idle runs: their worker",
            "% of a core",
            (share,),
            Goal(p50=15),
            f"without: {before:.1f} %",
            "",
            told,
        )
    ]


async def _share(worker: int) -> float:
    """How much of a core a process takes, in percent."""
    before = _cpu_s(worker)
    await asyncio.sleep(LOOK_S)
    return 100 * (_cpu_s(worker) - before) / LOOK_S


def _cpu_s(pid: int) -> float:
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


async def _cancelled(bench: Bench) -> float:
    """Start a run, cancel it; how long until no process of it is left."""
    run = await bench.stack.client.start(bench.process("sleep", "1000"))
    attempts = bench.stack.state / "runs" / run
    await until("the run is at work", lambda: any(attempts.glob("*/attempts/1/state.json")), PATIENCE_S)
    (agent,) = (int(json.loads(file.read_bytes())["pid"]) for file in attempts.glob("*/attempts/1/state.json"))
    begun = time.monotonic()
    await bench.stack.client.temporal.get_workflow_handle(run).cancel()
    await until("the agent is gone", lambda: not is_there(agent), PATIENCE_S)
    return 1000 * (time.monotonic() - begun)


def whole(result: RunResult | BaseException) -> bool:
    """Whether a run said its two words and succeeded."""
    return isinstance(result, RunResult) and result.status == "succeeded" and result.text.split() == ["begun", "ended"]


def memory(pid: int) -> dict[str, float]:
    """Rss and Pss in MiB."""
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return {name.rstrip(":"): int(kilobytes) * 1024 / MIB for name, kilobytes, *_ in rows if name in ("Rss:", "Pss:")}


def _shims(state: Path, runs: list[str]) -> list[int]:
    """The parent of each run's agent is its shim."""
    found = []
    for run in runs:
        for facts in state.glob(f"runs/{run}/*/attempts/1/state.json"):
            agent = int(json.loads(facts.read_bytes())["pid"])
            found.append(int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1]))
    return found
