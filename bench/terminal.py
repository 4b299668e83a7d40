"""A command in a real terminal, and what the terminal then shows as an SVG."""

import asyncio
import contextlib
import fcntl
import io
import os
import pty
import struct
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.cli.screen import Screen

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SVG = f"""\
<svg class="rich-terminal" viewBox="0 0 {{width}} {{height}}" xmlns="http://www.w3.org/2000/svg">
<style>
.{{unique_id}}-matrix {{{{ font-family: {FONT}; font-size: {{char_height}}px; line-height: {{line_height}}px; }}}}
.{{unique_id}}-title {{{{ font-size: 18px; font-weight: bold; font-family: arial; }}}}
{{styles}}
</style>
<defs><clipPath id="{{unique_id}}-clip-terminal">
<rect x="0" y="0" width="{{terminal_width}}" height="{{terminal_height}}" /></clipPath>{{lines}}</defs>
{{chrome}}<g transform="translate({{terminal_x}}, {{terminal_y}})" clip-path="url(#{{unique_id}}-clip-terminal)">
{{backgrounds}}<g class="{{unique_id}}-matrix">
{{matrix}}</g></g>
</svg>
"""
"""rich's own template, without the fonts that it would load from elsewhere."""


class Terminal:
    """One command with a terminal of its own; `output` grows as it writes."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.output = b""
        self._process, self._master = process, master
        asyncio.get_running_loop().add_reader(master, self._read)

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str], columns: int, rows: int) -> "Terminal":
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(slave)
        return cls(process, master)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the last process that had the terminal has gone
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._master)
        self.output += data

    def type(self, keys: str) -> None:
        """What a person presses."""
        os.write(self._master, keys.encode())

    async def ended(self) -> int:
        """Wait for its end, and no longer; the exit code."""
        return await self._process.wait()

    async def finish(self, patience_s: float = 60) -> int:
        """Its exit code. Raises TimeoutError."""
        try:
            return await asyncio.wait_for(self._process.wait(), patience_s)
        finally:
            await asyncio.sleep(0.1)
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
            asyncio.get_running_loop().remove_reader(self._master)
            with contextlib.suppress(OSError):
                os.close(self._master)


def svg(output: bytes, prompt: str, title: str, columns: int, rows: int, file: Path) -> None:
    """What the terminal shows after the command that was typed at the prompt."""
    shown = Screen(columns, rows).feed(output.decode(errors="replace")).styled
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "bold green"), prompt))
    console.print(Text.from_ansi(shown))
    file.write_text(console.export_svg(title=title, theme=MONOKAI, code_format=SVG))
