"""A run's events as a person reads them: compact, streamed as they come, and harmless whatever is in them.

Only printing: no waiting, no asking, no network.
"""

import json
import textwrap
import time
from collections.abc import Callable
from datetime import datetime

from rich.console import COLOR_SYSTEMS, Console
from rich.style import Style
from rich.text import Text

from steersman.cli.formatting import (
    changes_phrase,
    clean,
    counted,
    duration,
    end_phrase,
    flat,
    shortened,
    stop_phrase,
    worktree_phrase,
)
from steersman.cli.terminal.blocks import is_plain, whole_blocks
from steersman.cli.terminal.edits import edit_lines
from steersman.cli.terminal.running_tools import RunningTools
from steersman.contracts.events import (
    CancelledEvent,
    DoneEvent,
    ErrorEvent,
    EventBase,
    FailedEvent,
    FileChangeEvent,
    InitEvent,
    MessageEvent,
    PermissionEvent,
    PlanUpdateEvent,
    ProgressEvent,
    RateLimitEvent,
    ToolOutputEvent,
    ToolResultEvent,
    ToolUseEvent,
    UsageEvent,
)
from steersman.contracts.run import Changes, RunResult, Worktree
from steersman.contracts.text import main_argument

RESULT_LINES = 4
OUTPUT_LINES = 5
"""Of a tool at work."""
EDIT_LINES = 12
EDIT_STYLES = {"+": "green", "-": "red"}
MAX_BLOCK = 4_000
"""Characters of a message that are kept back until a block of it is whole."""
MEASURE_S = 0.25
"""The terminal's width is looked at no more often than this."""
THINKING = "dim italic"
PLAN_MARKS = {"completed": "✓", "in_progress": "▸"}
CHANGE_MARKS = {"created": "+", "edited": "~", "deleted": "-"}


Live = str | Callable[[], str]
"""A clean text that is shown without being kept, or what makes it whenever it is drawn."""


