"""Messages that were written to one process of Hermes, and how each is settled. Read from the journal alone.

The gateway says when it has a text, and never that the model was given it. What shows that is the beginning of the turn
that the text begins; of a text that is to steer the result of a tool, which carries it, and what the model says after.
"""

from datetime import datetime

from activities.agents.command_ids import INTERRUPT, MESSAGE
from activities.agents.hermes.frames import AGAIN
from activities.agents.hermes.state import MAX_UNSAVED, HermesState
from activities.ports.agent import END_PREFIX
from activities.untrusted_json import MAX_NAME
from steersman.contracts.activities import Settlement
from steersman.contracts.events import MAX_TEXT, EventBase, MessageEvent
from steersman.contracts.run import FINAL_STATES, MessageState

UNREAD = "the turn ended before the agent had read it"
PREFIXES = (MESSAGE, AGAIN, INTERRUPT, END_PREFIX)
"""Beginnings of the ids of commands that are a message's."""


def message_event(
    time: datetime, kind: str, text: str, *, role: str = "assistant", delta: bool = False
) -> MessageEvent:
    """A text, or a part of one."""
    fields = {"role": role, "kind": kind, "delta": delta, "text": text[:MAX_TEXT], "truncated": len(text) > MAX_TEXT}
    return MessageEvent.model_validate({"time": time, **fields})


def open_messages(state: HermesState) -> list[str]:
    """Ids of the messages that were written, all of them or a part, and have no final settlement."""
    written = (each.removeprefix(p) for each in sorted(state.written) for p in PREFIXES if each.startswith(p))
    final = {each.id for each in state.settled.values() if each.state in FINAL_STATES}
    return [each for each in dict.fromkeys(written) if each not in final]


def settle(state: HermesState, command: str, settled: MessageState, how: str | None) -> None:
    """Note what became of the message that this command is of, if it is one's."""
    for prefix in PREFIXES:
        if command.startswith(prefix):
            ident = command.removeprefix(prefix)[:MAX_NAME]
            known = state.settled.get(ident)
            if known is None or known.state == "delivered":
                state.settled[ident] = Settlement(id=ident, state=settled, how=how[:MAX_NAME] if how else None)


def prompt_written(state: HermesState, command: str, text: str) -> None:
    """A text that is to begin a turn."""
    state.owed.append(command)
    for prefix in (MESSAGE, AGAIN):
        if command.startswith(prefix):
            ident = command.removeprefix(prefix)
            state.texts[ident] = text
            state.late = [each for each in state.late if each != ident]
            settle(state, command, "delivered", None)


def steer_written(state: HermesState, command: str, text: str) -> None:
    """A text that is to steer the turn."""
    ident = command.removeprefix(MESSAGE)
    state.steers[ident], state.texts[ident] = "written", text
    settle(state, command, "delivered", None)


def steer_answered(state: HermesState, command: str, *, taken: bool) -> None:
    """The gateway has the text, or has not."""
    ident = command.removeprefix(MESSAGE)
    if taken:
        state.steers[ident] = "taken"
    else:
        del state.steers[ident]
        state.late.append(ident)
    if not state.turn:
        steers_end(state)


def result_told(state: HermesState) -> None:
    """A tool has ended: its result carries what the gateway has."""
    for ident, where in state.steers.items():
        if where == "taken":
            state.steers[ident] = "attached"


def read(state: HermesState, time: datetime, command: str, how: str) -> list[EventBase]:
    """The model is given the text of this command."""
    for prefix in (MESSAGE, AGAIN):
        if command.startswith(prefix):
            ident = command.removeprefix(prefix)
            settle(state, command, "acknowledged", "interrupted" if INTERRUPT + ident in state.written else how)
            text = state.texts.pop(ident, "")
            return [message_event(time, "text", text, role="user")] if text else []
    return []


def steers_read(state: HermesState, time: datetime) -> list[EventBase]:
    """The model speaks: it was given what the results before that carried."""
    found: list[EventBase] = []
    for ident in [each for each, where in state.steers.items() if where == "attached"]:
        del state.steers[ident]
        _note_unsaved(state, state.texts.get(ident, ""))
        found += read(state, time, MESSAGE + ident, "mid_turn")
    return found


def _note_unsaved(state: HermesState, text: str) -> None:
    """The oldest of too much goes: what a process is told that is resumed has an end, too."""
    if text:
        state.unsaved.append(text[:MAX_UNSAVED])
    while sum(map(len, state.unsaved)) > MAX_UNSAVED:
        del state.unsaved[0]


def steers_end(state: HermesState) -> None:
    """The turn is over. What no tool's result has carried was dropped: it begins a turn where this one came to its end,
    and is lost with one that did not. What was carried this process has in mind, for the next turn.
    """
    for ident in [each for each, where in state.steers.items() if where == "taken"]:
        del state.steers[ident]
        if state.status == "complete":
            state.late.append(ident)
        else:
            state.texts.pop(ident, None)
            settle(state, MESSAGE + ident, "rejected", UNREAD)


def interrupts_end(state: HermesState, *, interrupted: bool) -> None:
    """No turn runs any more that an interrupt would end."""
    for command in state.interrupting:
        how = "interrupted" if interrupted else "nothing was running"
        if command.startswith(END_PREFIX):
            state.over = True
            settle(state, command, "acknowledged", how)
        else:
            # A message with a text is acknowledged by the turn that its text begins.
            settle(state, command, "delivered", how)
    state.interrupting.clear()
