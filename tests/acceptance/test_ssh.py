"""Runs on another machine: a real sshd on loopback, whose sessions have a home, and so an agent, of their own."""

import asyncio
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from activities.agents.claude.agent import ClaudeAgent
from steersman.client import Steersman
from steersman.contracts.errors import AgentNotInstalled, InvalidRequest, RunError, WorkspaceError
from steersman.contracts.events import AgentEvent
from steersman.contracts.run import Finalize
from steersman.errors import RunCancelled, RunTerminated
from tests.acceptance.programs import OBEDIENT, STUBBORN, python
from tests.acceptance.site import Site, following, gone, heard, in_order
from tests.acceptance.test_approvals import ASK, approval
from tests.acceptance.test_changes import EDIT, git, made
from tests.acceptance.test_isolated import COMMIT, NESTED, WAIT, copy_of, finalized
from tests.acceptance.test_resume import handle_of, written_down
from tests.acceptance.test_talk import TOOL_UNTIL_GO, said
from tests.cli.steer import Steer
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.files import below, content
from tests.support.processes import marked, until
from tests.support.sshd import Sshd, make_key, missing
from tests.support.temporal import new_namespace

pytestmark = pytest.mark.acceptance

THERE = {"kind": "ssh", "address": "place"}
COUNT = """
import time
for number in range(60):
    print(number, flush=True)
    time.sleep(0.05)
"""


class Elsewhere:
    """A machine with Steersman on it, and another one that its workers may use."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.home = site.root / "elsewhere"
        (self.home / ".local" / "bin").mkdir(parents=True)
        (self.home / ".profile").write_text('echo hello\nexport IS_SANDBOX=1 PATH="$HOME/.local/bin:$PATH"\n')
        self.claude_there = self.home / ".local" / "bin" / "claude"
        self.claude_there.symlink_to(ClaudeAgent({}).program())
        self.sshd = Sshd(site.root / "sshd", self.home)
        self.flags = ("--allow-ssh", "place", "--ssh-config", str(self.sshd.config), "--allow-env", "PATH")

    @property
    def kept(self) -> list[Path]:
        """What Steersman keeps there of runs."""
        place = self.home / ".local" / "state" / "steersman"
        return [*place.glob("places/*"), *place.glob("copies/*")]

    def process(self, program: str, **fields: Any) -> dict[str, Any]:
        return self.site.process(*python(program), **{"runtime": THERE, **fields})

    def claude(self, *arguments: Any, **fields: Any) -> dict[str, Any]:
        return self.site.claude(*arguments, **{"runtime": THERE, **fields})

    @classmethod
    @contextmanager
    def of(cls, site: Site) -> Iterator["Elsewhere"]:
        """Without a worker as yet. The test is skipped where no server of ssh can be had."""
        if reason := missing():
            pytest.skip(reason)
        found = cls(site)
        try:
            yield found
        finally:
            found.end()

    def end(self) -> None:
        self.site.end()
        self.sshd.close()


def is_text(text: str, event: AgentEvent) -> bool:
    return event.type == "message" and event.text == text


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, dev_server: str) -> Iterator[Elsewhere]:
    """With a worker at work, for tests that leave it and the other machine alone."""
    if reason := missing():
        pytest.skip(reason)
    elsewhere = Elsewhere(Site(tmp_path_factory.mktemp("ssh"), asyncio.run(new_namespace(dev_server))))
    try:
        asyncio.run(elsewhere.site.worker(*elsewhere.flags).ready())
        yield elsewhere
    finally:
        elsewhere.end()


@pytest.fixture
async def steersman(there: Elsewhere) -> Steersman:
    return await there.site.steersman()


@pytest.fixture
def repository(there: Elsewhere) -> Path:
    return made(there.site.workspace())


@pytest.fixture
def elsewhere(site: Site) -> Iterator[Elsewhere]:
    """Of the test's own, without a worker as yet."""
    with Elsewhere.of(site) as found:
        yield found


