"""The demo's act about copies: two runs at once in one repository, a person beside them, and a conflict."""

import asyncio
import subprocess
from pathlib import Path

from bench.screen import Screen
from bench.stack import Stack
from bench.undo_act import lay_out
from steersman.cli.formatting import finalize_phrase

FILES = {"app.py": "print('hello')\n", "notes.txt": "first\n"}
COMMIT = "git -c user.name=agent -c user.email=agent@localhost commit -qam"
WORK = {
    "one": f"echo \"print('bye')\" >> app.py; {COMMIT} 'Say goodbye'",
    "two": "echo 'the agent was here' > notes.txt; echo new > new.txt",
}


class CopyAct:
    """Two runs of shell scripts in copies of one git repository."""

    def __init__(self, screen: Screen, made: Stack) -> None:
        self.screen, self.stack = screen, made
        self.workspace = made.home / "copies"

    async def play(self) -> None:
        """The whole act."""
        self.screen.act(
            "Copies",
            "Two agents at once in one repository, each in a copy of it, while a person goes on there. What they did "
            "is merged; what both sides have changed stays as the person has it, and is kept.",
        )
        await asyncio.to_thread(lay_out, self.workspace, FILES)
        client, go = self.stack.client, self.stack.home / "go"
        runs = {
            name: await client.start(
                {
                    "agent": "process",
                    "command": ["sh", "-ec", f"while [ ! -e {go} ]; do sleep 0.05; done; {script}"],
                    "workspace": {"path": str(self.workspace), "isolation": "copy"},
                }
            )
            for name, script in WORK.items()
        }
        copies = {name: await self._copy(run) for name, run in runs.items()}
        for name, copy in copies.items():
            self.screen.note(f"run {name} works in {copy}")
        self.screen.note("a person writes into notes.txt meanwhile")
        (self.workspace / "notes.txt").write_text("first\nand I answered\n")
        go.touch()
        results = {name: await client.result(run) for name, run in runs.items()}
        said = {name: finalize_phrase(each.finalize, runs[name]) for name, each in results.items() if each.finalize}
        log = _git(self.workspace, "log", "-1", "--format=%s").strip()
        self.screen.prove(
            "A commit came back",
            f"{said.get('one')}: the branch is at {log!r}",
            holds=log == "Say goodbye" and "bye" in (self.workspace / "app.py").read_text(),
        )
        two = results["two"].finalize
        kept = _git(self.workspace, "show", f"{two.ref}:notes.txt") if two and two.ref else ""
        self.screen.prove(
            "A conflict",
            said.get("two", "nothing was carried back"),
            holds=(self.workspace / "notes.txt").read_text() == "first\nand I answered\n"
            and (self.workspace / "new.txt").exists()
            and kept == "the agent was here\n"
            and two is not None
            and two.conflicts == ("notes.txt",),
        )

    async def _copy(self, run: str) -> str:
        async with asyncio.timeout(60):
            while (carried := (await self.stack.client.state(run)).carried) is None:
                await asyncio.sleep(0.05)
        return carried.directory


def _git(workspace: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=workspace, capture_output=True, text=True, check=False).stdout
