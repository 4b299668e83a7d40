"""`make demo`: a real Claude Code run as a durable workflow, steered, interrupted, orphaned, adopted, stopped;
then a run that is undone, two in copies of one repository, and a loop.

With ANTHROPIC_API_KEY the agent talks to Claude; without one to the scripted model, and the screen says so. Exit code 0
only if everything that it shows has happened. `make demo AGENT=codex` (gemini, opencode, hermes, acp): see agent_act.
"""

import asyncio
import contextlib
import os
import signal
import sys

from rich.text import Text

from bench import loop_story, story
from bench.acts import Acts, worker_flags
from bench.agent_act import AgentAct
from bench.casts import CASTS
from bench.copy_act import CopyAct
from bench.loop_act import LoopAct
from bench.screen import Screen
from bench.stack import StackError, stack
from bench.undo_act import UndoAct
from steersman.contracts.errors import RunError
from steersman.errors import SteersmanError
from tests.scripted_model import Script, ScriptedModel

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def _scene(screen: Screen) -> int:
    screen.console.rule(Text(" Steersman ", style="bold"), style="bold")
    key = bool(os.environ.get("ANTHROPIC_API_KEY"))
    if key:
        screen.say("ANTHROPIC_API_KEY is set: the agent talks to Claude, for a few cents.", "bold")
    else:
        screen.say(
            "No ANTHROPIC_API_KEY is set: the real Claude Code talks to a scripted model on this machine. Everything "
            "else is what it would be. With a key in ANTHROPIC_API_KEY the agent talks to Claude.",
            "bold",
        )
    async with contextlib.AsyncExitStack() as exits:
        scripts: dict[str, Script] = {}
        model = None if key else await exits.enter_async_context(ScriptedModel())
        screen.note("starting Temporal with its Web UI, on a file database")
        made = await exits.enter_async_context(stack(keep_agent_variables=key))
        story.lay_out(made.home / "workspace")
        loop_story.lay_out(made.home / "loop")
        config = made.home / "claude"
        made.agent_env({"CLAUDE_CONFIG_DIR": str(config), "DISABLE_AUTOUPDATER": "1"})
        if model:
            scripts = {
                "work": story.play_work(model, made.home / "workspace"),
                "stubborn": story.play_stubborn(model),
                "loop": loop_story.play(model, made.home / "loop"),
            }
            made.agent_env({k: v for k, v in scripts["work"].env(config).items() if k != "ANTHROPIC_BASE_URL"})
        screen.note("starting a worker")
        await made.start_worker(*worker_flags(scripts))
        await Acts(screen, made, scripts).play()
        await UndoAct(screen, made).play()
        await CopyAct(screen, made).play()
        await LoopAct(screen, made, scripts.get("loop")).play()
        held = screen.summary()
        if sys.stdin.isatty():
            screen.say(f"Look at the runs and the loop in Temporal: {made.ui}", "bold")
            screen.say("Press Enter to end the demo and to clear all of it away.", "bold")
            await _enter()
        return 0 if held else 1


async def _agent_scene(screen: Screen, agent: str) -> int:
    if agent not in CASTS:
        raise StackError(f"there is no demo of {agent!r}: one of {', '.join(CASTS)}, or claude")
    screen.console.rule(Text(f" Steersman: {agent} ", style="bold"), style="bold")
    screen.say(f"The real program of {agent} talks to a scripted model on this machine, whatever keys are set.", "bold")
    async with ScriptedModel() as model, stack() as made:
        act = AgentAct(screen, made, agent)
        await act.prepare(model)
        await act.play()
        return 0 if screen.summary() else 1


async def _enter() -> None:
    # A thread that reads a line would hold up Ctrl-C.
    pressed = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, pressed.set)
    await pressed.wait()
    loop.remove_reader(sys.stdin)
    sys.stdin.readline()


async def _main(screen: Screen) -> int:
    agent = next(iter(sys.argv[1:]), "") or "claude"
    scene = asyncio.create_task(_scene(screen) if agent == "claude" else _agent_scene(screen, agent))
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, scene.cancel)
    try:
        return await scene
    except asyncio.CancelledError:
        screen.say("Left early; everything is cleared away.", "bold")
        return 130
    except (StackError, SteersmanError, RunError, RuntimeError, TimeoutError) as error:
        screen.say(f"The demo went wrong: {error}", "bold red")
        return 1


if __name__ == "__main__":
    code = asyncio.run(_main(Screen()))
    sys.stdout.flush()
    # Temporal's native threads can crash the interpreter while it shuts down; nothing is left to clean up.
    os._exit(code)
