"""What the agent asked of the model, in which dialect, and which of its requests belong to the conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tests.scripted_model.steps import Answer, Cut, Hold


@dataclass(frozen=True)
class Pause:
    """Nothing is sent for so long."""

    seconds: float


class Dialect(Protocol):
    """How requests are read and answers written in one API. The modules of `dialects/` are such."""

    PING: bytes
    """Sent in a stream that is held; may be empty."""
    RAN_OUT: int
    """A status after which no program that speaks the dialect asks again."""
    TOKENS: Mapping[str, Any]
    """The answer to a request to count tokens."""

    def side(self, body: Mapping[str, Any]) -> bool:
        """Whether a request is none of the conversation's: a title, a summary, a web search, a classifier."""

    def tools(self, body: Mapping[str, Any]) -> list[str]:
        """The names of the tools that are offered."""

    def texts(self, body: Mapping[str, Any]) -> Iterator[str]:
        """All text of the conversation, tool results included, in order; not the system's instructions."""

    def error(self, status: int, message: str) -> dict[str, Any]:
        """The body of a refusal."""

    def message(self, answer: Answer, request: Request) -> dict[str, Any]:
        """The answer to a request that does not stream."""

    def stream(self, answer: Answer, request: Request) -> Iterator[bytes | Pause | Hold | Cut]:
        """The answer to one that does, from its first byte to its last."""


@dataclass
class Request:
    """One request for a message. `at` is in seconds of the event loop's clock."""

    number: int
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    at: float
    dialect: Dialect
    model: str = "scripted"
    streams: bool = False
    outcome: str = "open"
    """`open` while it is answered, then `answered`, `failed`, `cut`, `hung up` (by the agent) or `unexpected`."""

    @property
    def side(self) -> bool:
        """Whether it is none of the conversation's: a title, a quota probe, a web search, a classifier."""
        return self.dialect.side(self.body)

    @property
    def tools(self) -> list[str]:
        return self.dialect.tools(self.body)

    @property
    def texts(self) -> list[str]:
        """All text of the conversation, tool results included, in order."""
        return list(self.dialect.texts(self.body))

    def saw(self, text: str) -> bool:
        """Whether the conversation, as the model sees it, holds `text`."""
        return any(text in t for t in self.texts)