class Renderer:
    """Prints one run's events in order, and keeps how much of a streaming message it has printed."""

    def __init__(self, console: Console, *, live: Callable[[Live], None] | None = None, verbose: bool = False) -> None:
        """`live` shows a text that is still coming: what was said is printed by whole blocks then, as Markdown, its
        words wrapped, and below it what a tool at work has put out last. Without it everything is printed as it comes.
        `verbose`: nothing of tools is cut and, without `live`, what they put out is printed as it comes.
        """
        self._console, self._file = console, console.file
        self._colors = COLOR_SYSTEMS.get(console.color_system or "")
        self._more = False
        self._live, self._verbose = live, verbose
        self._block = ""
        """With `live`: what was said since the last whole block."""
        self._streams: dict[tuple[str, str | None], tuple[str | None, str]] = {}
        self._open: tuple[str, str | None] | None = None
        self._tools = RunningTools()
        self.last_seq = 0
        self.first_time: datetime | None = None
        self._usage: UsageEvent | None = None
        self._attempts = 1
        self._measured, self._width = -MEASURE_S, 80

    def show(self, event: EventBase, *, more: bool = False) -> None:
        """Print one event. `more`: others are there, and will be shown at once: nothing need be flushed before."""
        self._more = more
        try:
            self._show(event)
        finally:
            self._more = False

    def _show(self, event: EventBase) -> None:
        self.last_seq = event.seq
        self.first_time = self.first_time or event.time
        self._attempts = max(self._attempts, event.attempt)
        tools_changed = self._tools.on_event(event)
        match event:
            case MessageEvent():
                self._message(event)
            case ToolOutputEvent():
                self._tool_output(event)
            case UsageEvent():
                self._usage = event
            case DoneEvent():
                self.end_line()
                if event.stop_report:
                    self._print(self._line("■ ", stop_phrase(event.stop_report, "stopped"), "yellow"))
            case _:
                self.end_line()
                for line in self._lines(event):
                    self._print(line)
        if tools_changed and self._live and self._open is None:
            self._live(self._at_work)

    def note(self, text: str, style: str = "dim") -> None:
        """Print a line of this program."""
        self.end_line()
        self._print(Text(flat(text), style=style))

    def note_block(self, text: str) -> None:
        """Print several lines, which are clean already."""
        self.end_line()
        for line in text.split("\n"):
            self._print(Text(f"  │ {line}"))

    @property
    def width(self) -> int:
        """The terminal's width in cells, as it was a moment ago: asking for it takes as long as printing a line."""
        if (now := time.monotonic()) - self._measured > MEASURE_S:
            self._measured, self._width = now, max(self._console.width, 20)
        return self._width

    def end_line(self) -> None:
        """End the line that a streaming message has left open."""
        if self._open is None:
            return
        if self._live is None:
            self._put("")
        else:
            self._say(self._open, self._block)
            self._block = ""
            self._live(self._at_work)
        self._open = None

    def _print(self, text: Text) -> None:
        """As the console does, a dozen times faster: here nothing is measured, wrapped or looked up."""
        if text.spans:
            self._put("".join(self._styled(part, style) for part, style, _ in text.render(self._console)))
        else:
            self._put(text.plain, text.style)

    def _put(self, text: str, style: str | Style = "", end: str = "\n") -> None:
        """Print a clean text in one style."""
        self._file.write(self._styled(text, style) + end)
        if not self._more:
            self._file.flush()

    def _styled(self, text: str, style: str | Style | None) -> str:
        if not style or self._colors is None:
            return text
        found = self._console.get_style(style, default="")
        return (found.without_color if self._console.no_color else found).render(text, color_system=self._colors)

    # Tools at work.

    def tool_line(self) -> str:
        """The last line that a tool at work has put out, clean; empty where there is none."""
        return "".join(self._tools.last_lines(1))

    def _at_work(self) -> str:
        """What a tool at work has put out last."""
        return "\n".join(self._cut(Text(f"  │ {line}")).plain for line in self._tools.last_lines(OUTPUT_LINES))

    def _tool_output(self, event: ToolOutputEvent) -> None:
        if self._verbose and self._live is None and (lines := self._tools.new_lines(event)):
            self.end_line()
            for line in lines:
                self._print(Text(f"  │ {line}", style="dim"))

    # Messages.

    def _message(self, event: MessageEvent) -> None:
        if event.role == "user":
            self.end_line()
            self._print(Text.assemble(("» ", "bold green"), (clean(event.text), "green")))
            return
        key = (event.kind, event.parent_tool_id)
        if event.delta:
            message_id, streamed = self._streams.get(key, (event.message_id, ""))
            if message_id != event.message_id:
                streamed = ""  # the earlier message was cut off and never came whole
            self._streams[key] = (event.message_id, streamed + event.text)
            self._write(key, event.text)
            return
        streamed = self._streams.pop(key, (None, ""))[1]
        rest = _unsaid(event.text, streamed)
        if rest == event.text and event.parent_tool_id is None and self._is_block(rest):
            self.end_line()
            self._say_at_once(event.kind, rest)
            return
        if rest:
            if rest == event.text:
                self.end_line()
            self._write(key, rest)
        self.end_line()

    def _is_block(self, text: str) -> bool:
        """Whether a text is one block of a message by itself."""
        return self._live is None or (len(text) <= MAX_BLOCK and "\n" not in text)

    def _say_at_once(self, kind: str, text: str) -> None:
        """As `_write` and `end_line` do of a message that does not stream: most of a program's lines."""
        if not text:
            return
        if self._live is None:
            self._put(clean(text), THINKING if kind == "thinking" else "")
        else:
            self._say((kind, None), text)
            self._live(self._at_work)

    def _write(self, key: tuple[str, str | None], text: str) -> None:
        kind, parent = key
        if self._open != key:
            self.end_line()
            if parent and self._live is None:
                self._put("  ↳ ", "dim cyan", end="")
            self._open = key
        if self._live is None:
            self._put(clean(text), THINKING if kind == "thinking" else "", end="")
            return
        self._block += text
        if "\n" in text or len(self._block) > MAX_BLOCK:
            whole, self._block = whole_blocks(self._block)
            if len(self._block) > MAX_BLOCK:
                whole, self._block = whole + self._block, ""
            self._say(key, whole)
        self._live(self._coming)

    def _coming(self) -> str:
        """The end of the block that is still coming."""
        return clean(self._block[-MAX_BLOCK // 4 :])

    def _say(self, key: tuple[str, str | None], text: str) -> None:
        """Print whole blocks."""
        kind, parent = key
        text = clean(text).strip("\n")
        if not text:
            return
        if kind == "thinking" or parent or is_plain(text) or len(text) > MAX_BLOCK:
            width = self.width - 4 if parent else self.width
            lines = [part for line in text.split("\n") for part in self._wrapped(line, width)]
            if kind != "thinking" and not parent:
                self._put("\n".join(lines))
                return
            for line in lines:
                prefix = ("  ↳ ", "dim cyan") if parent else ""
                self._print(Text.assemble(prefix, (line, THINKING if kind == "thinking" else "")))
        else:
            from steersman.cli.terminal.markdown import print_markdown

            print_markdown(self._console, text, self.width)

    def _wrapped(self, line: str, width: int) -> list[str]:
        if len(line) * 2 <= width or (line.isascii() and len(line) <= width):
            return [line]
        if line.isascii():
            return textwrap.wrap(line, width, break_on_hyphens=False, drop_whitespace=True) or [""]
        return [each.plain.rstrip() for each in Text(line).wrap(self._console, width)]

    # Everything else is a few lines.

    def _lines(self, event: EventBase) -> list[Text]:
        match event:
            case InitEvent():
                parts = [event.model, f"session {event.session_id}" if event.session_id else None]
                parts += [f"{len(event.tools)} tools" if event.tools else None]
                return [self._line("● ", " · ".join(filter(None, parts)) or "started", "dim")]
            case ToolUseEvent():
                mark = "  ↳ " if event.parent_tool_id else "▸ "
                name = shortened(flat(event.name), 60)
                argument = " " + main_argument(event.input)
                return [self._cut(Text.assemble((mark, "cyan"), (name, "bold cyan"), argument)), *self._input(event)]
            case ToolResultEvent():
                return self._result(event)
            case PlanUpdateEvent():
                return [self._line(f"{PLAN_MARKS.get(each.status, '○')} ", each.text, "blue") for each in event.items]
            case PermissionEvent():
                said = f" ({event.message})" if event.message else ""
                about = f"{event.tool}: {main_argument(event.input)}" if event.input else event.tool
                style = "magenta" if event.state == "asked" else "dim magenta"
                return [self._line("? ", f"{event.state} {about}{said}", style)]
            case _:
                return [self._remark(event)]

    def _remark(self, event: EventBase) -> Text:
        mark, text, style = "· ", str(getattr(event, "type", "event")), "dim"
        match event:
            case FileChangeEvent():
                mark, text, style = f"{CHANGE_MARKS[event.change]} ", f"{event.change} {event.path}", "yellow"
            case ProgressEvent(data={"stream": "stderr"}):
                return Text(clean(event.text), style="dim")  # a program's own line: whole, as on its stdout
            case ProgressEvent():
                text = event.text
            case RateLimitEvent():
                until = f", until {event.resets_at.astimezone():%H:%M}" if event.resets_at else ""
                mark, text, style = "! ", f"rate limit {event.limit or ''} {event.status}{until}", "yellow"
            case ErrorEvent():
                mark, text, style = "! ", event.message, "red"
            case FailedEvent():
                # What went wrong is read whole: never cut.
                return Text(f"✗ {event.error}: {clean(event.message)}", style="red")
            case CancelledEvent():
                mark, text, style = "■ ", end_phrase(event), "yellow"
        return self._line(mark, text, style)

    def _input(self, event: ToolUseEvent) -> list[Text]:
        """What a tool is to change or, where everything is asked for, all that it is given."""
        if lines := edit_lines(event.input):
            return self._block_of([(clean(line), EDIT_STYLES.get(line[:1], "dim")) for line in lines], EDIT_LINES)
        if self._verbose and event.input:
            whole = json.dumps(event.input, ensure_ascii=False, indent=2)
            return self._block_of([(line, "dim") for line in clean(whole).split("\n")], 0)
        return []

    def _block_of(self, lines: list[tuple[str, str]], most: int) -> list[Text]:
        """Lines with their styles, cut to so many and to the width unless everything is asked for."""
        if self._verbose:
            return [Text(f"  │ {line}", style=style) for line, style in lines]
        shown = [self._cut(Text(f"  │ {line}", style=style)) for line, style in lines[:most]]
        if len(lines) > most:
            shown.append(Text(f"  │ … {counted(len(lines) - most, 'more line')}", style="dim"))
        return shown

    def _result(self, event: ToolResultEvent) -> list[Text]:
        style = "red" if event.is_error else "dim"
        lines = self._tools.ended(event)
        printed = lines is not None and self._verbose and self._live is None
        if lines is None or not printed:
            lines = [line for line in clean(event.text).split("\n") if line.strip()]
        shown = self._block_of([(line, style) for line in lines], RESULT_LINES)
        if event.is_error and (printed or not lines):
            shown.append(Text("  │ failed", style=style))
        return shown

    def _line(self, mark: str, text: str, style: str) -> Text:
        return self._cut(Text(mark + flat(text), style=style))

    def _cut(self, text: Text) -> Text:
        if len(text) > self.width or not text.plain.isascii():
            text.truncate(self.width, overflow="ellipsis")
        return text

    # The end.

    def footer(
        self,
        status: str,
        result: RunResult | None,
        ended_at: datetime,
        changes: Changes | None,
        worktree: Worktree | None = None,
    ) -> None:
        """Print one line: how the run ended, what it cost, what it changed, and where that is."""
        cost = result.cost_usd if result else self._usage.cost_usd if self._usage else 0.0
        turns = result.turns if result else self._usage.turns if self._usage else 0
        began = result.started_at if result else self.first_time
        attempts = result.attempts if result else self._attempts
        parts = [
            status,
            f"${cost:.4f}" if cost else None,
            counted(turns, "turn") if turns else None,
            duration((ended_at - began).total_seconds()) if began else None,
            f"{attempts} attempts" if attempts > 1 else None,
            changes_phrase(changes) if changes else None,
            worktree_phrase(worktree) if worktree else None,
        ]
        self.end_line()
        style = {"succeeded": "bold green", "cancelled": "bold yellow", "terminated": "bold yellow"}.get(
            status, "bold red"
        )
        self._print(Text(" · ".join(filter(None, parts)), style=style))


def _unsaid(whole: str, streamed: str) -> str:
    """The part of a whole message that its deltas did not print. Following may have begun in the middle of them."""
    if streamed and whole.startswith(streamed):
        return whole[len(streamed) :]
    return "" if streamed and (whole.endswith(streamed) or streamed.endswith(whole)) else whole
