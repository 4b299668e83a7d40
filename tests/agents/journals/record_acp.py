"""Record journals of real agents that speak ACP: `python -m tests.agents.journals.record_acp`."""

import asyncio
import tempfile
from pathlib import Path

from tests.agents.kits import ACP_KITS, AcpKit
from tests.agents.stage import Stage, deliver, message, word
from tests.scripted_model import Say, ScriptedModel, answer, hold, say
from tests.support.processes import until

DIRECTORY = Path(__file__).parent / "acp"


async def record(kit: AcpKit) -> bytes:
    """Allowed, denied and withdrawn, interrupted with a text and without."""
    steps = (
        answer(Say("first"), kit.shell("touch one")),
        answer(Say("second"), kit.shell("touch two")),
        hold("a long story"),
        answer(kit.shell("touch three")),
        lambda _request: say('{"answer": 42}'),  # Claude Code may ask once more about the tool that was refused
    )
    async with kit.run(*steps, permissions={"mode": "ask"}) as stage:
        session, task = stage.start()
        await _asked(stage, 1)
        await deliver(session, word(stage.listener.asks[-1].approval.id, "allow", "execute"))
        await _asked(stage, 2)
        await deliver(session, word(stage.listener.asks[-1].approval.id, "deny" if kit.goes_on else "allow", "execute"))
        await kit.script.wait_held()
        if kit.steers:
            await deliver(session, message("steer", "please", "m-0"))
            if kit.name == "opencode":  # which reads it at its next step
                await kit.script.release()
        else:
            await deliver(session, message("interrupt", None, "m-1"))
            await deliver(session, message("interrupt", "go on", "m-2"))
        await _asked(stage, 3)
        await deliver(session, message("interrupt", "leave that", "m-3"))
        async with asyncio.timeout(60):
            outcome = await task
        assert outcome.text == '{"answer": 42}', outcome
        return (stage.directory.attempt(1) / "journal").read_bytes()


async def _asked(stage: Stage, count: int) -> None:
    await until(lambda: len([each for each in stage.listener.asks if not each.withdrawn]) >= count)


async def main() -> None:
    """Each agent that is installed."""
    for name, make in ACP_KITS.items():
        with tempfile.TemporaryDirectory(dir=Path.home() / ".cache") as directory:
            async with ScriptedModel() as model:
                kit = make(Path(directory), model)
                if kit.not_installed() is None:
                    (DIRECTORY / f"{name}.journal").write_bytes(await record(kit))


if __name__ == "__main__":
    asyncio.run(main())
