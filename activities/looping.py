"""What a host does for loops: may one run here, how is its workspace, keep its files, take them back.

How files, plans and items are read must not live here: see activities/loops.
"""

import asyncio
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.conduct import beating, refusing
from activities.loops.git import GitFailed
from activities.loops.items import failed
from activities.loops.places import LoopStore
from activities.loops.plans import Plan, check_plan, read_plan
from activities.loops.programs import output_of
from activities.loops.sentences import printable
from activities.loops.snapshots import NoCheckpoint, ref
from activities.loops.sources import argv, check_items, read_items
from activities.loops.workshop import NoRepository, Workshop, standing
from activities.policy import Policy
from activities.ports import Agent, Program
from activities.schemas import admit_schema
from steersman.contracts import names
from steersman.contracts.errors import ActivityErrorType, AgentFailed, InvalidRequest, RunError
from steersman.contracts.loop import Items, LoopRequest, PlanFile, program_env
from steersman.contracts.loop_activities import (
    AdmitLoop,
    Diff,
    DiffInput,
    DropInput,
    Dropped,
    ForkInput,
    ForkPoint,
    Kept,
    KeptInput,
    LookInput,
    Restored,
    RestoreInput,
    Survey,
    SurveyInput,
)
from steersman.contracts.loop_state import ItemList
from steersman.contracts.request import RunRequest
from steersman.contracts.run import RunState

BEADS_ENV = {"BD_JSON_ENVELOPE": "0", "BEADS_NO_DAEMON": "1"}
"""bd prints what it always has, and leaves no daemon behind."""


