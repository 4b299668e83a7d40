"""What a host does for loops, as the loop's workflow asks for it."""

import asyncio
import json
import os
import shutil
import stat
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.testing import ActivityEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.activity_helpers import heartbeating
from activities.admission.policy import Policy
from activities.admission.ssh_patterns import SshPattern
from activities.agents.claude.agent import ClaudeAgent
from activities.agents.process.agent import ProcessAgent
from activities.loop_activities import LoopActivities
from activities.loops.loop_store import LoopStore
from activities.ports.agent import Agent
from activities.store.ownership import Ownership
from activities.workspaces.git.checkpoint_commits import ref
from steersman.contracts.activities import PruneInput, RunKey, Swept
from steersman.contracts.loop import LoopRequest, parse_loop_request
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
    LoopKey,
    Restored,
    RestoreInput,
    Survey,
    SurveyInput,
)
from steersman.contracts.loop_state import Checkpoint, ItemCount, PlanVersion
from steersman.contracts.run import RunState
from steersman.contracts.workspace import Diff
from tests.loops.loop_site import git, on_disk, put, repository
from tests.support.host import host_activities
from tests.support.processes import until

pytestmark = [pytest.mark.integration]

OWNER = Ownership("cluster", "default")
SECRET = "sk-very-secret"


async def unknown(key: RunKey) -> None:
    """What a run has consumed."""


async def whoever_calls(loop: str, workspace: Path) -> None:
    """Who may, says the server: see tests/acceptance/test_loop_restore.py."""