@pytest.mark.exhaustive
async def test_it_works_there_and_what_it_did_comes_back(
    there: Elsewhere, steersman: Steersman, repository: Path
) -> None:
    go = there.home / "go"
    told = "import os; print(os.getcwd(), os.environ['HOME'], os.environ['SAID'], os.environ['PATH'])\n"
    request = there.process(told + EDIT + COMMIT + WAIT.format(go=go), workspace=repository, env={"SAID": "yes"})
    run = await steersman.start(request)
    copy = await copy_of(steersman, run)
    assert copy.is_relative_to(there.home)
    assert git(copy, "remote") == ""
    assert (copy / "dirty").read_text() == "a person's own\n"
    (repository / "mine").write_text("meanwhile\n")
    go.touch()
    result = await steersman.result(run)
    assert result.text.startswith(f"{copy} {there.home} yes {there.home}/.local/bin:")
    assert result.finalize == Finalize(status="succeeded", commit=git(repository, "rev-parse", "HEAD").strip())
    assert git(repository, "status", "--porcelain") == "?? mine\n"
    assert (repository / "edited").read_text() == "one\nTWO\nthree\n"
    assert "+TWO" in (await steersman.diff(run)).patch
    assert (await steersman.undo(run)).files == 5
    assert there.kept == []


@pytest.mark.exhaustive
async def test_without_a_repository(there: Elsewhere, steersman: Steersman) -> None:
    path = there.site.workspace()
    (path / "a").write_text("one\n")
    program = "open('a','w').write('two\\n'); open('b','w').write('new\\n')"
    assert await finalized(steersman, await steersman.start(there.process(program, workspace=path))) == Finalize(
        status="succeeded"
    )
    assert ((path / "a").read_text(), (path / "b").read_text()) == ("two\n", "new\n")


