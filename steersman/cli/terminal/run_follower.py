"""The follower of a run on the terminal: its events, what is typed, the menu of Ctrl-C, and prompts for approval.

It prints through Renderer, asks through Keyboard, acts through the client. The run goes on, whatever happens here,
unless the person chooses to stop it.
"""

import asyncio
import shlex
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console
from rich.text import Text
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from steersman import timeouts
from steersman._client.run_events import without_log
from steersman.attachments import attachment, typed
from steersman.cli.exits import Exit, code_of
from steersman.cli.formatting import chosen, finalize_phrase, none_of, sessions_phrase
from steersman.cli.output import console, left_by_reader, remark, terminal_console, write_line
from steersman.cli.terminal.approval_prompts import ApprovalPrompts
from steersman.cli.terminal.event_pump import EventPump, KeyPress, Note, SourceEnded
from steersman.cli.terminal.interactive import is_interactive
from steersman.cli.terminal.keyboard import Interrupted, Keyboard
from steersman.cli.terminal.notices import Notify, notifier
from steersman.cli.terminal.refusals import Refusals
from steersman.cli.terminal.renderer import Renderer
from steersman.cli.terminal.run_status import RunStatus
from steersman.cli.unserved import UNTAKEN_S, unserved_run
from steersman.client import Steersman
from steersman.contracts.agents import cannot
from steersman.contracts.attachments import Attachment
from steersman.contracts.errors import ErrorType, InvalidRequest, RunError
from steersman.contracts.events import (
    AgentEvent,
    CancelledEvent,
    DoneEvent,
    FailedEvent,
    PermissionEvent,
    TerminalEvent,
    is_terminal,
)
from steersman.contracts.run import RunResult, RunState
from steersman.errors import NoWorker, SteersmanError, Unreachable

if TYPE_CHECKING:
    from steersman.cli.terminal.input_line import InputLine
    from steersman.contracts.messages import MessageReceipt

HELP = (
    "Enter says the text into the running turn; Alt-Enter begins a new line",
    "Esc ends the turn, and goes on with the text if there is one",
    "/attach FILE sends an image or a text along with what you say next",
    "/stop stops the run, /leave and Ctrl-D leave it at work, Ctrl-C opens the menu; // begins a text with a /",
)
CHOICES = ("keep", "interrupt", "stop")
KEEP, INTERRUPT = "[K]eep running (default)", "[I]nterrupt with a message"
STOP = "[S]top   (Ctrl-C again: leave it running and go)"
AGAIN_S = 1.0
"""Between two looks whether a server, host or worker is there again."""
STATE_TIMEOUT_S = 2
"""Seconds that the menu waits for the run's state, which says what the agent can do."""
SETTLE_S = 6.0
"""Seconds that leaving waits for the answers to what was said: a message's receipt takes at most 5."""
LEAVE_S = 1.0
"""Seconds that leaving waits for the server, which knows whether the run goes on."""
RESULT_TIMEOUT_S = 10
"""Seconds that the footer waits for the run's result after its terminal event."""


def waits_for_worker(run: str, error: Unreachable) -> str:
    """What a person is told of a run that nobody can be asked about before it has begun."""
    if not isinstance(error, NoWorker):
        return f"{error}; waiting"
    return f"no worker has taken the run: it waits for one (steer worker, or steer dev). Take it back: steer stop {run}"


async def follow(
    steersman: Steersman,
    which: Callable[[], Awaitable[str]],
    *,
    after: int = 0,
    as_json: bool = False,
    offers: bool = False,
    verbose: bool = False,
    notify: Notify = "none",
    begun: AsyncGenerator[Sequence[AgentEvent]] | None = None,
    first: "asyncio.Future[Any] | None" = None,
) -> Exit:
    """Show a run's events until its end or until the person leaves; the exit code. `which` starts or finds the run.

    `begun`: its events, where they were asked for already; `first`: what is done once the first of them are there.
    `offers`: at the end a person is told how to go on with the session, where that is done from here.
    """
    with ExitStack() as ending:
        ending.enter_context(left_by_reader())
        line = None
        if is_interactive() and not as_json:
            from steersman.cli.terminal.input_line import InputLine, can_draw

            if can_draw(sys.stdout):
                line = InputLine(sys.stdout, colored=console().color_system is not None)
        out = terminal_console(cast("TextIO", line)) if line else console()
        # Signals are handled before the start: no Ctrl-C leaves a run behind whose id was not printed.
        keyboard = ending.enter_context(Keyboard(out, line))
        follower = Follower(steersman, await which(), after, out, keyboard, line, as_json=as_json, verbose=verbose)
        follower.begun, follower.first = begun, first
        if is_interactive() and not as_json:
            follower.call = notifier(notify, sys.stdout)
        return await follower.run(offers=offers)


