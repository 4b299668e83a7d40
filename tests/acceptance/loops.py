"""How loops are started on a machine of the tests, what the agent is told by them, and how they are waited for.

What a loop is expected to do must not live here: each test says it.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from steersman.client import Steersman
from steersman.contracts.loop_state import CLOSED, LoopResult, LoopState
from tests.acceptance.site import Site, answered
from tests.loops.loop_site import git, repository
from tests.scripted_model import Failure, Request, Script, fail
from tests.scripted_model.dialects.messages import texts
from tests.support.processes import PATIENCE_S, marked, until

PLAN = "# Plan\n\n- [ ] one\n- [ ] two\n"
FILES = {"PLAN.md": PLAN, ".gitignore": "ignored/\n", "src/app.py": "print('app')\n"}
LONG_TOOL = "python3 -c 'import time; time.sleep(600)'"


def project(site: Site, files: dict[str, str] | None = None) -> Path:
    """A git repository with a plan in it."""
    return repository(site.workspace(), files or FILES)


def claude_loop(site: Site, script: Script, workspace: Path, mark: str = "", **fields: Any) -> dict[str, Any]:
    """A request for a loop of Claude Code that may do everything; `run` is added to its template."""
    template = {"permissions": {"mode": "full"}, **fields.pop("run", {})}
    run = site.claude(script, mark=mark, workspace=workspace, **template)
    del run["prompt"]
    return _loop(run, fields)


def process_loop(site: Site, script: str, workspace: Path, mark: str = "", **fields: Any) -> dict[str, Any]:
    """A request for a loop of a shell's script."""
    run = site.process("sh", "-c", script, mark=mark, workspace=workspace, **fields.pop("run", {}))
    return _loop(run, fields)


def _loop(run: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    plan: dict[str, Any] = {"plan": {"path": "PLAN.md"}, "done": {"items": {"kind": "checkboxes"}}}
    return {"run": run, **plan, "pause_between_s": 0, **fields}


def tick(*names: str) -> str:
    """A command that ticks boxes of PLAN.md."""
    return "; ".join(f"sed -i 's/\\[ \\] {name}/[x] {name}/' PLAN.md" for name in names)


async def reaches(
    steersman: Steersman, loop: str, wanted: str | Callable[[LoopState], object], timeout_s: float = PATIENCE_S
) -> LoopState:
    """Wait for a status, or for what a condition says; the state then."""

    async def there() -> LoopState | None:
        now = await answered(partial(steersman.loops.state, loop))
        there = now.status == wanted if isinstance(wanted, str) else wanted(now)
        assert there or now.status not in CLOSED, f"the loop is {now.status}: {now.last_error}"
        return now if there else None

    found: LoopState = await until(there, timeout_s)
    return found


async def ended(steersman: Steersman, loop: str, timeout_s: float = 60) -> LoopResult:
    """The result of a loop that completes or stops."""
    return await asyncio.wait_for(steersman.loops.result(loop), timeout_s)


async def in_tool(mark: str, what: str = "time.sleep(600)") -> None:
    """Wait until a tool of the agent runs. The shell around it has the words in its arguments, too, and is no sign."""
    await until(
        lambda: any(what in line and not line.split(" ", 1)[0].endswith("sh") for line in marked(mark).values())
    )


def told(request: Request) -> str:
    """What the agent's turn has been told since the model last spoke."""
    messages = list(request.body["messages"])
    spoke = max((place for place, each in enumerate(messages) if each["role"] == "assistant"), default=-1)
    return "\n".join(texts({"messages": messages[spoke + 1 :]}))


def refs(workspace: Path, loop: str) -> dict[int, str]:
    """Checkpoints of a loop in the repository: number -> commit."""
    lines = git(workspace, "for-each-ref", f"refs/steersman/{loop}", "--format=%(refname) %(objectname)").splitlines()
    found = dict(line.split(" ") for line in lines)
    return {int(name.rpartition("/")[2]): commit for name, commit in found.items()}


def used_up(resets: float) -> Failure:
    """How the model's service refuses an account whose plan is used up until that time (seconds since the epoch)."""
    unified = {"status": "rejected", "reset": str(int(resets)), "representative-claim": "five_hour"}
    return fail(429, "no", headers={f"anthropic-ratelimit-unified-{name}": each for name, each in unified.items()})


PLAN_ACCOUNT = {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-test"}
"""A worker's environment for an account with a plan, in place of a key."""
