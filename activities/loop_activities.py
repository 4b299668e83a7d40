"""The activities of loops: admission, surveys of the workspace, checkpoints, and questions to other workflows.

How files, plans and items are read must not live here: see activities/loops.
"""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.activity_helpers import as_application_error, git_errors, heartbeating
from activities.admission.policy import Policy
from activities.admission.schemas import admit_schema
from activities.loops.items.item_list import unreadable_list
from activities.loops.items.plans import Plan, check_plan, read_plan
from activities.loops.items.programs import run_program
from activities.loops.items.sources import argv, check_items, read_items
from activities.loops.loop_store import LoopStore
from activities.ports.admission import Program
from activities.ports.agent import Agent
from activities.temporal.loop_points import fork_point
from activities.workspaces.checkpoints import WorkspaceCheckpoints, nearest_existing
from activities.workspaces.git.checkpoint_commits import NoCheckpoint, ref
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.git.shadows import NoRepository
from activities.workspaces.printable_text import printable
from steersman import timeouts
from steersman.contracts import names
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import AgentFailed, InvalidRequest, RunError
from steersman.contracts.loop import Items, LoopRequest, PlanFile, program_env, unmetered
from steersman.contracts.loop_activities import (
    AdmitLoop,
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
from steersman.contracts.run import RunProgress, RunState
from steersman.contracts.variables import EnvValue
from steersman.contracts.workspace import Diff

MAX_LINKS = 40
"""On the way to a plan, as for the system's own calls."""
BEADS_ENV = {"BD_JSON_ENVELOPE": "0", "BEADS_NO_DAEMON": "1"}
"""bd prints its issues without an envelope, and leaves no daemon behind."""


log = logging.getLogger("steersman.looping")
END_S = 15.0
"""A run that was ended behind its loop's back may take so many seconds until its agent is gone."""


class LoopActivities:
    """Any worker of the host can run them: what one remembers from call to call only saves time."""

    def __init__(
        self,
        client: Client,
        agents: Mapping[str, Agent],
        store: LoopStore,
        policy: Policy,
        admit_restore: Callable[[str, Path], Awaitable[None]],
        consumption: Callable[[RunKey], Awaitable[RunProgress | None]],
    ) -> None:
        """`admit_restore` raises RunError where whoever calls may not have a loop's files put into a workspace.
        `consumption`: see HostActivities.
        """
        self._client, self._agents, self._store, self._policy = client, agents, store, policy
        self._admit_restore, self._consumption = admit_restore, consumption
        self._checkpoints = WorkspaceCheckpoints(policy.environ, policy.workspace_roots, policy.git_roots)

    @activity.defn(name=names.ADMIT_LOOP)
    async def admit_loop(self, asked: AdmitLoop) -> None:
        """Admit the loop on this host. Fails with the RunError's type, and is not retried, if the request is wrong."""
        async with heartbeating():
            with as_application_error():
                await asyncio.to_thread(self._admit, asked.request)
                await admit_schema(asked.request.run)
                if asked.request.run.is_carried:
                    await self._check_carried(asked.request)

    @activity.defn(name=names.SURVEY_WORKSPACE)
    async def survey_workspace(self, asked: SurveyInput) -> Survey:
        """Read plan, items and files as they are now; given a number, make a checkpoint of the files."""
        async with heartbeating():
            try:
                workspace = await asyncio.to_thread(self._policy.workspace, asked.run.workspace.path)
            except RunError as error:
                return await self._survey_without(asked, error.message)
            directory = await self._directory(asked.key.loop)
            plan = Plan()
            if asked.plan:
                plan = await asyncio.to_thread(read_plan, workspace, asked.plan.path, asked.plan.phase)
            items = await self._items(asked, plan, workspace, directory)  # first: a command may write files
            survey = await self._captured(asked, directory, workspace)
            return survey.model_copy(update={"plan_hash": plan.hash, "phases": plan.phases, "items": items})

    async def _captured(self, asked: SurveyInput, directory: Path, workspace: Path) -> Survey:
        loop, number = asked.key.loop, asked.number
        name = None if number is None else ref(loop, number)
        message = f"{loop}: checkpoint {number}\n\n{asked.message}\n"
        # A reset is another execution; one that is continued as new counts on where it was.
        maker = activity.info().workflow_run_id or ""
        return await self._checkpoints.capture(directory, workspace, name, message, maker)

    async def _survey_without(self, asked: SurveyInput, why: str) -> Survey:
        """Of a workspace that cannot be used: where its directory is gone, what else its repository has is kept."""
        nothing = Survey(error=why, items=unreadable_list(why) if asked.items else None)
        try:
            workspace = await asyncio.to_thread(self._real_path, asked.run.workspace.path)
            directory = await self._directory(asked.key.loop)
            # What the directory lay in may be another repository, which is none of this loop's business.
            if workspace.exists() or not await self._checkpoints.numbers(directory, workspace, asked.key.loop):
                return nothing
            found = await self._captured(asked, directory, nearest_existing(workspace))
        except (RunError, OSError, NoRepository, GitFailed):
            return nothing
        return nothing.model_copy(update={"files": found.files, "commit": found.commit, "head": found.head})

    @activity.defn(name=names.RESTORE_CHECKPOINT)
    async def restore_checkpoint(self, asked: RestoreInput) -> Restored:
        """Restore the workspace's files from a checkpoint. Idempotent. The loop has made a rescue checkpoint before."""
        path, name = asked.run.workspace.path, ref(asked.source, asked.number)
        async with heartbeating():
            try:
                workspace = await asyncio.to_thread(self._real_path, path)
                directory = await self._directory(asked.key.loop, asked.source)
                if self._policy.max_permission == "read_only":
                    raise InvalidRequest("this worker allows nobody to change a workspace (see --max-permission)")
                if asked.unkept:
                    raise InvalidRequest(f"what is there now could not be kept: {asked.unkept}")
                await self._admit_restore(asked.key.loop, workspace)
                return Restored(changed=await self._checkpoints.restore(directory, workspace, name, asked.commit))
            except RunError as error:
                return Restored(error=error.message)
            except (NoRepository, NoCheckpoint, GitFailed) as error:
                return Restored(error=printable(str(error)))

    @activity.defn(name=names.DROP_CHECKPOINTS)
    async def drop_checkpoints(self, asked: DropInput) -> Dropped:
        """Remove the refs of checkpoints, and return the numbers of those that existed."""
        async with heartbeating():
            with as_application_error():
                workspace = await asyncio.to_thread(self._real_path, asked.workspace)
            directory = await self._directory(asked.loop)
            numbers = None if asked.all else set(asked.numbers)
            with git_errors(), suppress(NoRepository):
                return Dropped(numbers=tuple(await self._checkpoints.drop(directory, workspace, asked.loop, numbers)))
            return Dropped()

    @activity.defn(name=names.LIST_CHECKPOINTS)
    async def list_checkpoints(self, asked: KeptInput) -> Kept:
        """The numbers of the checkpoints that hold files: none if the workspace is in no repository."""
        async with heartbeating():
            with as_application_error():
                workspace = await asyncio.to_thread(self._real_path, asked.workspace)
            directory = await self._directory(asked.loop)
            with git_errors(), suppress(NoRepository):
                return Kept(numbers=tuple(await self._checkpoints.numbers(directory, workspace, asked.loop)))
            return Kept()

    @activity.defn(name=names.DIFF_CHECKPOINTS)
    async def diff_checkpoints(self, asked: DiffInput) -> Diff:
        """The difference between two checkpoints, or between one and the files as they are."""
        older = ref(asked.loop, asked.older)
        newer = None if asked.newer is None else ref(asked.loop, asked.newer)
        async with heartbeating():
            with as_application_error(), git_errors():
                workspace = await asyncio.to_thread(self._policy.workspace, asked.workspace)
                directory = await self._directory(asked.loop)
                return await self._checkpoints.compare(directory, workspace, older, newer, asked.max_bytes)

    @activity.defn(name=names.READ_FORK_POINT)
    async def read_fork_point(self, asked: ForkInput) -> ForkPoint:
        """Another loop's checkpoint, queried from its workflow."""
        async with heartbeating():
            with as_application_error():
                return await fork_point(self._client, asked.loop, asked.number, "from_checkpoint")

    @activity.defn(name=names.LOOK_AT_RUN)
    async def look_at_run(self, asked: LookInput) -> RunState:
        """The last state of a run that closed without a result; what it has consumed by its log, too: of that the
        workflow is told seldom.
        """
        handle = self._client.get_workflow_handle(asked.run)
        async with heartbeating():
            with as_application_error():
                try:
                    state: RunState = await handle.query(names.STATE_QUERY, result_type=RunState)
                except RPCError as error:
                    if error.status != RPCStatusCode.NOT_FOUND:
                        raise
                    raise AgentFailed(f"Temporal knows no run {asked.run}") from error
            return await self._with_consumption(asked.run, state)

    async def _with_consumption(self, run: str, state: RunState) -> RunState:
        if state.execution is None:
            return state
        try:
            async with timeouts.timeout(END_S):
                read = await self._consumption(RunKey(run=run, execution=state.execution))
        except Exception as error:  # noqa: BLE001 - it is no reason to do without the state
            facts = {"run": run, "error": str(error) or f"its agent was not gone after {END_S:g} s"}
            log.warning("a run may have cost more", extra={"action": "consumption_unknown", "facts": facts})
            read = None
        return state.at_least(read) if read else state

    async def _directory(self, loop: str, *others: str) -> Path:
        """The loop's directory. Fails if it, or the directory of one of `others`, is another Temporal namespace's."""
        with as_application_error():
            for each in others:
                await asyncio.to_thread(self._store.check, each)
            return await asyncio.to_thread(self._store.create, loop)

    # ---- admission

    def _admit(self, request: LoopRequest) -> None:
        run, items = request.run, request.done.items
        self._policy.check_all(run, self._agents)
        if wrong := request.unsupported(self._policy.kinds[run.agent].at_most):
            raise InvalidRequest(f"LoopRequest: {wrong}")
        for number, each in enumerate(run.fallback):
            if wrong := unmetered(request.limits, each.agent, self._policy.kinds[each.agent].at_most):
                raise InvalidRequest(f"LoopRequest: run.fallback.{number}: limits.{wrong}")
        workspace = self._policy.workspace(run.workspace.path)
        if request.done.verify:
            self._admit_program(run, "done.verify", request.done.verify.argv())
        if items and items.kind in ("command", "beads"):
            path = self._admit_program(run, "done.items", _command_line(items)).get("PATH")
            if items.kind == "beads" and shutil.which("bd", path=path) is None:
                raise InvalidRequest("done.items: bd is not on this host")
        plan = request.plan if isinstance(request.plan, PlanFile) else None
        if plan:
            check_plan(workspace, plan.path, plan.phase, "plan")
        if items:
            check_items(items, plan, workspace)

    async def _check_carried(self, request: LoopRequest) -> None:
        """Raises InvalidRequest where the agent would not find the plan, or what is left of it, in its copy."""
        plan, items = request.plan, request.done.items
        workspace = await asyncio.to_thread(self._policy.workspace, request.run.workspace.path)
        fields = {"plan.path": plan.path if isinstance(plan, PlanFile) else None}
        fields["done.items.path"] = items.path if items else None
        needed = {path: await asyncio.to_thread(_steps, workspace, path) for path in fields.values() if path}
        try:
            ignored = await self._checkpoints.ignored(workspace, [each for steps in needed.values() for each in steps])
        except (NoRepository, GitFailed):
            return  # a copy has everything, or the run says what is wrong
        included = [workspace / each for each in request.run.workspace.include]
        left_out = {each for each in ignored if not any(map(each.is_relative_to, included))}
        for field, path in fields.items():
            if path is None:
                continue
            if await asyncio.to_thread(_is_needed, needed[path], left_out):
                raise InvalidRequest(
                    f"{field}: git ignores {path}, so a copy of the workspace does not have it: name it in "
                    "run.workspace.include"
                )

    def _admit_program(self, run: RunRequest, field: str, words: tuple[str, ...]) -> Mapping[str, str]:
        """The environment of a program that the loop runs. Raises InvalidRequest naming the field."""
        try:
            return self._program_environment(run, words)
        except InvalidRequest as error:
            raise InvalidRequest(f"{field}: {error.message}") from error

    def _program_environment(self, run: RunRequest, words: tuple[str, ...]) -> Mapping[str, str]:
        # To the policy a program that the request names is a run of agent "process".
        workspace = run.workspace.model_copy(update={"include": ()})  # it runs here: nothing is copied for it
        asked = RunRequest(agent="process", command=words, workspace=workspace, env=self._program_env(run))
        return self._policy.admit_program(asked, Program("command", words))

    def _program_env(self, run: RunRequest) -> dict[str, EnvValue]:
        kind = self._policy.kinds.get(run.agent)
        return program_env(run, kind.variables if kind else ())

    def _real_path(self, path: str) -> Path:
        """The real path of the workspace, which need not exist. Raises InvalidRequest, WorkspaceError."""
        real = self._policy.within(path, "workspace.path")
        self._policy.workspace(str(nearest_existing(real)))
        return real

    # ---- items

    async def _items(self, asked: SurveyInput, plan: Plan, workspace: Path, directory: Path) -> ItemList | None:
        wanted = asked.items
        if wanted is None:
            return None

        async def run(words: Sequence[str]) -> bytes:
            # Admitted anew each time: the operator's settings and the variables' values may have changed.
            environment = await asyncio.to_thread(self._program_environment, asked.run, _command_line(wanted))
            return await run_program(words, workspace, {**environment, **BEADS_ENV}, directory / "programs")

        try:
            return await read_items(wanted, asked.plan, plan if asked.plan else None, workspace, run)
        except RunError as error:
            return unreadable_list(error.message)


def _command_line(items: Items) -> tuple[str, ...]:
    """The command line that prints items, in the form that an operator allows; for beads the name alone."""
    return ("bd",) if items.kind == "beads" else argv(items)


def _steps(workspace: Path, path: str) -> list[Path]:
    """Each link on the way to this path of the workspace, and what it is of, all without links before their last part;
    nothing where nothing is there.
    """
    found: list[Path] = []
    at, parts = workspace, list(PurePosixPath(path).parts)
    while parts:
        each = at / parts.pop(0)
        if each.name == "..":
            at = at.parent
        elif each.is_symlink() and len(found) < MAX_LINKS:
            found.append(each)
            target = PurePosixPath(each.readlink())
            at = Path(target.anchor) if target.is_absolute() else at
            parts = [*target.relative_to(target.anchor).parts, *parts]
        else:
            at = each
    return [*found, at] if at.exists() else []


def _is_needed(steps: Sequence[Path], left_out: set[Path]) -> bool:
    """Whether one of the steps, or each phase in the directory that they end at, is left out."""
    if not left_out.isdisjoint(steps):
        return True
    files = steps[-1].glob("*.md") if steps and steps[-1].is_dir() else ()
    phases = [each for each in files if each.stem.lower() != "readme"]
    return bool(phases) and left_out.issuperset(phases)