class Host:
    """One host with a workspace, a git repository."""

    def __init__(self, client: Client, directory: Path) -> None:
        self.client, self.directory = client, directory
        self.work = repository(directory / "work", {"PLAN.md": "# Plan\n- [ ] a\n- [x] b\n", "a.txt": "one\n"})
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.loops = LoopStore(directory / "state", OWNER)
        self.activities = self.with_policy()

    def with_policy(self, **fields: Any) -> LoopActivities:
        """The activities of a worker with such a policy."""
        environ = {"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.directory)}
        environ |= {"SECRET_KEY": SECRET, "ANTHROPIC_API_KEY": SECRET}
        policy = Policy(environ, **fields)
        agents: dict[str, Agent] = {"claude": ClaudeAgent({"IS_SANDBOX": "1"}), "process": ProcessAgent()}
        self.activities = LoopActivities(self.client, agents, self.loops, policy, whoever_calls, unknown)
        return self.activities

    def program(self, name: str, script: str) -> None:
        """A program on the host's PATH."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def request(self, done: dict[str, Any] | None = None, **fields: Any) -> LoopRequest:
        """A loop on the workspace."""
        run = {"agent": "process", "command": ["true"], "workspace": {"path": str(self.work)}, **fields.pop("run", {})}
        plan = fields.pop("plan", {"path": "PLAN.md"})
        return parse_loop_request({"run": run, "plan": plan, "done": done or {"verify": {"command": "true"}}, **fields})

    async def admit(self, request: LoopRequest) -> None:
        """As the workflow asks."""
        await ActivityEnvironment().run(self.activities.admit_loop, AdmitLoop(request=request))

    async def refusal(self, request: LoopRequest) -> str:
        """Why it may not run."""
        with pytest.raises(ApplicationError) as refused:
            await self.admit(request)
        error = refused.value
        assert (error.type, error.non_retryable) == ("InvalidRequest", True)
        assert error.category == ApplicationErrorCategory.BENIGN
        assert SECRET not in error.message
        return error.message

    async def survey(self, request: LoopRequest, number: int | None = None) -> Survey:
        """As the workflow asks."""
        plan = None if isinstance(request.plan, str) else request.plan
        asked = SurveyInput(
            key=LoopKey(loop="loop-1", execution="e"),
            run=request.run,
            plan=plan,
            items=request.done.items,
            number=number,
            message="iteration 1",
        )
        return await ActivityEnvironment().run(self.activities.survey_workspace, asked)

    async def count(self, **items: Any) -> ItemCount | str:
        """The items as they are counted, or what was wrong with them."""
        survey = await self.survey(self.request({"items": items}))
        assert survey.items is not None
        return survey.items.error or survey.items.count

    async def restore(self, number: int, source: str = "loop-1", **fields: Any) -> Restored:
        key = LoopKey(loop="loop-1", execution="e")
        asked = RestoreInput(key=key, run=self.request().run, source=source, number=number, **fields)
        return await ActivityEnvironment().run(self.activities.restore_checkpoint, asked)

    async def diff(self, **fields: Any) -> Diff:
        asked = DiffInput(**{"loop": "loop-1", "workspace": str(self.work), **fields})
        return await ActivityEnvironment().run(self.activities.diff_checkpoints, asked)

    async def drop(self, **fields: Any) -> Dropped:
        asked = DropInput(**{"loop": "loop-1", "workspace": str(self.work), **fields})
        return await ActivityEnvironment().run(self.activities.drop_checkpoints, asked)

    async def kept(self) -> Kept:
        asked = KeptInput(loop="loop-1", workspace=str(self.work))
        return await ActivityEnvironment().run(self.activities.list_checkpoints, asked)


@pytest.fixture
def host(temporal: Client, tmp_path: Path) -> Host:
    return Host(temporal, tmp_path)


class TestAdmission:
    @pytest.mark.parametrize(
        "done",
        [
            {"verify": {"command": "true"}},
            {"verify": {"command": ["no-such-program-at-all"]}},
            {"items": {"kind": "checkboxes"}},
            {"items": {"kind": "checkboxes", "path": "not/yet.md"}},
            {"items": {"kind": "json", "path": "not-yet.json"}},
            {"items": {"kind": "command", "command": ["./made-by-the-agent"]}},
        ],
    )
    async def test_what_may_run(self, host: Host, done: dict[str, Any]) -> None:
        await host.admit(host.request(done))

    async def test_a_copy_must_have_the_plan(self, host: Host) -> None:
        ignored = ("PLAN.md", "private/", "OTHER.md", "badlink.md", "0*.md")
        put(host.work, {".gitignore": "\n".join(ignored), "private/items.md": "- [ ] a", "OTHER.md": "b"})
        put(
            host.work,
            {"ph/01-a.md": "- [ ] a", "ph/02-b.md": "- [ ] b", "ph/README.md": "c", "half/01-a.md": "- [ ] a"},
        )
        put(host.work, {"half/x.md": "- [ ] a", "nested/PLAN.md": "- [ ] a", "nöt ed/a [b] *.md": "- [ ] a"})
        git(host.work / "nested", "init", "-q")
        for name, target in (("way", "."), ("link.md", "private/items.md"), ("badlink.md", "a.txt")):
            (host.work / name).symlink_to(target)
        (host.work / "abs.md").symlink_to(host.work / "a.txt")
        done = {"items": {"kind": "checkboxes", "path": "private/items.md"}}

        def copied(plan: str = "PLAN.md", *include: str, done: dict[str, Any] | None = None) -> LoopRequest:
            workspace = {"path": str(host.work), "isolation": "copy", "include": include}
            return host.request(done, run={"workspace": workspace}, plan={"path": plan})

        await host.admit(host.request(done))
        for fits in (
            copied(),  # git has it: it is in every copy
            copied("way/way/PLAN.md"),
            copied("abs.md"),
            copied("nested/PLAN.md"),  # git does not ignore it
            copied("nöt ed/a [b] *.md"),
            copied("OTHER.md", "./OTHER.md"),
            copied("link.md", "private"),
            copied("badlink.md", "badlink.md"),
            copied("ph", "ph"),
            copied("PLAN.md", "private/", done=done),
        ):
            await host.admit(fits)
        for plan, include in (
            ("OTHER.md", "private"),
            ("link.md", "PLAN.md"),
            ("badlink.md", "private"),
            ("ph", "half"),
        ):
            refusal = await host.refusal(copied(plan, include))
            assert refusal.startswith(f"plan.path: git ignores {plan}")
        assert (await host.refusal(copied(done=done))).startswith("done.items.path: git ignores private/items.md")
        (host.directory / "way").symlink_to(host.work)
        host.work = host.directory / "way"
        await host.admit(copied())

    async def test_the_run_itself_is_judged(self, host: Host) -> None:
        host.with_policy(agents=frozenset({"claude"}))
        assert (await host.refusal(host.request())).startswith('agent: "process" is not allowed on this worker')
        host.with_policy(workspace_roots=(Path("/nowhere"),))
        assert "outside this worker's --workspace-root" in await host.refusal(host.request())

    @pytest.mark.parametrize(
        ("field", "done"),
        [
            ("done.verify", {"verify": {"command": "true"}}),
            ("done.items", {"items": {"kind": "command", "command": "true"}}),
            ("done.items", {"items": {"kind": "beads", "ids": ["bd-1"]}}),
        ],
    )
    async def test_commands_are_judged_as_runs_of_agent_process(
        self, host: Host, field: str, done: dict[str, Any]
    ) -> None:
        request = host.request(done, run={"agent": "claude", "command": None, "options": {}})
        host.program("bd", "true")
        host.with_policy(agents=frozenset({"claude"}))
        assert (await host.refusal(request)).startswith(f'{field}: agent: "process" is not allowed')
        host.with_policy(max_permission="accept_edits")
        assert '"full" is more than this worker allows' in await host.refusal(request)
        host.with_policy()
        await host.admit(request)

    async def test_what_is_copied_for_the_runs_is_none_of_the_programs(self, host: Host) -> None:
        """Those run here, in the workspace itself."""
        elsewhere = {
            "workspace": {"path": str(host.work), "include": [".env"]},
            "runtime": {"kind": "ssh", "address": "there"},
        }
        host.with_policy(allow_ssh=(SshPattern.of("*"),))
        await host.admit(host.request(run=elsewhere))

    async def test_beads_without_bd(self, host: Host) -> None:
        request = host.request({"items": {"kind": "beads", "ids": ["bd-1"]}})
        assert await host.refusal(request) == "done.items: bd is not on this host"

    async def test_plans(self, host: Host) -> None:
        put(host.work, {"phases/01-a.md": "Depends on: 02", "phases/02-b.md": "Depends on: 01", "none/x": ""})
        assert "01-a -> 02-b -> 01-a" in await host.refusal(host.request(plan={"path": "phases"}))
        put(host.work, {"phases/01-a.md": ""})
        await host.admit(host.request(plan={"path": "phases", "phase": "2"}))
        assert "plan.phase: there is no phase 7" in await host.refusal(
            host.request(plan={"path": "phases", "phase": "7"})
        )
        assert "plan.path: none holds no phases" in await host.refusal(host.request(plan={"path": "none"}))
        assert "plan.path: gone.md does not exist" in await host.refusal(host.request(plan={"path": "gone.md"}))
        (host.work / "out.md").symlink_to("/etc/hostname")
        assert "plan.path: out.md leads out" in await host.refusal(host.request(plan={"path": "out.md"}))

    async def test_files_of_items_that_are_there_must_be_good(self, host: Host) -> None:
        put(host.work, {"items.json": "{", "phases/01-a.md": "Depends on: 01"})
        done = {"items": {"kind": "json", "path": "items.json"}}
        assert (await host.refusal(host.request(done))).startswith("done.items.path: items.json is no JSON: ")
        done = {"items": {"kind": "checkboxes", "path": "phases"}}
        assert "done.items.path: the phases depend on each other" in await host.refusal(host.request(done))

    @pytest.mark.parametrize(
        ("items", "plan"),
        [
            ({"kind": "checkboxes"}, {"path": "many.md"}),
            ({"kind": "checkboxes", "path": "many.md"}, {"path": "PLAN.md"}),
            ({"kind": "json", "path": "many.json"}, {"path": "PLAN.md"}),
        ],
    )
    async def test_more_items_than_are_read(self, host: Host, items: dict[str, str], plan: dict[str, str]) -> None:
        def put_many(number: int) -> None:
            listed = json.dumps([{"title": "a", "done": False}] * number)
            put(host.work, {"PLAN.md": "- [ ] a\n", "many.md": "- [ ] a\n" * number, "many.json": listed})

        put_many(5_000)
        await host.admit(host.request({"items": items}, plan=plan))
        put_many(5_001)
        refusal = await host.refusal(host.request({"items": items}, plan=plan))
        assert refusal.startswith("done.items: many.")
        assert refusal.endswith("has 5001 items, and may have 5000")


class TestSurvey:
    async def test_all_of_it(self, host: Host) -> None:
        survey = await host.survey(host.request({"items": {"kind": "checkboxes"}}), 3)
        assert survey.items is not None
        assert (survey.error, survey.items.count, len(survey.plan_hash)) == (None, ItemCount(open=1, closed=1), 16)
        assert survey.head == git(host.work, "rev-parse", "HEAD").strip()
        assert survey.commit == git(host.work, "rev-parse", ref("loop-1", 3)).strip()
        message = git(host.work, "log", "-1", "--format=%B", survey.commit or "")
        assert message.strip() == "loop-1: checkpoint 3\n\niteration 1\n\nExecution: test-run"
        assert Survey.model_validate_json(survey.model_dump_json()) == survey

    async def test_the_loops_state_is_private(self, host: Host) -> None:
        await host.survey(host.request(), 1)
        state = host.directory / "state"
        places = (state, state / "loops", state / "loops" / "loop-1")
        assert [stat.S_IMODE(place.stat().st_mode) for place in places] == [0o700] * 3

    async def test_phases(self, host: Host) -> None:
        put(host.work, {"phases/01-a.md": "- [ ] a", "phases/02-b.md": "Depends on: 01\n- [ ] b"})
        survey = await host.survey(host.request({"items": {"kind": "checkboxes"}}, plan={"path": "phases"}))
        assert [(phase.name, phase.state) for phase in survey.phases] == [("01-a", "open"), ("02-b", "blocked")]
        assert survey.items is not None
        assert survey.items.count == ItemCount(open=1, blocked=1)
        begun = await host.survey(
            host.request({"items": {"kind": "checkboxes", "path": "./phases"}}, plan={"path": "phases", "phase": "02"})
        )
        assert begun.items is not None
        assert begun.items.count == ItemCount(open=1, closed=1)

    async def test_json(self, host: Host) -> None:
        put(host.work, {"prd.json": json.dumps({"userStories": [{"id": "US-1", "passes": True}, {"id": "US-2"}]})})
        assert await host.count(kind="json", path="prd.json") == ItemCount(open=1, closed=1)
        assert await host.count(kind="json", path="no.json") == "no.json does not exist in the workspace"
        put(host.work, {"prd.json": "[}"})
        assert str(await host.count(kind="json", path="prd.json")).startswith("prd.json is no JSON: ")
        (host.work / "out.json").symlink_to("/etc/hostname")
        assert await host.count(kind="json", path="out.json") == "out.json leads out of the workspace"

    @pytest.mark.parametrize(
        ("command", "expected"),
        [
            ("cat PLAN.md", ItemCount(open=1, closed=1)),
            (["cat", "PLAN.md"], ItemCount(open=1, closed=1)),
            ('echo \'[{"id": 1, "done": true}]\'', ItemCount(closed=1)),
            ("true", ItemCount()),
            ("echo '[]'", ItemCount()),
            ("exit 4", "done.items.command ended with exit code 4"),
            ("cat PLAN.md; exit 1", "done.items.command ended with exit code 1: - [x] b"),
            ("echo nothing to see", "done.items.command printed neither JSON nor checkboxes"),
            ("echo '{}'", "done.items.command must be a list, or an object with a list named items"),
            (["./not-there"], "done.items.command could not be run: "),
        ],
    )
    async def test_a_command(self, host: Host, command: Any, expected: ItemCount | str) -> None:
        found = await host.count(kind="command", command=command)
        assert found == expected or (isinstance(expected, str) and str(found).startswith(expected))

    async def test_a_command_has_the_environment_of_a_process(self, host: Host) -> None:
        request = host.request(
            {"items": {"kind": "command", "command": 'echo "- [ ] $SECRET_KEY$ANTHROPIC_API_KEY-$GIVEN-$HOME"'}},
            run={"env": {"GIVEN": "given"}},
        )
        survey = await host.survey(request)
        assert survey.items is not None
        assert [item.text for item in survey.items.items] == [f"-given-{host.directory}"]
        assert list((host.directory / "state" / "loops" / "loop-1" / "programs").iterdir()) == []

    async def test_the_agents_own_variables_are_not_for_programs(self, host: Host) -> None:
        env = {"ANTHROPIC_API_KEY": {"from_env": "ANTHROPIC_API_KEY"}, "OTHER": "said"}
        command = {"kind": "command", "command": 'echo "- [ ] ${ANTHROPIC_API_KEY-none} $OTHER"'}
        request = host.request({"items": command}, run={"agent": "claude", "command": None, "env": env, "options": {}})
        await host.admit(request)
        survey = await host.survey(request)
        assert survey.items is not None
        assert [item.text for item in survey.items.items] == ["none said"]

    async def test_beads(self, host: Host) -> None:
        link = {"id": "bd-1", "title": "First", "status": "in_progress", "dependency_type": "blocks"}
        issues = [
            {"id": "bd-1", "title": "First", "status": "in_progress", "issue_type": "task"},
            {"id": "bd-2", "title": "Second", "status": "open", "dependencies": [link]},
            {"id": "bd-a3f8", "title": "Third", "status": "closed"},
        ]
        put(host.directory, {"issues.json": json.dumps(issues)})
        asked = '[ "$1 $5" = "show --json" ] && [ "$BD_JSON_ENVELOPE" = 0 ]'
        host.program("bd", f"{asked} && cat {host.directory}/issues.json")
        found = await host.count(kind="beads", ids=["bd-1", "bd-2", "a3f8"])
        assert found == ItemCount(in_progress=1, blocked=1, closed=1)
        put(host.directory, {"issues.json": json.dumps({"schema_version": 1, "data": issues})})
        assert await host.count(kind="beads", ids=["bd-1", "bd-2", "a3f8"]) == found
        assert await host.count(kind="beads", ids=["bd-1", "bd-2", "bd-9"]) == "bd knows no issue bd-9"

    async def test_beads_in_trouble(self, host: Host) -> None:
        host.program("bd", "echo 'Issue bd-9 not found' >&2")
        assert await host.count(kind="beads", ids=["bd-9"]) == "bd knows no issue bd-9"
        host.program("bd", "echo 'no beads database found' >&2; exit 1")
        problem = "bd ended with exit code 1: no beads database found"
        assert await host.count(kind="beads", ids=["bd-9"]) == problem

    async def test_a_workspace_that_is_gone_is_told_and_not_raised(self, host: Host) -> None:
        request = host.request({"items": {"kind": "checkboxes"}})
        host.work.rename(host.directory / "moved")
        survey = await host.survey(request, 1)
        assert "does not exist on this host" in str(survey.error)
        assert survey.items is not None
        assert "does not exist on this host" in str(survey.items.error)

    async def test_what_takes_long_heartbeats(self) -> None:
        environment, beats = ActivityEnvironment(), asyncio.Queue[int]()
        environment.on_heartbeat = lambda *_: beats.put_nowait(1)

        async def long() -> None:
            async with heartbeating():
                await asyncio.wait_for(beats.get(), 30)

        await environment.run(long)


class TestFiles:
    async def test_back_to_a_checkpoint(self, host: Host) -> None:
        await host.survey(host.request(), 1)
        put(host.work, {"a.txt": "changed", "new": "n"})
        assert await host.restore(1) == Restored(changed=2)
        assert await host.restore(1) == Restored(changed=0)
        assert on_disk(host.work).keys() == {"PLAN.md", "a.txt"}

    async def test_a_checkpoint_that_somebody_has_overwritten_is_none(self, host: Host) -> None:
        kept = (await host.survey(host.request(), 1)).commit
        put(host.work, {"a.txt": "changed"})
        other = (await host.survey(host.request(), 2)).commit
        assert kept is not None
        subprocess.run(["git", "update-ref", "refs/steersman/loop-1/1", str(other)], cwd=host.work, check=True)
        assert "overwritten" in str((await host.restore(1, commit=kept)).error)
        assert (host.work / "a.txt").read_text() == "changed"

    async def test_over_what_was_not_kept_nothing_is_restored(self, host: Host) -> None:
        await host.survey(host.request(), 1)
        put(host.work, {"a.txt": "changed"})
        assert "could not be kept: no room" in str((await host.restore(1, unkept="no room")).error)
        assert (host.work / "a.txt").read_text() == "changed"

    async def test_of_a_workspace_that_is_gone_the_rest_of_its_repository_is_kept(self, host: Host) -> None:
        top = host.work
        put(top, {"sub/PLAN.md": "- [ ] a", "mine": "m"})
        host.work = top / "sub"
        await host.survey(host.request(), 1)
        shutil.rmtree(host.work)
        put(top, {"mine": "changed"})
        survey = await host.survey(host.request(), 2)
        assert survey.commit
        assert git(top, "show", f"{survey.commit}:mine") == "changed"
        assert (await host.restore(1)).error is None
        assert (host.work / "PLAN.md").exists()

    async def test_of_another_repository_nothing_is_kept(self, host: Host) -> None:
        """As of a home with its dotfiles, in which the workspace was."""
        repository(host.directory, {"dotfile": "x"})
        await host.survey(host.request(), 1)
        shutil.rmtree(host.work)
        survey = await host.survey(host.request(), 2)
        assert (survey.commit, "does not exist" in str(survey.error)) == (None, True)
        assert git(host.directory, "for-each-ref", "refs/steersman") == ""

    async def test_what_cannot_be_restored_is_said(self, host: Host) -> None:
        missing = await host.restore(9, "other-loop")
        assert missing.error == f"{host.work} has no files of checkpoint 9 of other-loop"
        host.with_policy(workspace_roots=(Path("/nowhere"),))
        assert "outside this worker's --workspace-root" in str((await host.restore(1)).error)

    async def test_a_workspace_without_a_repository(self, host: Host) -> None:
        host.work = host.directory / "plain"
        put(host.work, {"PLAN.md": "- [ ] a"})
        survey = await host.survey(host.request(), 1)
        assert (survey.commit, survey.error, len(survey.files)) == (None, None, 40)
        assert "is in no git repository" in str((await host.restore(1)).error)
        assert (await host.drop(all=True), await host.kept()) == (Dropped(), Kept())

    async def test_differences(self, host: Host) -> None:
        await host.survey(host.request(), 1)
        put(host.work, {"a.txt": "changed\n"})
        diff = await host.diff(older=1)
        assert "+changed" in diff.patch
        assert "1 file changed" in diff.stat
        with pytest.raises(ApplicationError, match="has no files of checkpoint 2 of loop-1") as refused:
            await host.diff(older=1, newer=2)
        assert (refused.value.type, refused.value.non_retryable) == ("InvalidRequest", True)

    async def test_dropping(self, host: Host) -> None:
        for number in range(3):
            await host.survey(host.request(), number)
        assert await host.drop(numbers=(1, 7)) == Dropped(numbers=(1,))
        assert await host.kept() == Kept(numbers=(0, 2))
        assert await host.drop(all=True) == Dropped(numbers=(0, 2))
        assert git(host.work, "for-each-ref", "refs/steersman") == ""

    @pytest.mark.parametrize("ask", ["diff", "drop", "kept"])
    async def test_other_places_are_not_for_anybody_who_asks(self, host: Host, ask: str) -> None:
        await host.survey(host.request(), 1)
        host.with_policy(workspace_roots=(host.directory / "bin",))
        asking: Callable[..., Any] = getattr(host, ask)
        fields: dict[str, dict[str, Any]] = {"diff": {"older": 1}, "drop": {"all": True}, "kept": {}}
        with pytest.raises(ApplicationError, match="outside this worker's --workspace-root"):
            await asking(**fields[ask])
        assert git(host.work, "for-each-ref", "refs/steersman") != ""


@workflow.defn(name="AgentLoop", sandboxed=False)
class Asked:
    """A loop that has one checkpoint."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query
    def fork_point(self, number: int) -> ForkPoint | None:
        checkpoint = Checkpoint(number=4, kind="iteration", time=datetime(2026, 1, 1, tzinfo=UTC), iteration=4)
        plan = PlanVersion(number=1, hash="h", since=datetime(2026, 1, 1, tzinfo=UTC))
        return ForkPoint(checkpoint=checkpoint, plan=plan, workspace="/w", host="h", open=True) if number == 4 else None


@workflow.defn(name="AgentRun", sandboxed=False)
class Looked:
    """A run that shows a state."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query
    def state(self) -> RunState:
        return RunState(phase="closed", turns=7)


@pytest.fixture
async def asked(temporal: Client) -> AsyncIterator[Client]:
    """A client whose workflows answer."""
    worker = Worker(
        temporal, task_queue="asked", workflows=[Asked, Looked], workflow_runner=UnsandboxedWorkflowRunner()
    )
    async with worker:
        yield temporal


class TestAsking:
    async def test_a_fork_point(self, host: Host, asked: Client) -> None:
        handle = await asked.start_workflow(Asked.run, id=f"loop-{time.time_ns()}", task_queue="asked")
        run = await asked.start_workflow(Looked.run, id=f"run-{time.time_ns()}", task_queue="asked")

        async def read(loop: str, number: int) -> ForkPoint:
            question = ForkInput(loop=loop, number=number)
            return await ActivityEnvironment().run(host.activities.read_fork_point, question)

        assert (await read(handle.id, 4)).checkpoint.number == 4
        for loop, number, problem in (
            (handle.id, 5, f"from_checkpoint: loop {handle.id} has no checkpoint 5"),
            ("no-such-loop", 1, "from_checkpoint: no loop no-such-loop"),
            (run.id, 1, f"from_checkpoint: {run.id} is no loop"),
        ):
            with pytest.raises(ApplicationError) as refused:
                await read(loop, number)
            assert (refused.value.message, refused.value.type) == (problem, "InvalidRequest")
            assert refused.value.non_retryable
        for each in (handle, run):
            await each.terminate()

    async def test_a_run(self, host: Host, asked: Client) -> None:
        run = await asked.start_workflow(Looked.run, id=f"run-{time.time_ns()}", task_queue="asked")
        state = await ActivityEnvironment().run(host.activities.look_at_run, LookInput(run=run.id))
        assert (state.phase, state.turns) == ("closed", 7)
        await run.terminate()
        with pytest.raises(ApplicationError, match="Temporal knows no run gone") as refused:
            await ActivityEnvironment().run(host.activities.look_at_run, LookInput(run="gone"))
        assert refused.value.non_retryable


class TestPruning:
    async def prune(self, host: Host, days: float, *, dry_run: bool = False) -> Swept:
        hosting = host_activities(host.client, host.directory / "state", OWNER, {})
        return await ActivityEnvironment().run(hosting.prune_host, PruneInput(keep_days=days, dry_run=dry_run))

    async def test_only_what_closed_long_ago_goes(self, host: Host, asked: Client) -> None:
        marks = {name: f"loop-{name}-{time.time_ns()}" for name in ("open", "closed", "gone", "fresh")}
        handles = {
            name: await asked.start_workflow(Asked.run, id=marks[name], task_queue="asked")
            for name in ("open", "closed", "fresh")
        }
        await handles["closed"].terminate()
        for name, mark in marks.items():
            place = host.loops.create(mark)
            put(place, {"git/index": "x" * 1000})
            if name != "fresh":
                os.utime(place / "loop.json", (0, 0))

        async def closed() -> bool:
            return (await handles["closed"].describe()).close_time is not None

        await until(closed)
        planned = await self.prune(host, 0, dry_run=True)
        assert set(planned.pruned) == {marks["closed"], marks["gone"]}
        assert {each.name for each in (host.directory / "state" / "loops").iterdir()} == set(marks.values())
        swept = await self.prune(host, 0)
        assert (set(swept.pruned), swept.bytes_freed) == ({marks["closed"], marks["gone"]}, planned.bytes_freed)
        assert swept.bytes_freed > 2000
        left = {each.name for each in (host.directory / "state" / "loops").iterdir()}
        assert left == {marks["open"], marks["fresh"]}
        for name in ("open", "fresh"):
            await handles[name].terminate()


async def test_a_cancelled_survey_stops_its_command(host: Host) -> None:
    request = host.request({"items": {"kind": "command", "command": "touch begun; sleep 600"}})
    environment = ActivityEnvironment()
    asked = SurveyInput(key=LoopKey(loop="l", execution="e"), run=request.run, items=request.done.items)
    survey = asyncio.create_task(environment.run(host.activities.survey_workspace, asked))
    await until((host.work / "begun").exists)
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await survey
    assert list((host.directory / "state" / "loops" / "l" / "programs").iterdir()) == []