class LoopActivities:
    """Stateless: any worker of the host can answer."""

    def __init__(self, client: Client, agents: Mapping[str, Agent], store: LoopStore, policy: Policy) -> None:
        self._client, self._agents, self._store, self._policy = client, agents, store, policy
        self._workshop = Workshop(policy.environ, policy.workspace_roots, policy.git_roots)

    @activity.defn(name=names.ADMIT_LOOP)
    async def admit_loop(self, asked: AdmitLoop) -> None:
        """Whether the loop may run here. Fails with the RunError's type, at once, if the request is wrong."""
        async with beating():
            with refusing():
                await asyncio.to_thread(self._admit, asked.request)
                await admit_schema(asked.request.run)

    @activity.defn(name=names.SURVEY_WORKSPACE)
    async def survey_workspace(self, asked: SurveyInput) -> Survey:
        """Plan, items and files as they are now; the files kept as a checkpoint where a number is given."""
        async with beating():
            try:
                workspace = await asyncio.to_thread(self._policy.workspace, asked.run.workspace.path)
            except RunError as error:
                return Survey(error=error.message, items=failed(error.message) if asked.items else None)
            place = await self._place(asked.key.loop)
            plan = Plan()
            if asked.plan:
                plan = await asyncio.to_thread(read_plan, workspace, asked.plan.path, asked.plan.phase)
            items = await self._items(asked, plan, workspace, place)  # first: a command may write files
            loop, number = asked.key.loop, asked.number
            name = None if number is None else ref(loop, number)
            message = f"{loop}: checkpoint {number}\n\n{asked.message}\n"
            survey = await self._workshop.look(place, workspace, name, message)
            return survey.model_copy(update={"plan_hash": plan.hash, "phases": plan.phases, "items": items})

    @activity.defn(name=names.RESTORE_CHECKPOINT)
    async def restore_checkpoint(self, asked: RestoreInput) -> Restored:
        """The workspace's files as they were. Twice is fine."""
        path, name = asked.run.workspace.path, ref(asked.source, asked.number)
        async with beating():
            try:
                workspace = await asyncio.to_thread(self._standing, path)
                place = await self._place(asked.key.loop, asked.source)
                return Restored(changed=await self._workshop.restore(place, workspace, name, asked.commit))
            except RunError as error:
                return Restored(error=error.message)
            except (NoRepository, NoCheckpoint, GitFailed) as error:
                return Restored(error=printable(str(error)))

    @activity.defn(name=names.DROP_CHECKPOINTS)
    async def drop_checkpoints(self, asked: DropInput) -> Dropped:
        """Remove the refs of checkpoints; those that were there."""
        async with beating():
            with refusing():
                workspace = await asyncio.to_thread(self._standing, asked.workspace)
            place = await self._place(asked.loop)
            numbers = None if asked.all else set(asked.numbers)
            with _failing(), suppress(NoRepository):
                return Dropped(numbers=tuple(await self._workshop.drop(place, workspace, asked.loop, numbers)))
            return Dropped()

    @activity.defn(name=names.LIST_CHECKPOINTS)
    async def list_checkpoints(self, asked: KeptInput) -> Kept:
        """The checkpoints whose files are there: none where the workspace is in no repository."""
        async with beating():
            with refusing():
                workspace = await asyncio.to_thread(self._standing, asked.workspace)
            place = await self._place(asked.loop)
            with _failing(), suppress(NoRepository):
                return Kept(numbers=tuple(await self._workshop.kept(place, workspace, asked.loop)))
            return Kept()

    @activity.defn(name=names.DIFF_CHECKPOINTS)
    async def diff_checkpoints(self, asked: DiffInput) -> Diff:
        """What changed between two checkpoints, or since one."""
        older = ref(asked.loop, asked.older)
        newer = None if asked.newer is None else ref(asked.loop, asked.newer)
        async with beating():
            with refusing(), _failing():
                workspace = await asyncio.to_thread(self._policy.workspace, asked.workspace)
                place = await self._place(asked.loop)
                try:
                    return await self._workshop.compare(place, workspace, older, newer, asked.max_bytes)
                except (NoRepository, NoCheckpoint) as error:
                    raise InvalidRequest(printable(str(error))) from error

    @activity.defn(name=names.READ_FORK_POINT)
    async def read_fork_point(self, asked: ForkInput) -> ForkPoint:
        """Another loop's checkpoint, asked of its workflow."""
        handle = self._client.get_workflow_handle(asked.loop)
        async with beating():
            with refusing():
                try:
                    point: ForkPoint | None = await handle.query(names.FORK_POINT, asked.number, result_type=ForkPoint)
                except RPCError as error:
                    if error.status != RPCStatusCode.NOT_FOUND:
                        raise
                    raise InvalidRequest(f"from_checkpoint: no loop {asked.loop}") from error
                except WorkflowQueryFailedError as error:
                    if (await handle.describe()).workflow_type == names.LOOP_WORKFLOW:
                        raise
                    raise InvalidRequest(f"from_checkpoint: {asked.loop} is no loop") from error
                if point is None:
                    raise InvalidRequest(f"from_checkpoint: loop {asked.loop} has no checkpoint {asked.number}")
                return point

    @activity.defn(name=names.LOOK_AT_RUN)
    async def look_at_run(self, asked: LookInput) -> RunState:
        """What a run that closed without a result had come to."""
        handle = self._client.get_workflow_handle(asked.run)
        async with beating():
            with refusing():
                try:
                    state: RunState = await handle.query(names.STATE_QUERY, result_type=RunState)
                except RPCError as error:
                    if error.status != RPCStatusCode.NOT_FOUND:
                        raise
                    raise AgentFailed(f"Temporal knows no run {asked.run}") from error
                return state

    async def _place(self, loop: str, *others: str) -> Path:
        """The loop's directory; no loop that is named is another Temporal namespace's."""
        with refusing():
            for each in others:
                await asyncio.to_thread(self._store.check, each)
            return await asyncio.to_thread(self._store.create, loop)

    # ---- what is allowed

    def _admit(self, request: LoopRequest) -> None:
        run, items = request.run, request.done.items
        self._policy.check(run, self._agents[run.agent])
        workspace = self._policy.workspace(run.workspace.path)
        if request.done.verify:
            self._admit_program(run, "done.verify", request.done.verify.argv())
        if items and items.kind in ("command", "beads"):
            path = self._admit_program(run, "done.items", _words(items)).get("PATH")
            if items.kind == "beads" and shutil.which("bd", path=path) is None:
                raise InvalidRequest("done.items: bd is not on this host")
        plan = request.plan if isinstance(request.plan, PlanFile) else None
        if plan:
            check_plan(workspace, plan.path, plan.phase, "plan")
        if items:
            check_items(items, plan, workspace)

    def _admit_program(self, run: RunRequest, field: str, words: tuple[str, ...]) -> Mapping[str, str]:
        """The environment of a program that the loop runs. Raises InvalidRequest naming the field."""
        try:
            return self._program_environment(run, words)
        except InvalidRequest as error:
            raise InvalidRequest(f"{field}: {error.message}") from error

    def _program_environment(self, run: RunRequest, words: tuple[str, ...]) -> Mapping[str, str]:
        # As the policy sees it, a program that the request names is a run of agent "process".
        asked = RunRequest(agent="process", command=words, workspace=run.workspace, env=program_env(run))
        return self._policy.admit_program(asked, Program("command", words))

    def _standing(self, path: str) -> Path:
        """The workspace; also one that is gone and may come back. Raises InvalidRequest, WorkspaceError."""
        real = self._policy.within(path, "workspace.path")
        self._policy.workspace(str(standing(real)))
        return real

    # ---- items

    async def _items(self, asked: SurveyInput, plan: Plan, workspace: Path, place: Path) -> ItemList | None:
        wanted = asked.items
        if wanted is None:
            return None

        async def run(words: Sequence[str]) -> bytes:
            # Judged anew each time: what the operator allows may have changed, and so may the values.
            environment = await asyncio.to_thread(self._program_environment, asked.run, _words(wanted))
            return await output_of(words, workspace, {**environment, **BEADS_ENV}, place / "programs")

        try:
            return await read_items(wanted, asked.plan, plan if asked.plan else None, workspace, run)
        except RunError as error:
            return failed(error.message)


def _words(items: Items) -> tuple[str, ...]:
    """The program that prints items, as an operator lends it; of beads its name alone."""
    return ("bd",) if items.kind == "beads" else argv(items)


@contextmanager
def _failing() -> Iterator[None]:
    """Where git says no, the activity fails with its words."""
    try:
        yield
    except GitFailed as error:
        # What stands in git's way stands there at the next try, too.
        raise ApplicationError(printable(str(error)), type=ActivityErrorType.GIT_FAILED, non_retryable=True) from error