class Follower:
    """One run on one terminal. `line`: None where no person sits at it, or where nothing can be drawn."""

    def __init__(
        self,
        steersman: Steersman,
        run: str,
        after: int,
        out: Console,
        keyboard: Keyboard,
        line: "InputLine | None",
        *,
        as_json: bool,
        verbose: bool = False,
    ) -> None:
        self._steersman = steersman
        self._run = run
        self._after = after
        self._out = out
        self._keyboard = keyboard
        self._line = line
        self._json, self._offers = as_json, False
        self._person = is_interactive() and not as_json
        self._view = Renderer(out, live=line.live if line else None, verbose=verbose)
        self._view.last_seq = after
        self._approvals = ApprovalPrompts(steersman, run, keyboard, self._view)
        self.begun: AsyncGenerator[Sequence[AgentEvent]] | None = None
        """The run's events, where they were asked for already."""
        self.first: asyncio.Future[Any] | None = None
        """Done once the first of these are there."""
        self._state: RunState | None = None
        """The state that was read for the menu, which offers what the agent can do."""
        self._pump = EventPump(self._events(), keyboard, self._read)
        self._refusals = Refusals()
        self._status = RunStatus()
        self.call: Callable[[str], None] = notifier("none", sys.stdout)
        """Calls the person, who may look elsewhere: at a question, and at the end."""
        self._saying: list[str] = []
        """What nobody has answered yet."""
        self._attached: list[Attachment] = []
        """Files that go with what is said next."""
        self._left = asyncio.Event()
        """Set when the person leaves by a key or a word."""

    async def _events(self) -> AsyncGenerator[Sequence[AgentEvent | Note], None]:
        """The run's events. For a person an outage is no end: it is told once, and waited for."""
        after, told = self._after, False
        if self.first and (unserved := await self._unserved(self.first)):
            if self._person:
                yield (Note(unserved, "yellow"),)
            else:
                remark(unserved, "yellow")
        while True:
            try:
                asked, self.begun = self.begun or self._steersman.attach_pages(self._run, after=after), None
                async with aclosing(asked) as pages:
                    async for events in pages:
                        after, told = events[-1].seq, False
                        yield events
            except Unreachable as error:
                if not self._person:
                    raise
                self._status.outage = "nobody answers, waiting"
                if not told:
                    told = True
                    note = Note(f"{error}; waiting" if after else waits_for_worker(self._run, error), "yellow")
                    if not self._keyboard.remark(note.text, note.style):
                        yield (note,)
            else:
                return
            await asyncio.sleep(AGAIN_S)

    async def _unserved(self, first: "asyncio.Future[Any]") -> str | None:
        """What is told where nothing comes, as the run's host has no worker."""
        await asyncio.wait([first], timeout=UNTAKEN_S)
        if first.done():
            return None
        with suppress(SteersmanError):
            return await unserved_run(self._steersman, self._run, await self._steersman.state(self._run))
        return None

    def _read(self, item: AgentEvent | Note) -> None:
        if not isinstance(item, Note):
            self._status.on_event(item)
            self._approvals.on_event(item)

    async def run(self, *, offers: bool = False) -> Exit:
        """Follow until the terminal event, or until the person leaves; the exit code."""
        self._offers = offers
        try:
            async with self._input():
                ended = await self._stream()
                await self._settle()
            return await self._end(ended) if ended else await self._leave()
        except SourceEnded:
            return await self._ended_before()
        finally:
            await self._pump.close()

    async def _stream(self) -> AgentEvent | None:
        """Show events up to the terminal one, which is returned; None where the person leaves. Raises SourceEnded."""
        try:
            if self._person and self._after:
                await self._asked(self._approvals.ask_open)
            while True:
                event = self._pump.next_at_once() or await self._pump.next()
                if event is None:
                    if not self._person or self._left.is_set() or await self._menu():
                        return None
                elif isinstance(event, Note):
                    self._view.note(event.text, event.style)
                elif isinstance(event, KeyPress):
                    self._said(event.keys.strip())
                else:
                    self._show(event)
                    if event.type == "permission":
                        await self._ask(event)
                    if is_terminal(event):
                        return event
        except Interrupted:
            return None
        finally:
            self._out.file.flush()

    async def _settle(self) -> None:
        """What was said last is heard of, or named: nothing that was typed is dropped silently."""
        if self._saying:
            with suppress(Interrupted):  # whoever presses Ctrl-C again does not wait
                await self._keyboard.unless_interrupted(self._pump.wait_idle(SETTLE_S))
        for text in self._saying:
            self._view.note(f"not known whether it was said: {text}", "yellow")
        for note in self._pump.notes():
            self._view.note(note.text, note.style)

    def _show(self, event: AgentEvent) -> None:
        self._refusals.on_event(event)
        if self._json:
            self._view.last_seq = event.seq
            write_line(event.model_dump_json(ensure_ascii=True), more=self._pump.has_more)
        else:
            self._view.show(event, more=self._pump.has_more)

    async def _ask(self, event: PermissionEvent) -> None:
        if self._person and event.state == "asked":
            self.call(f"{self._run} asks: {event.tool}")
            await self._asked(lambda: self._approvals.ask(event))

    async def _end(self, event: AgentEvent) -> Exit:
        if event.seq == 1:
            await self._tell_of_lost_log()
        if not self._json and isinstance(event, TerminalEvent):
            self.call(f"{self._run}: {event.type}")
            await self._footer(event)
        return exit_of(event)

    async def _asked(self, question: Callable[[], Awaitable[None]]) -> None:
        """Ask. Ctrl-C opens the menu, then the question comes again. Raises Interrupted when the person leaves."""
        while True:
            try:
                await question()
                return
            except Interrupted:
                if await self._menu():
                    raise

    async def _footer(self, event: TerminalEvent) -> None:
        result: RunResult | None = None
        with suppress(SteersmanError, TimeoutError):
            try:
                result = await asyncio.wait_for(self._steersman.result(self._run), RESULT_TIMEOUT_S)
            except RunError as error:
                result = getattr(error, "result", None)
        terminated = isinstance(event, CancelledEvent) and event.terminated
        status = "terminated" if terminated else {"done": "succeeded"}.get(event.type, event.type)
        ended_at = result.ended_at if result else event.time
        self._view.footer(status, result, ended_at, event.changes, event.worktree)
        if refused := self._refusals.summary():
            remark(refused, "yellow")
        if event.finalize and event.finalize.status in ("conflicted", "failed"):
            remark(finalize_phrase(event.finalize, self._run), "yellow")
        if event.finalize and (told := sessions_phrase(event.finalize)):
            remark(told, "yellow")
        if self._person and self._offers and result and result.session_id:
            remark("go on with it: steer run --continue 'And now ...'")

    async def _ended_before(self) -> Exit:
        remark(f"run {self._run} has no events after number {self._after}")
        await self._tell_of_lost_log()
        try:
            await self._steersman.result(self._run)
        except (SteersmanError, RunError) as error:
            return code_of(error) or Exit.FAILED
        return Exit.OK

    async def _tell_of_lost_log(self) -> None:
        """Say where the events are not there any more of which the end is all that is known."""
        host: str | None = None
        with suppress(SteersmanError):
            host = await without_log(self._steersman.temporal, self._run)
        if host:
            why = "they were pruned, or its state directory is not the one of then"
            remark(f"the events of run {self._run} are gone from host {host}: {why}", "yellow")

    # What is typed.

    @asynccontextmanager
    async def _input(self) -> AsyncIterator[None]:
        """Meanwhile the person can type: on a line of its own or, where nothing can be drawn, between the events."""
        if self._line is not None and not await self._is_open():
            with self._line.gathered():  # there is nobody to talk to, and nothing to wait for
                yield
            return
        if self._line is None:
            with self._keyboard.reading_lines() if self._person else ExitStack():
                yield
            return
        from steersman.cli.terminal.input_line import Actions

        actions = Actions(self._said, self._escape, self._keyboard.interrupt, self._go, self._status_line)
        async with self._line.opened(actions):
            yield
            self._view.end_line()
        if typed := self._line.typed.strip():
            remark(f"not said: {typed}", "yellow")

    async def _is_open(self) -> bool:
        with suppress(RPCError):
            described = await self._steersman.temporal.get_workflow_handle(self._run).describe()
            return described.status == WorkflowExecutionStatus.RUNNING
        return True

    def _status_line(self) -> str:
        return self._status.line(datetime.now(UTC), self._view.width)

    def _go(self) -> None:
        self._left.set()
        self._keyboard.interrupt()

    def _said(self, text: str) -> None:
        """Carry out a line that the person has typed."""
        if not text:
            return
        if text == "/stop":
            self._pump.run_beside(self._stop())
        elif text == "/leave":
            self._go()
        elif text.partition(" ")[0] == "/attach":
            self._attach(text.removeprefix("/attach"))
        elif text in ("/help", "?"):
            for line in HELP:
                self._view.note(line)
        else:
            self._pump.run_beside(self._say(text.removeprefix("/") if text.startswith("//") else text), in_turn=True)

    def _attach(self, words: str) -> None:
        """Take files along with what is said next; they are read now."""
        try:
            files = [typed(each) for each in shlex.split(words)]
            for each in files:
                if each.exists() and not each.is_file():  # a pipe would keep all of this waiting
                    raise InvalidRequest(f"attachment: {each} is no file")
            found = [attachment(each) for each in files]
        except (InvalidRequest, OSError, ValueError) as error:
            self._view.note(str(error), "yellow")
            return
        self._attached += found
        names = ", ".join(each.name for each in self._attached)
        self._view.note(f"goes with what you say next: {names}" if names else "/attach FILE: which one?")

    def _escape(self, text: str) -> None:
        self._pump.run_beside(self._end_turn(text), in_turn=True)

    async def _say(self, text: str) -> Note:
        files, self._attached = self._attached, []
        self._view.note("".join([f"you: {text}", *(f" [{each.name}]" for each in files)]), "green")
        self._saying.append(text)
        try:
            receipt = await self._steersman.steer(self._run, text, attachments=files)
        except (SteersmanError, RunError) as error:
            self._put_back(text, files)
            return Note(f"not said: {error}", "yellow")
        finally:
            self._saying.remove(text)
        return self._receipt("message", receipt, text, files)

    async def _end_turn(self, text: str) -> Note:
        if refusal := await self._cannot_interrupt():
            self._put_back(text)
            return Note(refusal, "yellow")
        return await self._interrupt(text or None)

    def _receipt(self, word: str, receipt: "MessageReceipt", text: str | None, files: "Sequence[Attachment]") -> Note:
        how = f" ({receipt.how})" if receipt.how else ""
        if receipt.state in ("rejected", "too_late"):
            self._put_back(text or "", files)
            return Note(f"{word} {receipt.state.replace('_', ' ')}{how}", "yellow")
        return Note(f"{word} {receipt.state}{how}")

    def _put_back(self, text: str, files: "Sequence[Attachment]" = ()) -> None:
        self._attached = [*files, *self._attached]
        if self._line:
            self._line.put_back(text)

    # Ctrl-C.

    async def _menu(self) -> bool:
        """Show the menu; whether the person leaves."""
        self._view.end_line()
        if self._keyboard.terminated:
            return True
        try:
            self._out.print()
            refusal = await self._cannot_interrupt()
            menu = "  ".join((KEEP, *(() if refusal else (INTERRUPT,)), STOP))
            while True:
                answer = await self._keyboard.ask(Text(f"{menu} >", style="bold"))
                choice = chosen(answer or "keep", CHOICES)
                if choice is None:
                    self._view.note(none_of(answer or "", "k, i, s"), "yellow")
                    continue
                if choice == "interrupt" and refusal:
                    self._view.note(refusal, "yellow")
                    continue
                if choice == "interrupt":
                    text = await self._keyboard.ask_message(Text("Message (empty: just interrupt) >", style="bold"))
                    self._pump.run_beside(self._interrupt(text or None))
                elif choice == "stop":
                    self._pump.run_beside(self._stop())
                return False
        except Interrupted:
            return True

    async def _cannot_interrupt(self) -> str | None:
        """Why the agent cannot be interrupted, or that this is unknown for now; None where it can be."""
        if self._state is None or self._state.host is None:  # no host has said yet what the run can do
            with suppress(SteersmanError, TimeoutError):
                self._state = await asyncio.wait_for(self._steersman.state(self._run), STATE_TIMEOUT_S)
        state = self._state
        if state is None or state.capabilities is None:
            return "whether the agent can be interrupted cannot be told now: no worker answers for the run"
        return cannot(state.agent or "?", state.capabilities, "interrupt")

    async def _interrupt(self, text: str | None) -> Note:
        files: list[Attachment] = []
        if text:
            files, self._attached = self._attached, []
        saying = [text] if text else []
        self._saying += saying
        try:
            receipt = await self._steersman.interrupt(self._run, text, attachments=files)
        except (SteersmanError, RunError) as error:
            self._put_back(text or "", files)
            return Note(f"not interrupted: {error}")
        finally:
            for each in saying:
                self._saying.remove(each)
        return self._receipt("interrupt", receipt, text, files)

    async def _stop(self) -> Note | None:
        self._view.note("stopping ...")
        try:
            await self._steersman.stop(self._run)
        except SteersmanError as error:
            return Note(f"not stopped: {error}")
        return None

    async def _leave(self) -> Exit:
        self._view.end_line()
        after, is_open = f" --after {self._view.last_seq}" if self._view.last_seq else "", True
        with suppress(TimeoutError):
            async with timeouts.timeout(LEAVE_S):
                is_open = await self._is_open()
        how = "goes on; follow it again" if is_open else "has closed; read on"
        remark(f"the run {how} with: steer attach {self._run}{after}")
        return Exit.TERMINATED if self._keyboard.terminated else Exit.DETACHED


def exit_of(event: AgentEvent) -> Exit:
    """The exit code for how a run ended."""
    match event:
        case DoneEvent():
            return Exit.OK
        case CancelledEvent():
            return Exit.CANCELLED
        case FailedEvent(error=ErrorType.INVALID_REQUEST):
            return Exit.USAGE
        case _:
            return Exit.FAILED
