"""`make pictures`: the README's pictures, taken anew of a real server, a real worker and real runs.

The Temporal Web UI in headless Chromium, `steer attach` in a real terminal. Claude Code talks to the scripted model.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rich.console import Console

from activities.agents.claude.agent import ClaudeAgent
from bench import story, terminal
from bench.browser import Browser, NoBrowserError, browser, program
from bench.stack import ROOT, Stack, StackError, stack, until
from steersman.contracts import names
from tests.scripted_model import ScriptedModel, answer, hold, say, tool
from tests.support.kubernetes import Settings, background_server, missing

PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 300_000
WIDTH, HEIGHT = 1440, 1000
LIST = ("Status", "Workflow ID", *names.SEARCH_ATTRIBUTES, "Start", "End")
DETAILS_SHOWN = """[...document.querySelectorAll("iframe")].some(
    frame => frame.contentDocument?.body?.innerText.includes("Phase"))"""
COLUMNS, ROWS = 100, 40
IMAGE = "registry.example/agent:1"

PROMPT = "Make wordcount.py: it prints how many words standard input holds. Then check it."
STEER = "It should print the number of lines, too."
INTERRUPTION = "The long check is not needed. Finish with a sentence on what you made."
PROGRAM = (
    'import sys\n\ntext = sys.stdin.read()\nprint(len(text.split()), "words")\nprint(text.count("\\n"), "lines")\n'
)


class Studio:
    """Runs, and pictures of them."""

    def __init__(self, made: Stack, model: ScriptedModel, workspace: Path, page: Browser) -> None:
        self.stack, self.model, self.workspace, self.page = made, model, workspace, page

    async def take(self) -> None:
        """All of them."""
        running = await self.running()
        interrupted = await self.interrupted()
        cancelled = await self.cancelled()
        pod = await self.pod()
        await self._list(running, interrupted, cancelled)
        for name, run, status in (
            ("running", running, "RUNNING"),
            ("interrupted", interrupted, "COMPLETED"),
            ("cancelled", cancelled, "CANCELED"),
            ("pod", pod, "RUNNING"),
        ):
            execution = (await self.stack.client.state(run)).execution
            await self.page.visit(f"{self.stack.ui}/{run}/{execution}/user-metadata", status, "Current Details")
            await self.page.wait(DETAILS_SHOWN, "current details")
            await self.page.picture(PICTURES / f"{name}.png", WIDTH, 740)
        await self.page.visit(f"{self.stack.ui}/{interrupted}", "COMPLETED", "interrupt")
        await self.page.value(
            "document.querySelectorAll('h2, h3').forEach(h => h.innerText == 'Timeline' && h.scrollIntoView())"
        )
        await self.page.picture(PICTURES / "timeline.png", WIDTH, HEIGHT)

    async def _list(self, *runs: str) -> None:
        await self.page.visit(self.stack.ui, *runs)
        shown = {"default": [{"label": label, "pinned": False} for label in LIST]}
        await self.page.value(
            f"localStorage.setItem('namespace-workflow-table-columns', {json.dumps(json.dumps(shown))})"
        )
        await self.page.visit("about:blank")
        await self.page.visit(self.stack.ui, *runs, names.COST_USD)
        await self.page.picture(PICTURES / "runs.png", WIDTH, 460)

    async def running(self) -> str:
        """A run that is at work."""
        script = self.model.script(
            "running",
            answer(say("I look around first."), tool("Bash", command="ls -la", description="List the files")),
            hold("There is a check that takes its time. Now the program: it reads standard input, and "),
        )
        parser = self.workspace.with_name("parser")  # of its own: it is at work beside the others
        await asyncio.to_thread(story.lay_out, parser)
        prompt = "Fix the parser: it loses the last line of every file."
        run = await self._start("fix-the-parser", script.url, prompt, parser)
        await script.wait_held()
        return run

    async def interrupted(self) -> str:
        """A run that was steered, interrupted, and has ended well, followed in a terminal from its start."""
        script = self.model.script(
            "interrupted",
            answer(
                say("I look around first."),
                tool("Bash", command="ls; python3 check.py 4", description="List the files, run the check"),
            ),
            answer(
                say("You want lines as well: both go in."),
                tool("Write", file_path=str(self.workspace / "wordcount.py"), content=PROGRAM),
            ),
            answer(say("Now the long check."), tool("Bash", command="python3 check.py 2000", timeout=600_000)),
            say("wordcount.py prints the number of words and of lines on standard input."),
        )
        run = await self._start("make-wordcount", script.url, PROMPT)
        steer = [sys.executable, "-c", "from steersman.cli.main import run; run()", "--address", self.stack.address]
        attached = await terminal.Terminal.start([*steer, "attach", run], os.environ, COLUMNS, ROWS)
        log = self.workspace / "check.log"
        await until("the check runs", log.exists)
        await self.stack.client.steer(run, STEER)
        await script.wait_requests(3)
        await until("the long check runs", lambda: len(log.read_text().splitlines()) >= 5)
        attached.type(INTERRUPTION)
        await until("the terminal shows what is typed", lambda: INTERRUPTION[:20].encode() in attached.output)
        shown = attached.output
        attached.type("\x1b")
        code = await attached.finish()
        if code != 0:
            raise StackError(f"steer attach ended with {code}:\n{attached.output.decode(errors='replace')}")
        terminal.svg(shown, f"steer attach {run}", "steer attach", COLUMNS, ROWS, PICTURES / "attach.svg")
        return run

    async def cancelled(self) -> str:
        """A run that was stopped in the middle of a tool that would not go."""
        script = self.model.script(
            "cancelled", answer(say("Here it goes."), tool("Bash", command="python3 stubborn.py"))
        )
        run = await self._start(
            "migrate-database", script.url, "Run the migration in stubborn.py and wait for its end."
        )
        pids = self.workspace / "stubborn.pids"
        await until("it runs", lambda: pids.exists() and len(pids.read_text().split()) == 3)
        await self.stack.client.stop(run, reason="the wrong database")
        return run

    async def pod(self) -> str:
        """A run that is at work in a pod."""
        script = self.model.script(
            "pod",
            answer(say("I look around first."), tool("Bash", command="ls -la; hostname", description="List the files")),
            hold("The reader drops what has no newline at its end. I mend that, and "),
        )
        workspace = self.workspace.with_name("reader")
        await asyncio.to_thread(story.lay_out, workspace)
        runtime = {"kind": "kubernetes", "namespace": "default", "image": IMAGE}
        prompt = "Fix the reader: it loses the last line of every file."
        run = await self._start("fix-the-reader", script.url, prompt, workspace, runtime=runtime)
        await script.wait_held()
        return run

    async def _start(self, name: str, url: str, prompt: str, workspace: Path | None = None, **fields: Any) -> str:
        return await self.stack.client.start(
            {
                "agent": "claude",
                "prompt": prompt,
                "workspace": {"path": str(workspace or self.workspace)},
                "permissions": {"mode": "accept_edits", "allow": ["Bash"]},
                "labels": {"team": "search"},
                "env": {"ANTHROPIC_BASE_URL": url},
                **fields,
            },
            run_id=name,
        )


@contextlib.asynccontextmanager
async def _cluster(made: Stack) -> AsyncIterator[Path]:
    """The tests' own, in whose images Claude Code is; its kubeconfig."""
    directory = made.home / "cluster"
    directory.mkdir()
    settings = Settings(programs={"claude": ClaudeAgent({}).program()})
    with background_server(directory, settings) as running:
        yield running.server.kubeconfig(made.home / "kubeconfig")
        for worker in made.workers:  # before their cluster
            await worker.kill()