async def test_claude_is_asked_interrupted_and_steered(
    there: Elsewhere, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    steps = (tool("Bash", command="touch made"), hold("the wrong way"), TOOL_UNTIL_GO, say("done"))
    script = model.script("ssh", *steps)
    run = await steersman.start(there.claude(script, workspace=repository, permissions=ASK))
    asked = await approval(steersman, run)
    carried = (await steersman.state(run)).carried
    assert carried
    copy = Path(carried.directory)
    assert not (copy / "made").exists()
    await steersman.decide(run, asked.id, "allow")
    await script.wait_held()
    assert (copy / "made").exists()
    await heard(steersman, run, await steersman.interrupt(run, "turn round"))
    await script.wait_requests(3)
    await heard(steersman, run, await steersman.steer(run, "and quickly"))
    (copy / "go").touch()
    result = await steersman.result(run)
    assert (result.text, result.attempts, result.messages_delivered) == ("done", 1, 2)
    assert said(script.requests[-1], "turn round") == 1
    assert said(script.requests[-1], "and quickly") == 1
    assert (repository / "made").exists()
    assert in_order(await steersman.events(run))


async def test_claude_is_stopped_in_a_tool(
    there: Elsewhere, steersman: Steersman, repository: Path, model: ScriptedModel, mark: str
) -> None:
    script = model.script("stopped", tool("Bash", command=f"{shlex.join(python(STUBBORN))} > begun"))
    request = there.claude(script, mark=mark, workspace=repository, permissions={"mode": "full"})
    run = await steersman.start(request)
    copy = await copy_of(steersman, run)
    await until(lambda: content(copy / "begun") == b"ready\n")
    report = await steersman.stop(run)
    assert (report.outcome, report.left) == ("stopped", ())
    await gone(mark)
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    assert (repository / "begun").exists()
    assert there.kept == []


@pytest.mark.exhaustive
async def test_a_killed_claude_goes_on_with_its_session_there(
    there: Elsewhere, steersman: Steersman, repository: Path, model: ScriptedModel, mark: str
) -> None:
    steps = (tool("Bash", command="echo a first step"), hold("thinking"), say("finished"))
    script = model.script("crash", *steps)
    request = there.claude(script, "build it", mark=mark, workspace=repository, permissions={"mode": "full"})
    run = await steersman.start(request)
    async with following(steersman, run) as attached:
        await script.wait_held()
        await attached.until(lambda e: e.type == "message" and e.text == "thinking")
        await until(lambda: written_down(there.site, '"tool_result"', "a first step"))
        os.kill((await handle_of(steersman, run)).pid, signal.SIGKILL)
        result = await steersman.result(run)
    assert (result.status, result.text, result.attempts) == ("succeeded", "finished", 2)
    assert script.requests[-1].saw("a first step")


@pytest.mark.exhaustive
async def test_what_both_changed_is_named_and_kept(there: Elsewhere, steersman: Steersman, repository: Path) -> None:
    go = there.home / "go-conflict"
    run = await steersman.start(there.process(EDIT + WAIT.format(go=go), workspace=repository))
    await copy_of(steersman, run)
    (repository / "edited").write_text("mine\n")
    go.touch()
    found = await finalized(steersman, run)
    assert (found.status, found.conflicts, found.ref) == ("conflicted", ("edited",), f"refs/steersman/conflicts/{run}")
    assert (repository / "edited").read_text() == "mine\n"


@pytest.mark.parametrize("decision", ["retry", "discard"])
async def test_what_cannot_be_carried_back_waits_there(
    there: Elsewhere, steersman: Steersman, repository: Path, decision: str
) -> None:
    run = await steersman.start(there.process(NESTED, workspace=repository))
    with pytest.raises(WorkspaceError, match="carried back: place: a repository of its own lies in the copy"):
        await steersman.result(run)
    other = await steersman.start(there.site.process("true", workspace=repository))
    with pytest.raises(WorkspaceError, match=f"what run {run} changed .* `steer workspace retry {run}`"):
        await steersman.result(other)
    carried = (await steersman.state(run)).carried
    assert carried
    if decision == "retry":
        await asyncio.create_subprocess_exec("rm", "-rf", f"{carried.directory}/lib")
        await until(lambda: not Path(carried.directory, "lib").exists())
        assert (await steersman.retry_workspace(run)).finalize.status == "succeeded"
    else:
        await steersman.discard_workspace(run)
    assert (repository / "new").exists() == (decision == "retry")
    assert there.kept == []


@pytest.mark.exhaustive
async def test_a_terminated_run_is_stopped_and_carried_back(
    there: Elsewhere, steersman: Steersman, repository: Path, mark: str
) -> None:
    run = await steersman.start(there.process(EDIT + OBEDIENT, workspace=repository, mark=mark))
    copy = await copy_of(steersman, run)
    await until((copy / "link").is_symlink)
    await steersman.temporal.get_workflow_handle(run).terminate("enough")
    with pytest.raises(RunTerminated):
        await steersman.result(run)
    await gone(mark)
    await until(lambda: (repository / "edited").read_text() == "one\nTWO\nthree\n")
    await until(lambda: there.kept == [])


async def test_no_secret_is_left_there(there: Elsewhere, steersman: Steersman, model: ScriptedModel, mark: str) -> None:
    script = model.script("secret", hold("thinking"))
    request = there.claude(script, "a prompt of its own", mark=mark, system_prompt="a text of its own")
    run = await steersman.start(request)
    await script.wait_held()
    lines = " ".join(marked(mark).values())
    assert "stream-json" in lines
    assert "of its own" not in lines
    key = next(iter(script.env(there.home)["ANTHROPIC_API_KEY"].split()))
    assert not [path for path in below(there.home) if key.encode() in content(path)]
    private = [path for path in below(there.home / ".local" / "state") if b"text of its own" in content(path)]
    assert private
    assert {path.stat().st_mode & 0o077 for path in private} == {0}
    await steersman.stop(run)
    assert there.kept == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("runtime", "error", "words"),
    [
        ({"address": "other"}, InvalidRequest, "runtime.address: other is not allowed on this worker"),
        ({"user": "root"}, InvalidRequest, "runtime.address: root@place is not allowed on this worker"),
        ({"port": 22}, InvalidRequest, "runtime.address: place:22 is not allowed on this worker"),
        ({"identity_file": "/etc/passwd"}, InvalidRequest, "runtime.identity_file: /etc/passwd is not allowed"),
        ({"address": "-oProxyCommand=x"}, InvalidRequest, "runtime.*address: must be a host's name"),
        ({"python": "/no/python"}, WorkspaceError, "it cannot be copied: /no/python there is no Python"),
        ({"directory": "/proc/nowhere"}, WorkspaceError, "it cannot be copied: .*/proc"),
    ],
)
async def test_what_is_refused(
    there: Elsewhere, steersman: Steersman, runtime: dict[str, Any], error: type[RunError], words: str
) -> None:
    with pytest.raises(error, match=words):
        await steersman.run(there.process("pass", runtime={**THERE, **runtime}))


