"""The demo's act about files: what a run changed, and taking it back without losing what a person did meanwhile."""

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.screen import Screen, Watching
from bench.stack import Stack
from steersman.cli.formatting import changes_phrase

FILES = {"app.py": "print('hello')\n", "notes.txt": "mine\n", "old.txt": "to be deleted\n"}
EDITS = """
printf "print('hello, world')\\n" > app.py
printf "the agent was here\\n" >> notes.txt
rm old.txt
"""


class UndoAct:
    """One run of a shell script in a git repository, shown and undone."""

    def __init__(self, screen: Screen, made: Stack) -> None:
        self.screen, self.stack = screen, made
        self.workspace = made.home / "undo"

    async def play(self) -> None:
        """The whole act."""
        self.screen.act(
            "Undo",
            "A run in a git repository says what it changed, staged or not, committed or not. It can be taken back, "
            "also when a person has worked on the same files since: that work is never lost.",
        )
        await asyncio.to_thread(lay_out, self.workspace, FILES)
        client = self.stack.client
        request = {"agent": "process", "command": ["sh", "-c", EDITS], "workspace": {"path": str(self.workspace)}}
        run = await client.start(request)
        watching = Watching(client, run, self.screen)
        await watching.to_the_end()
        result = await client.result(run)
        changes = result.changes
        self.screen.view.footer(result.status, result, result.ended_at, changes)
        self.screen.note("steer diff RUN --stat")
        self.screen.say((await client.diff(run)).stat.rstrip("\n"))
        said = changes_phrase(changes) if changes else "nothing was kept"
        self.screen.prove("What a run changed", said, holds=said == "3 files, +2 -2")

        (self.workspace / "notes.txt").write_text("mine\nthe agent was here\nand I answered\n")
        self.screen.note("a person goes on with notes.txt; then: steer undo RUN")
        undone = await client.undo(run)
        now = {path.name: path.read_text() for path in self.workspace.iterdir() if path.is_file()}
        wanted = FILES | {"notes.txt": "mine\nthe agent was here\nand I answered\n"}
        left = ", ".join(undone.conflicts)
        self.screen.prove(
            "Undo, with a conflict",
            f"{undone.files} files as before the run; {left} was changed since, and left; all files as they were "
            f"before the undo are in commit {undone.rescue[:10]}",
            holds=now == wanted and undone.conflicts == ("notes.txt",) and self._kept(undone.ref, "old.txt") is None,
        )

    def _kept(self, ref: str, name: str) -> str | None:
        """A file of the commit that an undo has made before it began; None where it has none of that name."""
        shown = subprocess.run(
            ["git", "show", f"{ref}:{name}"], cwd=self.workspace, capture_output=True, text=True, check=False
        )
        return shown.stdout if shown.returncode == 0 else None


def lay_out(workspace: Path, files: Mapping[str, str]) -> None:
    """A repository of these files, committed."""
    workspace.mkdir()
    for name, text in files.items():
        (workspace / name).write_text(text)
    identity = ("-c", "user.name=demo", "-c", "user.email=demo@localhost")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run(["git", *identity, *words], cwd=workspace, check=True)
