"""Runs in pods, beside the same on this machine or what the cluster takes by itself."""

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from activities.runtimes.kubernetes import manifest
from bench.agents import Bench, soon
from bench.clusters import GRACE_S, Pods, pods
from bench.crowd import memory, whole
from bench.elsewhere import interrupt_both
from bench.figures import Figure, Goal, spread
from bench.hops import Hop, history, hops, medians
from bench.story import STUBBORN
from steersman.contracts.events import MessageEvent
from steersman.contracts.kubernetes import KubernetesRuntime
from tests.scripted_model import hold

STOPS, STUBBORN_STOPS, PLAIN_DELETIONS = 20, 10, 5
INTERRUPTS = 40
STARTS = 20
POOL = 2
CROWD, WARM_UP = 100, 5
CROWD_PATIENCE_S = 1200.0
LOOK_S = 0.02
OBEDIENT = ("python3", "-I", "-S", "-u", "-c", "import time; print('ready'); time.sleep(3600)")


async def stops(bench: Bench) -> list[Figure]:
    """Until the API knows neither Job nor pod: the agent is stopped, the copy carried back, the pod deleted."""
    goal_ms = 1000 * (GRACE_S + 3)
    async with pods(bench) as there:
        plain = [await _deleted(there) for _ in range(PLAIN_DELETIONS)]
        baseline = f"deletion alone of a Job that has done nothing: {spread(plain)}"
        stubborn = ("python3", "-I", "-S", "-u", "-c", f"print('ready', flush=True)\n{STUBBORN}")
        rows = (
            ("a process", OBEDIENT, STOPS, Goal(p50=3000, p99=goal_ms)),
            ("one that ignores SIGTERM, with setsid grandchildren", stubborn, STUBBORN_STOPS, Goal(p99=goal_ms)),
        )
        return [await _stops(bench, there, row, baseline) for row in rows]


async def _stops(bench: Bench, there: Pods, row: tuple[str, tuple[str, ...], int, Goal], baseline: str) -> Figure:
    name, command, count, goal = row
    took: list[float] = []
    problems: list[str] = []
    paths: list[list[Hop]] = []
    client = bench.stack.client
    for _ in range(count):
        run = await client.start(bench.process(*command, **there.runtime()))
        await soon(_first_word(bench, run), f"{run} is at work")
        begun = time.monotonic()
        await client.temporal.get_workflow_handle(run).cancel()
        await soon(_none_left(there), f"{run} has left the cluster")
        took.append(1000 * (time.monotonic() - begun))
        await soon(client.stop(run), f"{run} closes")
        report = (await client.state(run)).stop_report
        if report is None or report.outcome != "stopped" or report.left:
            problems.append(f"{run}: reported {report}")
        paths.append(hops(await history(client, run), "WorkflowExecutionCancelRequested"))
    what = f"pod ({there.name}): cancel -> Job and pod gone: {name}"
    return Figure(what, "ms", tuple(took), goal, baseline, lost="; ".join(problems), hops=medians(paths))


async def _deleted(there: Pods) -> float:
    """What the cluster takes by itself to delete such a Job."""
    copy = secrets.token_hex(16)
    runtime = KubernetesRuntime.model_validate(there.runtime()["runtime"])
    jobs = f"/apis/batch/v1/namespaces/{there.namespace}/jobs"
    job = await there.api.create(jobs, manifest.job(runtime, copy, "bench", "bench"))
    await soon(_running(there), "the pod runs")
    await asyncio.sleep(1)  # process 1 takes no SIGTERM before it has said that it does
    begun = time.monotonic()
    await there.api.delete(f"{jobs}/{job['metadata']['name']}", job["metadata"]["uid"], propagationPolicy="Foreground")
    await soon(_none_left(there), "Job and pod are gone")
    return 1000 * (time.monotonic() - begun)