@pytest.mark.exhaustive
async def test_a_program_that_is_not_there(there: Elsewhere, steersman: Steersman, model: ScriptedModel) -> None:
    with pytest.raises(AgentNotInstalled, match="command: no-such is not on place"):
        await steersman.run(there.site.process("no-such", runtime=THERE))
    there.claude_there.rename(there.claude_there.with_name("claude-away"))
    try:
        with pytest.raises(AgentNotInstalled, match="claude: not on PATH of a login on place"):
            await steersman.run(there.claude(model.script("none", say("x"))))
    finally:
        there.claude_there.with_name("claude-away").rename(there.claude_there)
    assert there.kept == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", [THERE, {"kind": "local"}])
async def test_a_program_is_looked_for_on_the_path_that_the_request_names(
    there: Elsewhere, steersman: Steersman, place: dict[str, Any]
) -> None:
    tools = there.site.workspace()
    (tools / "own-tool").write_text("#!/bin/sh\necho found\n")
    (tools / "own-tool").chmod(0o700)
    path = {"PATH": f"{tools}:/usr/bin:/bin"}
    assert (await steersman.run(there.site.process("own-tool", runtime=place, env=path))).text == "found"
    with pytest.raises(AgentNotInstalled, match="no-such: No such file"):
        await steersman.run(there.site.process("no-such", runtime=place, env=path))


async def test_a_machine_with_another_key_is_refused_at_once(elsewhere: Elsewhere) -> None:
    await elsewhere.site.worker(*elsewhere.flags).ready()
    steersman = await elsewhere.site.steersman()
    elsewhere.sshd.trust(make_key(elsewhere.sshd.directory / "other"))
    with pytest.raises(WorkspaceError, match="its host key is not the one in known_hosts"):
        await asyncio.wait_for(steersman.run(elsewhere.process("pass")), 10)


@pytest.mark.exhaustive
async def test_a_machine_that_is_not_there_fails_the_run(elsewhere: Elsewhere) -> None:
    elsewhere.sshd.stop()
    await elsewhere.site.worker(*elsewhere.flags).ready()
    steersman = await elsewhere.site.steersman()
    with pytest.raises(WorkspaceError, match=r"it cannot be copied: place: .*[Cc]onnection refused"):
        await asyncio.wait_for(steersman.run(elsewhere.process("pass")), 60)


async def test_cut_connections_lose_and_double_nothing(elsewhere: Elsewhere) -> None:
    await elsewhere.site.worker(*elsewhere.flags).ready()
    steersman = await elsewhere.site.steersman()
    run = await steersman.start(elsewhere.process(COUNT))
    async with following(steersman, run) as attached:
        for number in (5, 15, 25):
            await attached.until(partial(is_text, str(number)))
            if number == 15:
                elsewhere.sshd.stop()
                elsewhere.sshd.start()
            else:
                elsewhere.sshd.cut()
        events = await attached.end()
    assert [e.text for e in events if e.type == "message"] == [str(number) for number in range(60)]
    assert in_order(events)
    assert (await steersman.result(run)).attempts == 1


