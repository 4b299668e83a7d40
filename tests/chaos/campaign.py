"""One campaign: the machine, its subjects, the faults of a seed, and at the end what did not hold."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import ScheduleActionExecutionStartWorkflow, ScheduleOverlapPolicy, WorkflowHistory
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError
from temporalio.worker import Replayer

from steersman.client import Steersman
from steersman.contracts import names
from steersman.contracts.errors import ASK_AGAIN
from steersman.converter import DATA_CONVERTER
from steersman.errors import SteersmanError
from tests.acceptance.site import Site, leader
from tests.chaos import checks, readers, workerlogs
from tests.chaos.evidence import Evidence, of_subject
from tests.chaos.machine import Machine
from tests.chaos.people import RPC_S, People
from tests.chaos.readers import Reader
from tests.chaos.report import Report
from tests.chaos.schedule import Step, schedule
from tests.chaos.strikes import FROM_BELOW, Strikes, living
from tests.chaos.subjects import KINDS, Subject, subject
from tests.scripted_model import ScriptedModel
from tests.support.processes import marked, until
from workflows.agent_loop import AgentLoop
from workflows.agent_run import AgentRun
from workflows.host_sweep import SweepHost
from workflows.runner import ReplaySafeRunner

LOOK_S = 0.2
RETIRED_S = 45.0
"""A subject that is still at work after so long is cancelled: some never end by themselves."""
LED_S = 60.0
"""How long after the last fault every open run may be without somebody who leads it."""
CLOSING_S = 90.0
GONE_S = 15.0
SWEPT_S = 60.0
READERS = 2
TEMPORALS_OWN = {"RESET_WORKFLOW", "UNHANDLED_COMMAND", "FORCE_CLOSE_COMMAND"}
"""Why Temporal itself fails a workflow task: not by any fault of its code."""
AHEAD = re.compile(
    r"Fatal error in workflow machines: ActivityMachine in state \w+CommandCreated says the transition is invalid "
)
"""How the SDK itself gives up what a worker remembers of a workflow, before `workflows/runner.py` can: a query took a
cancel ahead of its task, and what stands next in the history is not what that commanded (seen in 1 of 14 campaigns on a
busy machine, and with a bare workflow). The next task has the whole history; where the code were at fault, that would
not replay, which is looked at too.
"""


class Campaign:
    """`run` makes `faults` faults, or goes on for `seconds`, whichever is first."""

    def __init__(self, root: Path, seed: int, model: ScriptedModel) -> None:
        self.report = Report(seed, root)
        self._root, self._seed, self._model = root, seed, model
        self._machine = Machine(Site(root))
        self._all: list[Subject] = []
        self._readers: list[Reader] = []
        self._watches: list[asyncio.Task[None]] = []

    async def run(self, faults: int, seconds: float) -> Report:
        """The campaign, from the first worker to the last check."""
        began = time.monotonic()
        try:
            await self._machine.start()
            quiet = Runtime(telemetry=TelemetryConfig(logging=None))  # that no server answers is part of it
            self._steersman = Steersman(await self._machine.site.namespace.connect(quiet))
            self._watches.append(asyncio.create_task(self._count_agents()))
            await self._strike(faults, began + seconds)
            await self._settle()
            await self._judge()
        finally:
            for each in self._readers:
                each.leave()
            for watch in self._watches:
                watch.cancel()
            self._machine.end()
        self.report.took_s = time.monotonic() - began
        return self.report

    @property
    def _open(self) -> list[Subject]:
        return [each for each in self._all if each.closed_as is None]

    # Faults.

    async def _strike(self, faults: int, until_s: float) -> None:
        strikes = Strikes(self._machine, lambda: self._open)
        people = People(self._machine, self._steersman, lambda: self._open)
        for step in schedule(self._seed):
            for watch in self._watches:
                if watch.done():
                    watch.result()  # raises what went wrong in the suite itself
            if self.report.faults.total() >= faults or time.monotonic() > until_s:
                return
            await self._fill()
            self._read()
            await asyncio.sleep(step.pause_s)
            self._machine.look_after()
            if step.fault == "reader_killed":
                told = self._cut(step)
            else:
                told = strikes.strike(step) if step.fault.startswith(FROM_BELOW) else await people.strike(step)
            if told is not None:
                self.report.faults[step.fault] += 1
                self.report.steps.append(f"{time.strftime('%H:%M:%S')} {step.number} {step.fault} {told}")

    async def _fill(self) -> None:
        """One subject of each kind is at work."""
        there = {each.kind for each in self._open}
        for kind in KINDS:
            if kind not in there:
                new = subject(self._machine.site, self._model, kind, len(self._all) + 1)
                self._all.append(new)
                self._watches.append(asyncio.create_task(self._live(new)))

    async def _live(self, new: Subject) -> None:
        """From its start to its end; the moment that its end is seen, its processes are looked for."""
        await self._start(new)
        began, handle = time.monotonic(), self._steersman.temporal.get_workflow_handle(new.id)
        while True:
            with contextlib.suppress(RPCError):
                status = (await handle.describe(rpc_timeout=RPC_S)).status
                if status is not None and status.name not in {"RUNNING", "CONTINUED_AS_NEW"}:
                    new.living_at_close = marked(new.mark)
                    new.closed_as = status.name
                    if not await self._begun_anew(new):
                        return
                if time.monotonic() - began > RETIRED_S and not new.befell["retired"]:
                    await handle.cancel(rpc_timeout=RPC_S)
                    new.befell["retired"] += 1
            await asyncio.sleep(LOOK_S)

    async def _count_agents(self) -> None:
        """How many each has at a time."""
        while True:
            looked_for = [each for each in self._open if each.is_claude]
            shims = living(self._machine.site.state, looked_for) if looked_for else []
            for each in looked_for:
                agents = sum(shim.subject is each and shim.agent is not None for shim in shims)
                each.agents_at_once = max(each.agents_at_once, agents)
            await asyncio.sleep(LOOK_S)

    async def _begun_anew(self, closed: Subject) -> bool:
        """Whether a reset that was under way came after the end: then there is one more to wait for."""
        if not closed.befell["workflow_reset"]:
            return False
        handle, until_s = self._steersman.temporal.get_workflow_handle(closed.id), time.monotonic() + 5
        while time.monotonic() < until_s:
            await asyncio.sleep(0.5)
            with contextlib.suppress(RPCError):
                status = (await handle.describe(rpc_timeout=RPC_S)).status
                if status is not None and status.name == "RUNNING":
                    closed.closed_as, closed.befell["retired"] = None, 0
                    return True
        return False

    async def _start(self, new: Subject) -> None:
        client = self._steersman.temporal
        kind = names.LOOP_WORKFLOW if new.is_loop else names.RUN_WORKFLOW
        while True:
            with contextlib.suppress(WorkflowAlreadyStartedError):  # the answer to an earlier try was lost
                try:
                    await client.start_workflow(
                        kind, new.request, id=new.id, task_queue=names.TASK_QUEUE, rpc_timeout=RPC_S
                    )
                except RPCError:
                    await asyncio.sleep(0.5)
                    continue
            return

    def _read(self) -> None:
        """Somebody follows some of the runs."""
        reading = [each for each in self._readers if not each.ended]
        fresh = [each for each in self._open if not each.is_loop and each.id not in {r.run for r in self._readers}]
        if len(reading) < READERS and fresh:
            file = self._root / f"reader-{fresh[0].id}.jsonl"
            env = {**self._machine.site.namespace.env, "HOME": str(self._root / "home")}
            self._readers.append(Reader(fresh[0].id, file, env))

    def _cut(self, step: Step) -> str | None:
        """A reader is killed and begins again."""
        reading = [each for each in self._readers if not each.ended]
        if not reading:
            return None
        reader = reading[step.target % len(reading)]
        reader.cut()
        return reader.run

    # The end.

    async def _settle(self) -> None:
        """All is mended; who can go on goes on, then what is left is stopped and swept."""
        await asyncio.wait_for(self._machine.mend(), 180)
        await self._all_led()
        for each in self._open:
            each.befell["retired"] += 1
            with contextlib.suppress(RPCError):
                await self._steersman.temporal.get_workflow_handle(each.id).cancel(rpc_timeout=RPC_S)
        with contextlib.suppress(AssertionError):
            await until(lambda: not self._open, CLOSING_S)
        self._machine.look_after()
        await self._machine.mend()
        await self._sweep(await self._machine.places[0].worker.ready())
        closed = [each for each in self._all if each.closed_as]
        with contextlib.suppress(AssertionError):
            await until(lambda: not any(marked(each.mark) for each in closed), GONE_S)
        await asyncio.sleep(2)  # readers show the end: they are looked at as they are then

    async def _sweep(self, host: str) -> None:
        """Sweep the host to the end, beside a sweep whose worker has died."""
        schedule = self._steersman.temporal.get_schedule_handle(f"steersman-sweep-{host}")
        before = (await schedule.describe()).info.num_actions
        await schedule.trigger(overlap=ScheduleOverlapPolicy.ALLOW_ALL)

        async def started() -> bool:
            return (await schedule.describe()).info.num_actions > before

        await until(started)
        sweep = (await schedule.describe()).info.recent_actions[-1].action
        assert isinstance(sweep, ScheduleActionExecutionStartWorkflow)
        await asyncio.wait_for(self._steersman.temporal.get_workflow_handle(sweep.workflow_id).result(), SWEPT_S)

    async def _all_led(self) -> None:
        """Every open run has a worker that lives, again."""
        workers = {place.worker.pid for place in self._machine.places}

        async def led(run: str) -> bool:
            with contextlib.suppress(SteersmanError, RPCError):
                state = await self._steersman.state(run)
                return await leader(self._steersman, run) in workers or state.phase in {
                    "stopping",
                    "finalizing",
                    "closed",
                }
            return False

        for each in [each for each in self._open if not each.is_loop]:
            deadline = time.monotonic() + LED_S
            while each.closed_as is None and not await led(each.id):
                if time.monotonic() > deadline:
                    self.report.findings.append(f"{each.id}: nobody leads it {LED_S:g} s after the last fault")
                    break
                await asyncio.sleep(0.2)

    async def _judge(self) -> None:
        found = self.report.findings
        found += self._machine.ends
        found += workerlogs.findings((worker.log for worker in self._machine.site.workers), self._machine.frozen)
        for each in self._all:
            runs = [run async for run in self._runs_of(each)]
            for run in runs:
                found += checks.findings(run)
                self._count(run)
            if each.is_loop:
                loop = Evidence(
                    each.id, "loop", each.closed_as or "RUNNING", befell=each.befell, living=marked(each.mark)
                )
                loop.befell["agent_killed"] += each.befell["disk_filled"]
                found += [f"{each.id} ({loop.status}): {what}" for what in [*checks.end(loop), *checks.processes(loop)]]
            shown = [reader for reader in self._readers if reader.run == each.id]
            for reader in shown:
                # Of a run that was reset after its end, a reader may have shown what was set aside.
                if not (each.befell["workflow_reset"] and reader.ended):
                    found += readers.findings(each.id, reader.shown, runs[0].events)
        await self._replay()

    async def _runs_of(self, each: Subject) -> AsyncIterator[Evidence]:
        """The evidence of a run, or of each run of a loop."""
        client, state = self._steersman.temporal, self._machine.site.state
        if not each.is_loop:
            run = of_subject(state, each, each.id)
            await self._ask(run)
            run.living = marked(each.mark)
            yield run
            return
        children = {row.id async for row in client.list_workflows(f'WorkflowId STARTS_WITH "{each.id}-"')}
        for child in sorted(children):
            run = of_subject(state, each, child)
            described = await client.get_workflow_handle(child).describe()
            run.status = described.status.name if described.status else "RUNNING"
            run.living_at_close = {}  # of the loop's close, not of this run's
            await self._ask(run)
            yield run

    async def _ask(self, run: Evidence) -> None:
        """What the closed run itself says, where it can be asked."""
        try:
            state = await self._steersman.state(run.run)
        except SteersmanError as error:
            self.report.findings.append(f"{run.run}: its state cannot be had: {error}")
            return
        run.messages, run.report, run.failure = state.messages, state.stop_report, state.error or ""

    def _count(self, run: Evidence) -> None:
        numbers = self.report.numbers
        self.report.ends[f"{run.kind} {run.status.lower()}"] += 1
        numbers["runs"] += 1
        numbers["events"] += len(run.events or ())
        numbers["lines"] += len(run.lines)
        numbers["processes"] += len(run.journals)
        numbers["messages"] += len(run.said)
        numbers["receipts"] += len(run.receipts) + len(run.messages)
        if run.report:
            numbers[f"stops {run.report.outcome}"] += 1

    async def _replay(self) -> None:
        """Every history, of every execution, replays with the code at hand; no task failed for its sake."""
        client, histories = self._steersman.temporal, []
        async for row in client.list_workflows(f'WorkflowType IN ("{names.RUN_WORKFLOW}", "{names.LOOP_WORKFLOW}")'):
            history = await client.get_workflow_handle(row.id, run_id=row.run_id).fetch_history()
            histories.append(history)
            for event in history.events:
                cause = event.workflow_task_failed_event_attributes.cause
                text = event.workflow_task_failed_event_attributes.failure.message
                frozen = bool(self._machine.frozen) and text.startswith(workerlogs.DEADLOCK)
                given_up = text == ASK_AGAIN or AHEAD.match(text)
                if cause and not given_up and not frozen and _cause(history, event.event_id) not in TEMPORALS_OWN:
                    self.report.findings.append(
                        f"{row.id}: a workflow task failed: {_cause(history, event.event_id)}: {text}"
                    )
        self.report.numbers["histories"] += len(histories)

        async def each() -> AsyncIterator[WorkflowHistory]:
            for history in histories:
                yield history

        replayer = Replayer(
            workflows=[AgentRun, AgentLoop, SweepHost],
            data_converter=DATA_CONVERTER,
            workflow_runner=ReplaySafeRunner(),
            build_id="chaos",
        )
        results = await replayer.replay_workflows(each(), raise_on_replay_failure=False)
        for run_id, failure in results.replay_failures.items():
            (self._root / f"{run_id}.json").write_text(
                next(each for each in histories if each.run_id == run_id).to_json()
            )
            self.report.findings.append(f"execution {run_id}: its history does not replay: {failure}")


def _cause(history: WorkflowHistory, event_id: int) -> str:
    found = next(each for each in history.events if each.event_id == event_id)
    name = WorkflowTaskFailedCause.Name(found.workflow_task_failed_event_attributes.cause)
    return name.removeprefix("WORKFLOW_TASK_FAILED_CAUSE_")


@asynccontextmanager
async def campaign(root: Path, seed: int) -> AsyncIterator[Campaign]:
    """A campaign in a directory of its own."""
    async with ScriptedModel() as model:
        yield Campaign(root, seed, model)
