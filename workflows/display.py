"""Texts and search attributes for the Temporal Web UI: bounded, one line each, no Markdown from outside."""

from collections.abc import Iterable

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from steersman.contracts import names
from steersman.contracts.text import literal

AGENT_NAME = SearchAttributeKey.for_keyword(names.AGENT_NAME)
RUN_PHASE = SearchAttributeKey.for_keyword(names.RUN_PHASE)
COST_USD = SearchAttributeKey.for_float(names.COST_USD)

MAX_LINE = 160
"""Characters of a line."""
MAX_VALUE = 500
"""Characters of a value in a Markdown list."""


def queued(agent: str) -> TypedSearchAttributes:
    """Those of a run that has just been started."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(AGENT_NAME, agent),
            SearchAttributePair(RUN_PHASE, "queued"),
            SearchAttributePair(COST_USD, 0.0),
        ]
    )


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """The first line of a text, cut to `limit` characters."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"


def summary(text: str, limit: int = MAX_LINE) -> str:
    """The first line of a text, cut and escaped: the Web UI renders summaries as Markdown."""
    return literal(one_line(text, limit), limit)


def markdown_list(rows: Iterable[tuple[str, str | None]]) -> str:
    """A Markdown list of the rows that have a value; a value can add neither a line nor Markdown."""
    return "\n".join(f"- **{name}**: {summary(' '.join(value.split()), MAX_VALUE)}" for name, value in rows if value)