@pytest.mark.exhaustive
async def test_a_clock_that_jumps_ends_no_run_that_speaks(there: Elsewhere, steersman: Steersman) -> None:
    """The other machine's clock was asked for before it was set back by a day."""
    python3 = there.home / "python"
    later = "import json, sys; a = json.loads(sys.stdin.read()); a['time_ms'] += 86_400_000; print(json.dumps(a))"
    asked = f'*\' home\') said=$(python3 "$@") && echo "$said" | python3 -c {shlex.quote(later)}; exit;;'
    python3.write_text(f'#!/bin/sh\ncase $* in {asked} esac\nexec python3 "$@"\n')
    python3.chmod(0o700)
    request = there.process(COUNT, runtime={**THERE, "python": str(python3)}, limits={"idle_s": 2})
    assert (await steersman.run(request)).status == "succeeded"


@pytest.mark.exhaustive
async def test_nobody_is_silent_whom_nobody_hears(elsewhere: Elsewhere) -> None:
    await elsewhere.site.worker(*elsewhere.flags).ready()
    steersman = await elsewhere.site.steersman()
    program = COUNT.replace("0.05", "0.15")
    run = await steersman.start(elsewhere.process(program, limits={"idle_s": 2}))
    async with following(steersman, run) as attached:
        await attached.until(partial(is_text, "5"))
        elsewhere.sshd.stop()
        await asyncio.sleep(4)  # longer than it may be silent
        elsewhere.sshd.start()
    assert (await steersman.result(run)).status == "succeeded"


async def test_another_worker_goes_on_with_it(elsewhere: Elsewhere) -> None:
    first = elsewhere.site.worker(*elsewhere.flags)
    await first.ready()
    steersman = await elsewhere.site.steersman()
    run = await steersman.start(elsewhere.process(COUNT))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message" and e.text == "5")
        first.kill()
        await elsewhere.site.worker(*elsewhere.flags).ready()
        events = await attached.end()
    assert [e.text for e in events if e.type == "message"] == [str(number) for number in range(60)]
    assert in_order(events)
    assert (await steersman.result(run)).attempts == 1


@pytest.mark.exhaustive
async def test_a_lost_machine_is_told_and_its_agent_stopped_once_it_is_back(elsewhere: Elsewhere, mark: str) -> None:
    await elsewhere.site.worker(*elsewhere.flags).ready()
    steersman = await elsewhere.site.steersman()
    repository = made(elsewhere.site.workspace())
    run = await steersman.start(elsewhere.process(EDIT + OBEDIENT, workspace=repository, mark=mark))
    copy = await copy_of(steersman, run)
    await until((copy / "link").is_symlink)
    elsewhere.sshd.stop()
    report = await asyncio.wait_for(steersman.stop(run), 120)
    assert report.outcome == "unverified"
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    state = await steersman.state(run)
    assert state.finalize
    assert state.finalize.status == "failed"
    assert marked(mark)
    elsewhere.sshd.start()
    await gone(mark, 60)
    await until(lambda: (repository / "edited").read_text() == "one\nTWO\nthree\n", 30)
    await until(lambda: elsewhere.kept == [])


@pytest.mark.exhaustive
async def test_the_end_of_a_terminated_run_is_told_while_its_machine_is_lost(elsewhere: Elsewhere, mark: str) -> None:
    await elsewhere.site.worker(*elsewhere.flags).ready()
    steersman = await elsewhere.site.steersman()
    repository = made(elsewhere.site.workspace())
    run = await steersman.start(elsewhere.process(EDIT + OBEDIENT, workspace=repository, mark=mark))
    copy = await copy_of(steersman, run)
    await until((copy / "link").is_symlink)
    elsewhere.sshd.stop()
    await steersman.temporal.get_workflow_handle(run).terminate("enough")
    async with following(steersman, run) as attached:
        last = (await attached.end(90))[-1]
    assert last.type == "cancelled"
    assert last.stop_report
    assert last.stop_report.outcome == "unverified"
    assert last.finalize
    assert last.finalize.status == "failed"
    elsewhere.sshd.start()
    await gone(mark, 60)
    await until(lambda: (repository / "edited").read_text() == "one\nTWO\nthree\n", 30)
    await until(lambda: elsewhere.kept == [])