async def interrupts(bench: Bench) -> list[Figure]:
    """Claude is interrupted in a pod and here, in turn."""
    there_ms: list[float] = []
    here_ms: list[float] = []
    lost: list[str] = []
    async with pods(bench) as there:
        script = there.model.script(f"pod-interrupt-{secrets.token_hex(3)}", hold("Once"), repeat=True, keep=4)
        await interrupt_both(bench, (script, there.with_claude(), there_ms), here_ms, INTERRUPTS, lost)
    over = tuple(pod - here for pod, here in zip(there_ms, here_ms, strict=True))
    what = f"pod ({there.name}): interrupt -> acknowledged, beyond what it takes here"
    baseline = f"here {spread(here_ms)}, there {spread(there_ms)}"
    return [Figure(what, "ms", over, Goal(p50=150), baseline, lost="; ".join(lost))]


async def starts(bench: Bench) -> list[Figure]:
    """Until the agent says its first word, from when the pod runs."""
    beyond: list[float] = []
    own: list[float] = []
    here: list[float] = []
    paths: list[list[Hop]] = []
    client = bench.stack.client
    async with pods(bench) as there:
        for _ in range(STARTS):
            watch = asyncio.create_task(_start_of(there))
            run = await client.start(bench.process(*OBEDIENT, **there.runtime()))
            created, running = await soon(watch, f"the pod of {run} runs")
            said = await soon(_first_word(bench, run), f"{run} says something")
            own.append(1000 * (running - created).total_seconds())
            beyond.append(1000 * (said - running).total_seconds())
            await client.stop(run)
            await soon(_none_left(there), f"{run} has left the cluster")
            paths.append(hops(await history(client, run), "WorkflowExecutionStarted", "WorkflowExecutionSignaled"))
            began = datetime.now(UTC)
            run = await client.start(bench.process(*OBEDIENT))
            here.append(1000 * (await soon(_first_word(bench, run), f"{run} says something") - began).total_seconds())
            await client.stop(run)
    what = f"pod ({there.name}): running -> first event of its agent"
    baseline = f"Job created -> pod running: {spread(own)}; start -> first event here: {spread(here)}"
    return [Figure(what, "ms", tuple(beyond), Goal(p50=1000), baseline, hops=medians(paths))]


