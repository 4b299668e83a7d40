"""Verification and items are programs like any other: bounded, stopped in time, with nothing left of them."""

from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from tests.acceptance.loops import ended, process_loop, project, reaches, tick
from tests.acceptance.site import Site, gone

KEEPS_PROMPT = "cat > ../{0}.prompt; echo x >> work; test $(wc -l < work) -lt 2 || touch right"
"""An agent that keeps what it was told beside its workspace, and has it right the second time."""
DAEMON = "(trap '' TERM; setsid sleep 600 &) ; setsid sleep 600 & "


async def second_prompt(shared: Site, steersman: Steersman, verify: dict[str, Any], mark: str = "") -> str:
    """What the agent is told after a verification that does not pass."""
    workspace = project(shared)
    command = KEEPS_PROMPT.format(workspace.name)
    done = {"verify": verify}
    loop = await steersman.loops.start(process_loop(shared, command, workspace, mark, done=done))
    result = await ended(steersman, loop)
    assert (result.status, result.iterations) == ("completed", 2)
    return (Path(f"{workspace}.prompt")).read_text()


@pytest.mark.exhaustive
async def test_only_the_end_of_a_long_output_is_told(shared: Site, steersman: Steersman) -> None:
    noise = "yes 'a line of noise' | head -20000; printf 'not\\000text \\377\\n'; echo '```'; echo the end; exit 5"
    prompt = await second_prompt(shared, steersman, {"command": f"test -e right || {{ {noise}; }}"})

    assert "failed with exit code 5. The end of its output:" in prompt
    assert "\nthe end\n````" in prompt
    assert prompt.count("````") == 2
    assert 2000 < len(prompt) < 6000


@pytest.mark.exhaustive
async def test_a_verification_that_hangs_is_stopped_and_told(shared: Site, steersman: Steersman, mark: str) -> None:
    hangs = {"command": f"test -e right || {{ echo so far; {DAEMON} sleep 600; }}", "timeout_s": 6}
    prompt = await second_prompt(shared, steersman, hangs, mark)

    assert "did not end in time" in prompt
    assert "so far" in prompt
    await gone(mark)


@pytest.mark.exhaustive
async def test_nothing_is_left_of_programs_that_leave_daemons(shared: Site, steersman: Steersman, mark: str) -> None:
    workspace = project(shared)
    done = {
        "items": {"kind": "command", "command": f"{DAEMON} cat PLAN.md"},
        "verify": {"command": f"{DAEMON} true"},
    }
    request = process_loop(shared, f"{DAEMON} {tick('one', 'two')}", workspace, mark, done=done)
    result = await ended(steersman, await steersman.loops.start(request))

    assert (result.status, result.iterations) == ("completed", 1)
    await gone(mark)


async def test_an_item_that_comes_during_the_verification_is_not_left_undone(
    shared: Site, steersman: Steersman
) -> None:
    workspace = project(shared)
    adds = "grep -q added PLAN.md || echo '- [ ] added meanwhile' >> PLAN.md"
    done = {"items": {"kind": "checkboxes"}, "verify": {"command": adds}}
    loop = await steersman.loops.start(process_loop(shared, tick("one", "two", "added"), workspace, done=done))
    result = await ended(steersman, loop)
    assert (result.status, result.iterations) == ("completed", 2)
    assert "[x] added meanwhile" in (workspace / "PLAN.md").read_text()
    assert result.items is not None
    assert (result.items.open, result.items.closed) == (0, 3)


async def test_it_is_verified_only_once_all_is_closed_where_that_is_wanted(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    count = Path(f"{workspace}.count")
    verify = {"command": f"echo x >> {count}", "every_iteration": False}
    done = {"items": {"kind": "checkboxes"}, "verify": verify}
    command = f"if test -e one; then {tick('two')}; else touch one; {tick('one')}; fi"
    result = await ended(steersman, await steersman.loops.start(process_loop(shared, command, workspace, done=done)))

    assert (result.status, result.iterations) == ("completed", 2)
    assert count.read_text() == "x\n"


@pytest.mark.exhaustive
async def test_feedback_that_nobody_was_given_keeps_the_loop_going(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    command = f"cat > ../{workspace.name}.$(ls ../{workspace.name}.* 2>/dev/null | wc -l); {tick('one', 'two')}"
    go = Path(f"{workspace}-go")
    verify = {"command": f"touch {go}-asked; until test -e {go}; do sleep 0.05; done"}
    done = {"items": {"kind": "checkboxes"}, "verify": verify}
    loop = await steersman.loops.start(process_loop(shared, command, workspace, done=done))
    await reaches(steersman, loop, "verifying")
    await steersman.loops.feedback(loop, "one more thing")
    go.touch()
    result = await ended(steersman, loop)

    assert (result.status, result.stop_reason, result.iterations) == ("completed", "done", 2)
    assert "- one more thing" in Path(f"{workspace}.1").read_text()