async def take() -> None:
    """Every picture. Raises what went wrong."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    if why := missing():
        raise StackError(f"a picture of a run in a pod: {why}")
    async with ScriptedModel() as model, browser(WIDTH, HEIGHT) as page, stack() as made, _cluster(made) as kubeconfig:
        workspace, config = made.home / "wordcount", made.home / "claude"
        story.lay_out(workspace)
        env = model.script("environment").env(config)
        made.agent_env({name: value for name, value in env.items() if name != "ANTHROPIC_BASE_URL"})
        made.agent_env({"KUBECONFIG": str(kubeconfig)})
        allowed = ("--allow-kubernetes", "default", "--allow-pod", f"image={IMAGE}")
        await made.start_worker("--allow-env", "ANTHROPIC_BASE_URL", *allowed)
        await Studio(made, model, workspace, page).take()


def main() -> int:
    """The exit code."""
    console = Console(markup=False, highlight=False)
    try:
        program()
        asyncio.run(take())
    except (NoBrowserError, StackError, TimeoutError) as error:
        console.print(f"make pictures: {error}", style="bold red")
        return 1
    for file in sorted(PICTURES.iterdir()):
        size = file.stat().st_size
        console.print(f"{file.relative_to(ROOT)}  {size / 1000:.0f} kB", style="red" if size > MOST_BYTES else "")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Temporal's native threads can crash the interpreter while it shuts down; nothing is left to clean up.
    os._exit(code)
