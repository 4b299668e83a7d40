"""What a script is made of: one step answers one request of the agent.

A step is an `Answer` (parts streamed in order) or a `Failure` (an HTTP error). No I/O here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Usage:
    """Token counts that an answer reports. `input` has neither those read from the cache nor those written to it."""

    input: int = 100
    output: int = 20
    cache_read: int = 0
    cache_write: int = 0


@dataclass(frozen=True)
class Say:
    """Text, streamed in `chunks` deltas with `delay_s` seconds before each."""

    text: str
    chunks: int = 1
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if self.chunks < 1 or self.delay_s < 0:
            raise ValueError(f"say: chunks must be >= 1 and delay_s >= 0, not {self}")

    def pieces(self) -> list[str]:
        size, extra = divmod(len(self.text), self.chunks)
        cuts = [i * size + min(i, extra) for i in range(self.chunks + 1)]
        return [self.text[a:b] for a, b in pairwise(cuts)]


@dataclass(frozen=True)
class Think:
    """A thinking block."""

    text: str


@dataclass(frozen=True)
class Tool:
    """A call of one of the agent's tools."""

    name: str
    input: Mapping[str, Any]
    id: str | None = None
    """None: a new one for each answer, as of a good model. Gemini's have none."""


@dataclass(frozen=True)
class Hold:
    """Keeps the stream open, silent but for pings, until it is released or the agent hangs up."""


@dataclass(frozen=True)
class Cut:
    """Drops the connection in the middle of the answer."""


@dataclass(frozen=True)
class Structured:
    """The run's structured output: a call of the program's own tool for it if it offers one, else text of JSON."""

    value: Mapping[str, Any]


Part = Say | Think | Tool | Hold | Cut | Structured
STRUCTURED_TOOL = "StructuredOutput"


@dataclass(frozen=True)
class Answer:
    """One message of the model. `stop_reason` None: `tool_use` with a tool in it, else `end_turn`."""

    parts: tuple[Part, ...]
    usage: Usage = Usage()
    stop_reason: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ends_with(self) -> str:
        if self.stop_reason:
            return self.stop_reason
        return "tool_use" if any(isinstance(p, Tool) for p in self.parts) else "end_turn"

    def for_tools(self, tools: Collection[str]) -> Answer:
        """The answer to a program that offers `tools`, in which nothing is `Structured`."""
        return replace(self, parts=tuple(_structured(p, tools) if isinstance(p, Structured) else p for p in self.parts))


def _structured(part: Structured, tools: Collection[str]) -> Part:
    return Tool(STRUCTURED_TOOL, part.value) if STRUCTURED_TOOL in tools else Say(json.dumps(part.value))


@dataclass(frozen=True)
class Failure:
    """An HTTP error in the API's form."""

    status: int
    message: str = "scripted failure"
    headers: Mapping[str, str] = field(default_factory=dict)


Step = Answer | Failure


def say(text: str, chunks: int = 1, delay_s: float = 0.0, usage: Usage = Usage()) -> Answer:
    """Say `text` and end the turn."""
    return Answer((Say(text, chunks, delay_s),), usage)


def think(text: str, then: str = "") -> Answer:
    """Think, then say `then`."""
    return Answer((Think(text), Say(then)) if then else (Think(text),))


def tool(name: str, /, **input: Any) -> Answer:
    """Call one tool; the next step answers the request that carries its result."""
    return Answer((Tool(name, input),))


def structured(value: Mapping[str, Any]) -> Answer:
    """Give the run's structured output, as the program that asks wants it."""
    return Answer((Structured(value),))


def hold(before: str = "working", after: str = "") -> Answer:
    """Say `before`, hold the stream until released, then say `after` and end the turn."""
    return Answer((Say(before), Hold(), Say(after)) if after else (Say(before), Hold()))


def cut(before: str = "") -> Answer:
    """Say `before`, then drop the connection."""
    return Answer((Say(before), Cut()) if before else (Cut(),))


def fail(
    status: int,
    message: str = "scripted failure",
    *,
    retry_after_s: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> Failure:
    """Refuse the request. `headers` may carry rate limits (e.g. `anthropic-ratelimit-*`)."""
    extra = {} if retry_after_s is None else {"retry-after": f"{retry_after_s:g}"}
    return Failure(status, message, {**extra, **(headers or {})})


def answer(
    *parts: Part | Answer,
    usage: Usage = Usage(),
    stop_reason: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """One message of several parts, e.g. `answer(say("a"), tool("Read", file_path=p), tool("Bash", command=c))`."""
    flat = [p for part in parts for p in (part.parts if isinstance(part, Answer) else (part,))]
    return Answer(tuple(flat), usage, stop_reason, headers or {})