@pytest.mark.exhaustive
async def test_a_machine_that_is_not_allowed_any_more_gives_back_what_is_there(elsewhere: Elsewhere, mark: str) -> None:
    first = elsewhere.site.worker(*elsewhere.flags)
    await first.ready()
    steersman = await elsewhere.site.steersman()
    repository = made(elsewhere.site.workspace())
    run = await steersman.start(elsewhere.process(EDIT + OBEDIENT, workspace=repository, mark=mark))
    copy = await copy_of(steersman, run)
    await until((copy / "link").is_symlink)
    first.kill()
    await elsewhere.site.worker("--ssh-config", str(elsewhere.sshd.config)).ready()
    with pytest.raises(InvalidRequest, match=r"place is not allowed .*; its agent was stopped \(stopped\)"):
        await steersman.result(run)
    await gone(mark)
    assert (repository / "edited").read_text() == "one\nTWO\nthree\n"
    assert elsewhere.kept == []
    with pytest.raises(InvalidRequest, match="place is not allowed"):
        await steersman.run(elsewhere.process("pass"))


@pytest.mark.exhaustive
async def test_what_is_on_a_machine_that_never_comes_back_can_be_given_up(elsewhere: Elsewhere, mark: str) -> None:
    worker = elsewhere.site.worker(*elsewhere.flags)
    host = await worker.ready()
    steersman = await elsewhere.site.steersman()
    run = await steersman.start(elsewhere.process(OBEDIENT, mark=mark))
    await until(lambda: marked(mark))
    elsewhere.sshd.stop()
    assert (await asyncio.wait_for(steersman.stop(run), 120)).outcome == "unverified"
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    assert (await steersman.prune(host, 0)).pruned == ()  # it waits for a decision
    for _ in range(2):  # what could not be merged; and what else is there
        assert (await steersman.discard_workspace(run)).finalize.status == "none"
    assert (await steersman.prune(host, 0)).pruned == (run,)
    assert not (elsewhere.site.state / "runs" / run).exists()
    assert run in str(worker.said("lost"))


@pytest.mark.exhaustive
async def test_the_doctor_looks_at_another_machine(there: Elsewhere, tmp_path: Path) -> None:
    steer = Steer(there.site.namespace.address, tmp_path, there.site.namespace.name)
    env = {"STEERSMAN_SSH_CONFIG": str(there.sshd.config), "STEERSMAN_ALLOW_SSH": "place"}
    said = await steer("doctor", "--runtime", "ssh", "place", "--json", **env)
    checks = {each["check"]: each for each in said.json}
    assert said.code == 0, said.json
    assert list(checks) == [
        *("policy", "machine place", "python there", "clock there", "disk there", "git there", "claude there"),
        *("sessions there", "shim there"),
    ]
    assert str(there.claude_there) in checks["claude there"]["detail"]
    assert there.kept == []
    lost = await steer("doctor", "--runtime", "ssh", "no-such.invalid", **env)
    assert lost.code == 1
    assert "no host has this name" in lost.out
    wrong = await steer("doctor", "--runtime", "ssh", "a b", **env)
    assert (wrong.code, "'a b' is no machine that ssh reaches" in wrong.err) == (2, True)


@pytest.mark.exhaustive
async def test_steer_run_there(there: Elsewhere, tmp_path: Path, repository: Path) -> None:
    steer = Steer(there.site.namespace.address, tmp_path, there.site.namespace.name)
    said = await steer("run", "process", "-w", str(repository), "--ssh", "place", "--", "sh", "-c", "echo new > made")
    assert said.code == 0, said.err
    assert (repository / "made").read_text() == "new\n"
    assert "1 file, +1 -0" in said.out + said.err
    refused = await steer("run", "process", "-w", str(repository), "--ssh", "root@place", "--", "true")
    assert refused.code != 0
    assert "runtime.address: root@place is not allowed" in refused.out
