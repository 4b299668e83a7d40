"""What the agent asked of the model, and which of its requests belong to the conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Request:
    """One request for a message. `at` is in seconds of the event loop's clock."""

    number: int
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    at: float
    outcome: str = "open"
    """`open` while it is answered, then `answered`, `failed`, `cut`, `hung up` (by the agent) or `unexpected`."""

    @property
    def side(self) -> bool:
        """Whether it is none of the conversation's: a title, a quota probe, a web search, a classifier.

        The conversation always offers client tools; without any (`--tools ""`) it still streams with
        the agent's context management, which no side request of the CLI does.
        """
        if self.body.get("max_tokens", 0) <= 1:
            return True
        if any("input_schema" in t for t in self.body.get("tools") or ()):
            return False
        return not (self.body.get("stream") and self.body.get("context_management"))

    @property
    def tools(self) -> list[str]:
        return [t["name"] for t in self.body.get("tools") or ()]

    @property
    def texts(self) -> list[str]:
        """All text of the conversation, tool results included, in order."""
        return [t for m in self.body.get("messages", ()) for t in _texts(m.get("content", ""))]

    def saw(self, text: str) -> bool:
        """Whether the conversation, as the model sees it, holds `text`."""
        return any(text in t for t in self.texts)


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for block in content:
        if block.get("type") == "text":
            yield block["text"]
        elif block.get("type") == "tool_result":
            yield from _texts(block.get("content") or "")
