"""One session of an editor: a thread, whose runs are started, joined and left.

What is told of a run carries a cursor in `_meta`: `{"steersman": {"cursor": "EXECUTION:SEQ"}}`. A session is loaded
from there on where the request brings the same.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, Self

from acp import helpers
from acp.exceptions import RequestError
from acp.interfaces import Client
from acp.schema import AllowedOutcome, PermissionOption, PromptResponse, ToolCallUpdate
from acp.schema import Usage as AcpUsage

from steersman._client.backoff import OUTAGE_S, Backoff, while_unreachable
from steersman._client.futures import retrieve_exception
from steersman.acp.errors import INTERNAL, as_request_errors, failure
from steersman.acp.updates import Updates, ended
from steersman.client import Steersman
from steersman.contracts.attachments import Attachment, worded
from steersman.contracts.events import (
    AgentEvent,
    CancelledEvent,
    DoneEvent,
    FailedEvent,
    MessageEvent,
    PermissionEvent,
    ToolOutputEvent,
    UsageEvent,
    is_terminal,
)
from steersman.contracts.messages import MAX_TEXT, MessageReceipt
from steersman.contracts.run import Usage
from steersman.errors import (
    AlreadyDecided,
    MessageRefused,
    NoWorker,
    RunInterrupted,
    RunNotRunning,
    SteersmanError,
    ThreadBusy,
)
from steersman.ids import new_message_id
from steersman.threads import Thread, ThreadRun

REASON: Final = "cancelled in the editor"
END_S: Final = 10.0
"""A run that is being started as the editor leaves is waited for this many seconds: it is the server's from then on."""
MISSED: Final = ("rejected", "too_late")
"""States of a message that its agent never had."""
OLD_S: Final = 0.5
OLD: Final = timedelta(seconds=1)
"""An approval that was asked for longer ago may be decided already: the next events say so within OLD_S."""
OLD_OUTPUT: Final = timedelta(seconds=30)
"""Output of a tool at work is told to an editor that comes no longer than this afterwards: the result has it."""
OPTIONS: Final = [
    PermissionOption(option_id="allow", name="Allow", kind="allow_once"),
    PermissionOption(option_id="allow_always", name="Allow for the rest of this run", kind="allow_always"),
    PermissionOption(option_id="deny", name="Deny", kind="reject_once"),
    PermissionOption(option_id="deny_always", name="Deny for the rest of this run", kind="reject_always"),
]

ANSWERS: Final[dict[str, tuple[Literal["allow", "deny"], bool]]] = {
    "allow": ("allow", False),
    "allow_always": ("allow", True),
    "deny": ("deny", False),
    "deny_always": ("deny", True),
}
"""Option -> the decision, and whether it is remembered."""


class Cursor:
    """Up to which event an editor knows a session. `execution`: Temporal's run id of one of its runs."""

    def __init__(self, execution: str, seq: int) -> None:
        self.execution, self.seq = execution, seq

    @classmethod
    def of(cls, meta: Any) -> Self | None:
        """That of a request's `_meta`. Raises ValueError for one that is none."""
        own = meta.get("steersman") if isinstance(meta, dict) else None
        said = own.get("cursor") if isinstance(own, dict) else None
        if said is None:
            return None
        execution, _, seq = str(said).rpartition(":")
        return cls(execution, int(seq))

    def is_in(self, run: ThreadRun) -> bool:
        """Whether it is of this run, which may have been reset since."""
        return self.execution in (run.execution, run.first)

    def meta(self) -> dict[str, Any]:
        """The `_meta` of what is told of the event."""
        return {"steersman": {"cursor": f"{self.execution}:{self.seq}"}}


_Ask = Callable[[], Coroutine[Any, Any, MessageReceipt]]


