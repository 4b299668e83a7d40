"""A loop ends when its work is proved done, and tells the agent what is not."""

import re
from pathlib import Path

import pytest

from steersman.client import Steersman
from tests.acceptance.loops import PLAN, claude_loop, ended, project, reaches, refs, tick, told
from tests.acceptance.site import Site
from tests.loops.loop_site import git, on_disk, put, seen, standing
from tests.scripted_model import ScriptedModel, say, tool

VERIFY = 'test "$(cat result.txt)" = 42 || { echo "the result is not 42 but $(cat result.txt)"; exit 3; }'


def at_work(workspace: Path) -> None:
    """What a person has in the works: staged, changed, untracked and ignored files."""
    put(workspace, {"src/app.py": "print('staged')\n"})
    git(workspace, "add", "src/app.py")
    put(
        workspace,
        {"src/app.py": "print('changed')\n", "untracked.txt": "mine\n", "ignored/secret": "never kept\n"},
    )


async def test_boxes_and_verification_are_the_proof(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    workspace = project(shared)
    at_work(workspace)
    before = standing(workspace)
    plan = str(workspace / "PLAN.md")
    script = model.script(
        "proof",
        tool("Read", file_path=plan),
        tool("Edit", file_path=plan, old_string="[ ] one", new_string="[x] one"),
        say("one is done"),
        tool("Bash", command=f"echo 41 > result.txt; {tick('two')}"),
        say("two is done, and so is everything"),
        tool("Bash", command="echo 42 > result.txt"),
        say("now it is right"),
    )
    done = {"items": {"kind": "checkboxes"}, "verify": {"command": VERIFY}}

    loop = await steersman.loops.start(claude_loop(shared, script, workspace, done=done))
    result = await ended(steersman, loop)

    assert (result.status, result.stop_reason, result.iterations) == ("completed", "done", 3)
    assert result.text == "now it is right"
    assert result.verification is not None
    assert (result.verification.status, result.verification.iteration) == ("passed", 3)
    assert result.items is not None
    assert (result.items.closed, result.items.total) == (2, 2)
    # What the verification said is in the next prompt, and what is open.
    first, third = script.requests[0], script.requests[5]
    assert "`PLAN.md`" in told(first)
    assert ": one" in told(first)
    assert "exit code 3" in told(third)
    assert "the result is not 42 but 41" in told(third)
    assert "Open:" not in told(third)
    # The person's repository stands as it stood, but for what the agent did.
    after = standing(workspace)
    assert {name for name in before if before[name] != after[name]} == {"status"}
    assert re.sub(r"1 \.M .* PLAN.md\n|\? result.txt\n", "", str(after["status"])) == before["status"]
    await each_iteration_is_kept(steersman, loop, workspace)


async def each_iteration_is_kept(steersman: Steersman, loop: str, workspace: Path) -> None:
    """With all files but the ignored ones, and what it came to."""
    kept = await steersman.loops.checkpoints(loop)
    assert [each.kind for each in kept] == ["baseline", "iteration", "iteration", "iteration"]
    assert [each.verification for each in kept] == [None, "failed", "failed", "passed"]
    assert [each.run for each in kept[1:]] == [f"{loop}-{number}" for number in (1, 2, 3)]
    assert refs(workspace, loop) == {each.number: each.commit for each in kept}
    now = on_disk(workspace)
    del now["ignored/secret"]
    assert seen(workspace, kept[-1].commit or "") == now
    first = seen(workspace, kept[0].commit or "")
    assert (first["PLAN.md"], first["untracked.txt"]) == (PLAN.encode(), b"mine\n")
    assert "result.txt" not in first
    assert git(workspace, "log", "-1", "--format=%P", f"refs/steersman/{loop}/3").strip() == kept[-1].head
    state = await steersman.loops.state(loop)
    assert (state.status, state.run, state.checkpoints_total) == ("completed", None, 4)
    assert state.totals.cost_usd == pytest.approx(sum(each.cost_usd for each in kept))
    assert state.totals.cost_usd > 0


@pytest.mark.exhaustive
async def test_a_session_goes_on_or_begins_anew(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    sessions: dict[str, list[str | None]] = {}
    for mode in ("continue", "fresh"):
        workspace = project(shared)
        script = model.script(
            mode,
            tool("Bash", command=tick("one")),
            say("the password is swordfish"),
            tool("Bash", command=tick("two")),
            say("done"),
        )
        loop = await steersman.loops.start(claude_loop(shared, script, workspace, session=mode))
        assert (await ended(steersman, loop)).iterations == 2
        kept = await steersman.loops.checkpoints(loop)
        sessions[mode] = [each.session_id for each in kept[1:]]
        third = script.requests[2]
        assert third.saw("swordfish") == (mode == "continue")
        # Whoever begins anew is told the whole task; whoever goes on, what comes next.
        assert ("Work on the plan below" in told(third)) == (mode == "fresh")
        assert ": two" in told(third)
        assert ": one" not in told(third)
    assert None not in sessions["continue"] + sessions["fresh"]
    assert len(set(sessions["continue"])) == 1
    assert len(set(sessions["fresh"])) == 2


@pytest.mark.exhaustive
async def test_a_promise_alone_is_not_believed_and_an_echo_is_none(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    workspace = project(shared)
    script = model.script(
        "promise",
        say("All is finished.\n\nALL DONE"),
        tool("Bash", command=tick("one", "two")),
        say("I shall end my answer with ALL DONE"),
        say("Nothing is left.\nALL DONE"),
    )
    request = claude_loop(shared, script, workspace, done={"items": {"kind": "checkboxes"}, "promise": "ALL DONE"})

    loop = await steersman.loops.start(request)
    result = await ended(steersman, loop)

    assert (result.stop_reason, result.iterations) == ("done", 3)
    assert "ALL DONE" in told(script.requests[0])


@pytest.mark.exhaustive
async def test_a_plan_of_phases_is_worked_through_in_their_order(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    files = {
        "plan/00-overview.md": "# All of it\n- [ ] never\n",
        "plan/01-api.md": "---\ndepends_on: [02-storage]\n---\n- [ ] api\n",
        "plan/02-storage.md": "- [ ] storage\n",
    }
    workspace = project(shared, files)
    script = model.script(
        "phases",
        tool("Bash", command="sed -i 's/\\[ \\]/[x]/' plan/02-storage.md"),
        say("stored"),
        tool("Bash", command="sed -i 's/\\[ \\]/[x]/' plan/01-api.md"),
        say("served"),
    )

    loop = await steersman.loops.start(claude_loop(shared, script, workspace, plan={"path": "plan"}))
    assert (await ended(steersman, loop)).iterations == 2

    assert "phase `02-storage`" in told(script.requests[0])
    assert ": storage" in told(script.requests[0])
    assert ": api" not in told(script.requests[0])
    assert ": api" in told(script.requests[2])
    kept = await steersman.loops.checkpoints(loop)
    assert [each.phase for each in kept] == ["02-storage", "01-api", None]


@pytest.mark.exhaustive
async def test_what_only_a_person_can_go_on_with_waits_for_one(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    workspace = project(shared)
    script = model.script(
        "blocked",
        tool("Bash", command=f"{tick('one')}; sed -i 's/\\[ \\] two/[!] two/' PLAN.md"),
        say("two is blocked"),
        tool("Bash", command="sed -i 's/\\[!\\] two/[x] two/' PLAN.md"),
        say("done"),
    )
    loop = await steersman.loops.start(claude_loop(shared, script, workspace))
    waiting = await reaches(steersman, loop, "waiting_for_decision")

    assert waiting.waits_for == "nothing that is left can be worked on: 1 blocked, 0 to be reviewed"
    await steersman.loops.resume(loop, "here is the key")

    assert (await ended(steersman, loop)).iterations == 2
    assert "here is the key" in told(script.requests[2])