async def pools(bench: Bench) -> list[Figure]:
    """The same, where the pod waits in a pool already."""
    beyond: list[float] = []
    whole_ms: list[float] = []
    jobs: list[float] = []
    problems: list[str] = []
    async with pods(bench) as there:
        pooled = there.runtime(pool="bench")
        runtime = KubernetesRuntime.model_validate(pooled["runtime"])
        path = f"/apis/apps/v1/namespaces/{there.namespace}/deployments"
        await there.api.create(path, manifest.pool(runtime, POOL))
        for number in range(STARTS):
            await soon(_seen(there, _all_wait), "the pool is full")
            began, watch = datetime.now(UTC), asyncio.create_task(_seen(there, _one_is_taken))
            run = await bench.stack.client.start(bench.process(*OBEDIENT, **pooled))
            said = await soon(_first_word(bench, run), f"{run} says something")
            taken = await watch
            beyond.append(1000 * (said - taken).total_seconds())
            whole_ms.append(1000 * (said - began).total_seconds())
            if (await there.there())[0]:
                problems.append(f"{run} has a Job")
            await bench.stack.client.stop(run)
            await soon(_seen(there, lambda _, found: not _one_is_taken([], found)), f"{run} has left the cluster")
            if number % (STARTS // PLAIN_DELETIONS) == 0:
                began = datetime.now(UTC)
                run = await bench.stack.client.start(bench.process(*OBEDIENT, **there.runtime()))
                said = await soon(_first_word(bench, run), f"{run} says something")
                jobs.append(1000 * (said - began).total_seconds())
                await bench.stack.client.stop(run)
                await soon(_seen(there, lambda found, _: not found), f"{run} has left the cluster")
    what = f"pod of a pool ({there.name}): taken -> first event of its agent"
    baseline = f"start -> first event, of a pool: {spread(whole_ms)}; of a Job: {spread(jobs)}"
    return [Figure(what, "ms", tuple(beyond), Goal(p50=1000), baseline, lost="; ".join(problems))]


async def crowd(bench: Bench) -> list[Figure]:
    """100 processes here, then as many in pods of the tests' cluster, which wait until all are there."""
    here, _, problem = await _crowd(bench, {}, CROWD)
    async with pods(bench, own=True) as there:
        each, took, lost = await _crowd(bench, there.runtime(), CROWD)
        began = time.monotonic()
        await soon(_none_left(there), "all Jobs and pods are gone", CROWD_PATIENCE_S)
        gone = time.monotonic() - began
    what = f"pods ({there.name}): {CROWD} runs at once"
    lost = "; ".join(filter(None, (problem, lost)))
    a_run = (each[1] - each[0]) / CROWD
    note = f"worker RSS {each[0]:.0f} -> {each[1]:.0f} MiB, after {WARM_UP} other runs there"
    baseline = f"the same here: {(here[1] - here[0]) / CROWD:.2f} MiB"
    told = (
        f"95 at work after {took[2]:.1f} s, all after {took[0]:.1f} s; no Job or pod {gone:.1f} s after the last result"
    )
    return [
        Figure(f"{what}: worker memory a run", "MiB", (a_run,), Goal(p50=2), baseline, note, lost),
        Figure(f"{what}: none lost, all of it", "s", (took[1],), None, "", told, lost),
    ]


async def _crowd(
    bench: Bench, runtime: dict[str, Any], count: int
) -> tuple[tuple[float, float], tuple[float, float, float], str]:
    """RSS before and with all of them; seconds until all were at work, all had ended, and 95 % were at work; losses."""
    client, worker = bench.stack.client, bench.stack.workers[-1].pid
    await asyncio.gather(*(client.run(bench.process("true", **runtime)) for _ in range(WARM_UP)))
    waiting: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: waiting.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    command = ("bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo begun; read -u 3 _; echo ended")
    before, begun = memory(worker)["Rss"], time.monotonic()
    runs = await asyncio.gather(*(client.start(bench.process(*command, **runtime)) for _ in range(count)))
    await soon(_until(lambda: len(waiting) >= 0.95 * count), "most runs are at work", CROWD_PATIENCE_S)
    most = time.monotonic() - begun
    await soon(_until(lambda: len(waiting) >= count), "all runs are at work", CROWD_PATIENCE_S)
    at_work = time.monotonic() - begun
    await asyncio.sleep(5)  # until what they all had to say is written
    during = memory(worker)["Rss"]
    for writer in waiting:
        writer.write(b"\n")
    results = await asyncio.gather(
        *(soon(client.result(run), run, CROWD_PATIENCE_S) for run in runs), return_exceptions=True
    )
    took = time.monotonic() - begun
    for writer in waiting:
        writer.close()
    server.close()
    lost = [f"{run}: {result!r:.200}" for run, result in zip(runs, results, strict=True) if not whole(result)]
    return (before, during), (at_work, took, most), f"{len(lost)} runs lost: {lost[:3]}" if lost else ""


async def _first_word(bench: Bench, run: str) -> datetime:
    """When the agent said it."""
    async with aclosing(bench.stack.client.attach(run)) as events:
        async for event in events:
            if isinstance(event, MessageEvent):
                return event.time
    raise RuntimeError(f"{run} ended without a word")


async def _start_of(there: Pods) -> tuple[datetime, datetime]:
    """When the only Job was seen first, and when the container of its pod was seen to run."""
    created = await _seen(there, lambda jobs, _: bool(jobs))
    return created, await _seen(there, _runs)


async def _running(there: Pods) -> None:
    await _seen(there, _runs)


async def _none_left(there: Pods) -> None:
    await _seen(there, lambda jobs, found: not jobs and not found)


def _all_wait(_: list[dict[str, Any]], found: list[dict[str, Any]]) -> bool:
    waiting = [each for each in found if manifest.POOL in each["metadata"]["labels"]]
    return len(waiting) == POOL and all(_runs([], [each]) for each in waiting)


def _one_is_taken(_: list[dict[str, Any]], found: list[dict[str, Any]]) -> bool:
    return any(manifest.TAKEN_FROM in each["metadata"]["labels"] for each in found)


def _runs(_: list[dict[str, Any]], found: list[dict[str, Any]]) -> bool:
    statuses = [each for pod in found for each in pod["status"].get("containerStatuses") or []]
    return any("running" in each["state"] for each in statuses)


async def _seen(there: Pods, condition: Callable[[list[dict[str, Any]], list[dict[str, Any]]], bool]) -> datetime:
    while not condition(*await there.there()):
        await asyncio.sleep(LOOK_S)
    return datetime.now(UTC)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.1)