class Run:
    """A run of the session that is followed: until its end, whoever asks for it."""

    def __init__(self, execution: str, said: str = "") -> None:
        """`said`: its prompt, as far as the editor has it."""
        self.execution = execution
        self.said = [said]
        """What the editor knows to have been said to the agent: some agents repeat it in their events."""
        self.updates = Updates(execution)
        self.known = 0
        """The events up to this number are not told, but read all the same: a text may have come in part."""
        self.usage: Usage | None = None
        self.questions: dict[str, asyncio.Task[None]] = {}
        """The approvals that the editor is asked for, by their ids."""
        self.prompts = 0
        """How many requests of the editor wait for its end."""
        self.queued: dict[str, _Ask] = {}
        """Prompts that there was nobody to bring to the agent, and what tells what became of each."""
        self.missed: set[str] = set()
        """Those of them that had not reached the agent when the run ended."""

    def take(self, event: AgentEvent) -> None:
        """Note what the event says of the run as a whole."""
        if isinstance(event, UsageEvent):
            self.usage = event.usage


class Session:
    """Of one thread. Safe to use from many tasks."""

    def __init__(self, steersman: Steersman, client: Client, thread: Thread) -> None:
        self._steersman, self._client = steersman, client
        self.thread = thread
        """Takes the next prompts; another one of the same id may follow it."""
        self._followed: tuple[Run, asyncio.Task[AgentEvent]] | None = None
        self.note: str | None = None
        """What the editor is told with the next run."""
        self._beginning: dict[asyncio.Task[str], Thread] = {}
        self._turn = asyncio.Lock()
        """Prompts are started, or said, one after another, as they came: the second is for the run of the first."""
        self._cancels = 0
        self._stopping: set[asyncio.Task[None]] = set()
        """Cancels that are under way: what is asked for later waits for them, lest they stop that, too."""

    @property
    def id(self) -> str:
        """The thread's."""
        return self.thread.id

    async def prompt(self, text: str, images: Sequence[Attachment] = ()) -> PromptResponse:
        """Run the agent on the text; say it into the run that is open. Returns at that run's end.

        Raises RequestError: it failed, or cannot be asked.
        """
        with as_request_errors():
            cancels, id = self._cancels, new_message_id()
            while True:
                async with self._turn:
                    taken = await self._run_with(text, images, cancels, id)
                if taken is None:
                    return PromptResponse(stop_reason="cancelled")
                run, end = taken
                run.prompts += 1
                event = await self._ended(end)
                if id not in run.missed:
                    break
        if isinstance(event, FailedEvent):
            raise failure(event)
        # A turn that was interrupted for good ends its run as done.
        is_cut = isinstance(event, CancelledEvent) or (
            isinstance(event, DoneEvent) and event.stop_reason == "interrupted"
        )
        return PromptResponse(stop_reason="cancelled" if is_cut else "end_turn", usage=_usage(run.usage))

    async def _ended(self, end: asyncio.Task[AgentEvent]) -> AgentEvent:
        await asyncio.wait({end})
        if end.cancelled():
            raise RequestError(INTERNAL, "the session was loaded anew meanwhile: its run goes on", None)
        return end.result()

    async def cancel(self) -> None:
        """Stop what the session is at: its run is cancelled, its session is kept. What is asked for later is not."""
        self._cancels += 1
        stopping = asyncio.create_task(while_unreachable(self._stop, OUTAGE_S))
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)
        await stopping

    async def _stop(self) -> None:
        if self._beginning:
            await asyncio.gather(*(each.interrupt(REASON) for each in self._beginning.values()))
        else:
            await self._steersman.stop(self.id, reason=REASON)

    async def load(self, after: Cursor | None) -> None:
        """Tell what has been, from the cursor on, and go on telling what the open run does."""
        for run in await self._runs_after(after):
            is_known = after is not None and after.is_in(run)
            if not is_known and run.prompt:
                await self._send(Cursor(run.execution, 0), [helpers.update_user_message_text(run.prompt)])
            followed = Run(run.execution, run.told)
            followed.known = after.seq if after is not None and is_known else 0
            if run.is_open:
                self._follow(followed)
            else:
                await self._tell_run(followed)

    async def join(self) -> None:
        """Tell from now on what the open run does."""
        run = next((each for each in await self.thread.runs() if each.is_open), None)
        if run is not None:
            followed = Run(run.execution)
            with suppress(NoWorker):
                last = (await self._steersman.state(self.id)).last_event
                followed.known = last.seq if last is not None else 0
            self._follow(followed)

    async def aclose(self) -> None:
        """Leave. What is at work goes on; what is being started is started."""
        if self._beginning:
            await asyncio.wait(self._beginning, timeout=END_S)
        if self._followed is not None:
            run, end = self._followed
            for each in (end, *run.questions.values()):
                each.cancel()
            await asyncio.wait({end})

    async def _runs_after(self, after: Cursor | None) -> list[ThreadRun]:
        runs = await self.thread.runs()
        at = next((n for n, run in enumerate(runs) if after is not None and after.is_in(run)), 0)
        return runs[at:]

    async def _run_with(
        self, text: str, images: Sequence[Attachment], cancels: int, id: str
    ) -> tuple[Run, asyncio.Task[AgentEvent]] | None:
        """The run that has the text: a new one, or the open one. None: one more cancel than so many came before.

        `id`: the prompt's.
        """
        while self._stopping:
            await asyncio.wait(self._stopping)
        while self._cancels == cancels:
            if self._followed is not None and not self._followed[1].done():
                followed = self._followed
                if await self._say(followed[0], text, images, id):
                    return followed
                await asyncio.wait({followed[1]})
                continue
            try:
                execution = await self._started(text, images)
            except ThreadBusy as busy:  # somebody else has started it
                self._follow(self._run_of(busy.execution))
                continue
            except RunInterrupted:
                return None
            return self._follow(Run(execution, worded(text, images)))
        return None

    def _run_of(self, execution: str) -> Run:
        """One that is open. Of one that was followed until nobody answered, the editor knows the beginning."""
        run = Run(execution)
        if self._followed is not None and self._followed[0].execution == execution:
            run.known = self._followed[0].known
        return run

    async def _started(self, text: str, images: Sequence[Attachment]) -> str:
        """Start a run: to the end, also where the editor leaves meanwhile."""
        starting = asyncio.create_task(self.thread.start(text, attachments=images))
        self._beginning[starting] = self.thread
        starting.add_done_callback(self._beginning.pop)
        return await asyncio.shield(starting)

    async def _say(self, run: Run, text: str, images: Sequence[Attachment], id: str) -> bool:
        """Say it into the running turn; to an agent that hears nothing meanwhile, in its place. False: it is for the
        next run, as this one ends, or takes no text as long. Where nobody is there to bring it, the run's end says.
        """
        if len(text) > MAX_TEXT:
            return False
        run.said.append(worded(text, images))
        try:
            receipt = None
            ask: _Ask = partial(self._steersman.steer, self.id, text, attachments=images, id=new_message_id())
            with suppress(MessageRefused):
                receipt = await ask()
            if receipt is None or receipt.state == "rejected":  # by the kind of agent, or by this program
                ask = partial(self._steersman.interrupt, self.id, text, attachments=images, id=new_message_id())
                receipt = await ask()
        except RunNotRunning:
            return False
        if receipt.state == "queued":
            run.queued[id] = ask
        return receipt.state not in MISSED

    async def _settle(self, run: Run) -> None:
        """Learn what became of the queued prompts of a run that has ended: the same message again says so."""
        for id, ask in run.queued.items():
            receipt, pauses = None, Backoff()
            with suppress(MessageRefused, RunNotRunning):
                while (receipt := await while_unreachable(ask, OUTAGE_S)).state == "queued":
                    await pauses.pause()  # the run is about to close
            if receipt is None or receipt.state in MISSED:
                run.missed.add(id)

    def _follow(self, run: Run) -> tuple[Run, asyncio.Task[AgentEvent]]:
        """Tell the run's events as they come, until its end."""
        end = asyncio.create_task(self._tell_run(run))
        end.add_done_callback(retrieve_exception)  # who awaits it has its error, who looks on was told
        self._followed = run, end
        return self._followed

    async def _tell_run(self, run: Run) -> AgentEvent:
        """Tell the run's events until its end, which the answer to a prompt tells where one waits, and return that."""
        if self.note is not None:
            note, self.note = self.note, None
            await self._remark(note)
        try:
            async with aclosing(self.thread.attach(run.execution)) as events:
                async for event in events:
                    run.take(event)
                    if is_terminal(event):
                        break
                    await self._tell(run, event)
        except SteersmanError as error:
            if not run.prompts:
                await self._remark(f"What the run does is not seen any more: {error}")
            raise
        finally:
            for each in run.questions.values():
                each.cancel()
        await self._settle(run)
        if event.seq > run.known:
            said = [] if run.prompts else ended(event)
            await self._send(Cursor(run.execution, event.seq), [*run.updates.unfinished(), *said])
        return event

    async def _tell(self, run: Run, event: AgentEvent) -> None:
        updates = run.updates.of(event)
        if isinstance(event, MessageEvent) and event.role == "user" and event.text in run.said:
            run.said.remove(event.text)
            return
        past = isinstance(event, ToolOutputEvent) and datetime.now(UTC) - event.time > OLD_OUTPUT
        if event.seq > run.known:
            if not past:
                await self._send(Cursor(run.execution, event.seq), updates)
            run.known = event.seq
        if isinstance(event, PermissionEvent):
            if (question := run.questions.pop(event.id, None)) is not None:
                question.cancel()
            if event.state == "asked":
                run.questions[event.id] = asyncio.create_task(self._ask(run, event))

    async def _send(self, cursor: Cursor, updates: Sequence[Any]) -> None:
        for update in updates:
            await self._client.session_update(self.id, update, **cursor.meta())

    async def _ask(self, run: Run, event: PermissionEvent) -> None:
        """Have the editor decide. One that it leaves open is anybody's to decide, as any approval is."""
        if datetime.now(UTC) - event.time > OLD:
            await asyncio.sleep(OLD_S)  # what became of it is told next, if it was decided
        call = run.updates.asked(event)
        try:
            answer = await self._answer(call)
            if answer is not None:
                decision, remember = answer
                decide = partial(self._steersman.decide, self.id, event.id, decision, remember=remember)
                with suppress(AlreadyDecided, RunNotRunning):
                    await while_unreachable(decide, OUTAGE_S)
        except (RequestError, SteersmanError) as error:
            await self._remark(f"Approval {event.id} waits, for `steer approve` or `steer deny`: {error}")

    async def _answer(self, call: ToolCallUpdate) -> tuple[Literal["allow", "deny"], bool] | None:
        """What the editor's user says to it, see ANSWERS; None: nothing. Raises RequestError for what is no answer."""
        try:
            outcome = (await self._client.request_permission(self.id, call, OPTIONS)).outcome
        except (ValueError, AttributeError, TypeError):  # what the library makes of it
            raise RequestError(INTERNAL, "the editor's answer is none", None) from None
        if not isinstance(outcome, AllowedOutcome):
            return None
        if outcome.option_id not in ANSWERS:
            raise RequestError(INTERNAL, f"the editor chose {outcome.option_id!r}, which is no option", None)
        return ANSWERS[outcome.option_id]

    async def _remark(self, text: str) -> None:
        with suppress(ConnectionError):
            await self._client.session_update(self.id, helpers.update_agent_thought_text(f"{text}\n"))


def _usage(usage: Usage | None) -> AcpUsage | None:
    if usage is None:
        return None
    return AcpUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_read_tokens=usage.cache_read_tokens,
        cached_write_tokens=usage.cache_write_tokens,
        total_tokens=sum(usage.model_dump().values()),
    )
