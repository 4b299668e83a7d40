"""The usage of one Claude Code process: exact at each result, estimated by list prices within a turn.

`result.model_usage_since_last_result` is the reliable source: it is right after resumes, kills and interrupts, where
`total_cost_usd` is not (measured with 2.1.327).
"""

import math
from dataclasses import dataclass, field

from activities.agents.frames import Frame
from activities.untrusted_json import count_of, object_at
from steersman.contracts.run import Usage

PRICES: tuple[tuple[str, tuple[float, float, float, float]], ...] = (
    ("claude-opus-5", (4, 20, 0.20, 5)),
    ("claude-opus-4-1", (4, 20, 0.20, 5)),
    ("claude-sonnet-5", (2, 10, 0.10, 2.50)),
    ("claude-sonnet-4", (3, 15, 0.30, 3.75)),
    ("claude-haiku-5", (0.5, 2.5, 0.05, 0.625)),
    ("claude-haiku-4", (1, 5, 0.10, 1.25)),
    ("claude-3-5-haiku", (0.8, 4, 0.08, 1)),
)
"""USD per million tokens: input, output, cache read, cache write. Measured from `costUSD`; the first prefix counts."""
UNKNOWN = (4, 20, 0.20, 5)
"""The price of a model that is not in the list."""
MAX_MODEL = 200


@dataclass
class UsageMeter:
    """Totals of one process. The fields' names and values are in snapshots."""

    turns: int = 0
    model: str = ""
    _settled: Usage = field(default_factory=Usage)
    _settled_cost: float = 0.0
    _calls: dict[str, Usage] = field(default_factory=dict)
    _current: dict[str, str] = field(default_factory=dict)
    """By who calls, the agent itself or a subagent of a tool call's id: the key of the call that it is at."""

    def is_sound(self) -> bool:
        """Whether frames can have led to this state; it may be from a forged snapshot."""
        counted = is_counted(self.turns, self._settled_cost, self._settled, *self._calls.values())
        return counted and len(self.model) <= MAX_MODEL

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return sum(self._calls.values(), self._settled)

    @property
    def cost_usd(self) -> float:
        """Money so far."""
        return round(self._settled_cost + self._estimate(), 6)

    def stream(self, event: Frame, caller: str = "") -> bool:
        """Take an event of a model call's stream; True if the totals changed. `caller`: which subagent, if one."""
        kind = event.get("type")
        if kind == "message_start":
            # Not the message's id: a service may give all of them the same.
            call = self._current[caller] = str(len(self._calls))
            self._calls[call] = _call_usage(object_at(event, "message", "usage"))
            self.turns += not caller
            return True
        if kind == "message_delta" and (call := self._current.get(caller, "")):
            self._calls[call] = _call_usage(object_at(event, "usage"))
            return True
        return False

    def result(self, frame: Frame) -> None:
        """Take the end of a turn: exact figures replace the estimate."""
        models = frame.get("model_usage_since_last_result")
        if isinstance(models, dict):
            for each in models.values():
                self._settled += _model_usage(object_at(each))
                cost = object_at(each).get("costUSD")
                self._settled_cost += cost if isinstance(cost, int | float) and 0 <= cost < 1e9 else 0.0
        else:
            self._settled_cost += self._estimate()
            self._settled = self.usage
        self._calls.clear()
        self._current.clear()

    def _estimate(self) -> float:
        price = next((price for name, price in PRICES if self.model.startswith(name)), UNKNOWN)
        total = sum(self._calls.values(), Usage())
        tokens = (total.input_tokens, total.output_tokens, total.cache_read_tokens, total.cache_write_tokens)
        return sum(count * each for count, each in zip(tokens, price, strict=True)) / 1e6


def is_counted(turns: int, cost_usd: float, *usages: Usage) -> bool:
    """Whether these are counts and an amount of money."""
    counts = (turns, *(count for usage in usages for count in usage.model_dump().values()))
    return all(0 <= count < 1 << 62 for count in counts) and 0 <= cost_usd < math.inf


def _call_usage(value: Frame) -> Usage:
    """Token counts of the Messages API."""
    return Usage(
        input_tokens=count_of(value.get("input_tokens")),
        output_tokens=count_of(value.get("output_tokens")),
        cache_read_tokens=count_of(value.get("cache_read_input_tokens")),
        cache_write_tokens=count_of(value.get("cache_creation_input_tokens")),
    )


def _model_usage(each: Frame) -> Usage:
    return Usage(
        input_tokens=count_of(each.get("inputTokens")),
        output_tokens=count_of(each.get("outputTokens")),
        cache_read_tokens=count_of(each.get("cacheReadInputTokens")),
        cache_write_tokens=count_of(each.get("cacheCreationInputTokens")),
    )
