"""What the plugin (plugin.js) tells of one process of opencode: what it used, what the model has read, what failed.

Measured with opencode 1.18.33. Each step, one answer of the model, ends with what it used; an answer names the message
of a person that it follows, and ids of messages rise with time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from activities.agents.acp.errors import RATE_LIMITED, agent_error
from activities.agents.frames import Frame
from activities.untrusted_json import MAX_NAME, count_of, name_of, number_of, object_at, text_of
from steersman.contracts.errors import AgentFailed, AuthenticationFailed, RunError
from steersman.contracts.run import Usage

MAX_RETRIES: Final = 5
"""opencode asks a model's service so often again, for some 70 s, and fails then; a sixth time is not waited for."""
MAX_WAIT_S: Final = 60.0
"""A service that asks for more patience than this is not waited for."""
MAX_UNFINISHED: Final = 5
"""opencode asks again at once, and for ever, where the model's answer ends without a reason."""
MAX_HEARD: Final = 1_000
COMPARED: Final = 1_000
"""Characters of a prompt by which it is known again: the plugin cuts longer texts."""
_MAX_STEPS: Final = 100
_ENDS: Final = frozenset({"stop", "tool-calls", "length", "content-filter", "error"})


@dataclass
class Meter:
    """Totals of one process, subagents included. The fields' names and values are in snapshots."""

    usage: Usage = field(default_factory=Usage)
    cost_usd: float = 0.0
    turns: int = 0
    unfinished: int = 0
    """How many of the last steps ended without a reason."""
    _last: list[str] = field(default_factory=list)
    """The ids of the last steps: one that is told again does not count twice."""

    def is_sound(self) -> bool:
        """Whether frames can have led to this state; it may be from a forged snapshot."""
        counts = (*self.usage.model_dump().values(), self.turns, self.unfinished)
        named = len(self._last) <= _MAX_STEPS and all(len(each) <= MAX_NAME for each in self._last)
        return named and 0 <= self.cost_usd < float("inf") and all(0 <= count < 1 << 62 for count in counts)

    def step(self, params: Frame) -> bool:
        """Take the end of a step; False if it is known already."""
        ident = name_of(params.get("id")) or ""
        if ident in self._last:
            return False
        self._last = [*self._last, ident][-_MAX_STEPS:]
        tokens = object_at(params, "tokens")
        self.usage += Usage(
            input_tokens=count_of(tokens.get("input")),
            output_tokens=count_of(tokens.get("output")) + count_of(tokens.get("reasoning")),
            cache_read_tokens=count_of(object_at(tokens, "cache").get("read")),
            cache_write_tokens=count_of(object_at(tokens, "cache").get("write")),
        )
        self.cost_usd += number_of(params.get("cost"))
        self.turns += 1
        self.unfinished = 0 if text_of(params.get("reason")) in _ENDS else self.unfinished + 1
        return True


@dataclass
class Reading:
    """Which prompts the model has read. The fields' names and values are in snapshots."""

    unheard: dict[str, str] = field(default_factory=dict)
    """Beginnings of the prompts that opencode has not made a message of yet, by the ids of their commands, in order."""
    heard: dict[str, str] = field(default_factory=dict)
    """opencode's id of each message that no answer has followed -> the command that wrote it."""
    joined: set[str] = field(default_factory=set)
    """Commands that were written while a turn was open, and not read yet."""

    def is_sound(self) -> bool:
        """Whether frames can have led to this state; it may be from a forged snapshot."""
        names = (*self.unheard, *self.heard, *self.heard.values(), *self.joined)
        sizes = len(self.unheard) <= MAX_HEARD and len(self.heard) <= MAX_HEARD and len(self.joined) <= MAX_HEARD
        texts = all(len(text) <= COMPARED for text in self.unheard.values())
        return sizes and texts and all(len(each) <= 2 * MAX_NAME for each in names)

    def written(self, command: str, text: str, *, joins: bool) -> None:
        """A prompt. `joins`: into a turn that was open."""
        if len(self.unheard) < MAX_HEARD:
            self.unheard[command] = text[:COMPARED]
            if joins and len(self.joined) < MAX_HEARD:
                self.joined.add(command)

    def hear(self, params: Frame) -> None:
        """A prompt's text has become a message of opencode's."""
        message, text = name_of(params.get("message")), text_of(params.get("text"))[:COMPARED]
        command = next((each for each, begun in self.unheard.items() if begun == text), None)
        if message and command and len(self.heard) < MAX_HEARD:
            del self.unheard[command]
            self.heard[message] = command

    def answer(self, params: Frame) -> Iterator[tuple[str, bool]]:
        """The model answers a message: it has read that and all before. Each command, and whether it joined a turn."""
        followed = name_of(params.get("to")) or ""
        for message in sorted(each for each in self.heard if each <= followed):
            command = self.heard.pop(message)
            yield command, command in self.joined
            self.joined.discard(command)


def failure(error: Frame, time: datetime) -> RunError | None:
    """The run's error for an error of opencode's; None for one that is none, or of a turn that was interrupted."""
    name, message = text_of(error.get("name")), text_of(error.get("message"))
    if not name or name == "MessageAbortedError":
        return None
    what = "the agent's turn failed"
    if name == "ProviderAuthError":
        return AuthenticationFailed(f"the agent could not authenticate: {message}"[:4000])
    status = count_of(error.get("status"))
    found = agent_error({"code": status, "message": message or name}, what)
    if status == RATE_LIMITED and (wait_s := number_of(error.get("retryAfter"))):
        found.facts["rate_limit"]["resets_at"] = _iso(time + timedelta(seconds=min(wait_s, 86_400.0)))
    return found


def hopeless(params: Frame, time: datetime) -> RunError | None:
    """Why a model's service is not waited for any longer; None where it may be asked once more."""
    attempt, message = count_of(params.get("attempt")), text_of(params.get("message"))[:2000]
    wait_s = number_of(params.get("next")) / 1000 - time.timestamp()
    if wait_s > MAX_WAIT_S:
        at = _iso(time + timedelta(seconds=min(wait_s, 86_400.0)))
        facts = {"rate_limit": {"resets_at": at, "limit": None}}
        return AgentFailed(f"the model's service asks for patience until {at}: {message}", **facts)
    if attempt > MAX_RETRIES:
        return AgentFailed(f"the model's service was asked {attempt} times: {message}")
    return None


def _iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
