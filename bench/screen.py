"""The demo's screen: headlines between a run's events, and the proofs in a table. Decides nothing."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from steersman.cli.terminal.renderer import Renderer
from steersman.client import Steersman
from steersman.contracts.events import AgentEvent, is_terminal

WIDTH = 100


class Screen:
    """What is printed, and the proofs so far."""

    def __init__(self) -> None:
        probe = Console()
        self.console = Console(
            markup=False, emoji=False, highlight=False, width=min(probe.width, WIDTH) if probe.is_terminal else WIDTH
        )
        self.view = Renderer(self.console)
        self.proofs: list[tuple[str, str, bool]] = []
        self._acts = 0

    def act(self, title: str, why: str) -> None:
        """A headline, and why it matters."""
        self._acts += 1
        self.view.end_line()
        self.console.print()
        self.console.rule(Text(f" {self._acts}  {title} ", style="bold reverse"), align="left", style="bold")
        self.say(why, "italic")

    def say(self, text: str, style: str = "") -> None:
        """A paragraph of the demo's own."""
        self.view.end_line()
        self.console.print(Text(text, style=style))

    def note(self, text: str, style: str = "bold yellow") -> None:
        """What the demo does or sees right now, apart from what the agent says."""
        self.view.end_line()
        self.console.print(Padding(Text(f"▶ {text}", style=style), (0, 0, 0, 2), expand=False))

    def link(self, address: str) -> None:
        """An address on a line of its own, never broken: terminals make it a link."""
        self.view.end_line()
        self.console.print(Text(f"  ▶ {address}", style="cyan"), soft_wrap=True)

    def prove(self, what: str, proof: str, *, holds: bool) -> None:
        """Remember a proof for the table, and show it."""
        self.proofs.append((what, proof, holds))
        self.note(("✓ " if holds else "✗ ") + proof, "bold green" if holds else "bold red")

    def summary(self) -> bool:
        """The table; whether everything held."""
        table = Table(title="What you have seen", title_style="bold", expand=True, show_lines=True)
        table.add_column("")
        table.add_column("what", style="bold", ratio=3)
        table.add_column("proof", ratio=7)
        for what, proof, holds in self.proofs:
            table.add_row(Text("✓", "green") if holds else Text("✗", "bold red"), what, Text(proof))
        self.console.print()
        self.console.print(table)
        return bool(self.proofs) and all(holds for *_, holds in self.proofs)


class Watching:
    """A run that is attached to: its events are shown as they come, and can be waited for."""

    def __init__(self, steersman: Steersman, run: str, screen: Screen) -> None:
        self.events: list[AgentEvent] = []
        self._screen = screen
        self._screen.view = Renderer(screen.console)
        self._shown = asyncio.Event()
        self._shown.set()
        self._news = asyncio.Condition()
        self._task = asyncio.create_task(self._follow(steersman, run))

    async def _follow(self, steersman: Steersman, run: str) -> None:
        try:
            async with aclosing(steersman.attach(run)) as events:
                async for event in events:
                    await self._shown.wait()
                    self._screen.view.show(event)
                    async with self._news:
                        self.events.append(event)
                        self._news.notify_all()
        finally:
            async with self._news:
                self._news.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Show nothing of the run meanwhile, so that what is said here stands before what the agent answers."""
        self._shown.clear()
        try:
            yield
        finally:
            self._shown.set()

    async def until(
        self, what: str, wanted: Callable[[AgentEvent], bool], *, after: int = 0, patience_s: float = 120
    ) -> AgentEvent:
        """The first event after that number for which it holds. Raises TimeoutError, RuntimeError if none can come."""
        begun = time.monotonic()
        async with self._news:
            while True:
                for event in self.events:
                    if event.seq > after and wanted(event):
                        return event
                if self._task.done():
                    self._task.result()
                    raise RuntimeError(f"the run ended before this: {what}")
                try:
                    await asyncio.wait_for(self._news.wait(), begun + patience_s - time.monotonic())
                except TimeoutError as error:
                    raise TimeoutError(f"{what}: not within {patience_s:.0f} s") from error

    async def to_the_end(self, patience_s: float = 120) -> AgentEvent:
        """The terminal event."""
        return await self.until("the run's end", is_terminal, patience_s=patience_s)

    async def close(self) -> None:
        """Let go of the run."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
