"""Snapshots of transcripts as JSON, read as hostile input. What an agent's snapshot holds is that agent's."""

from collections.abc import Iterable, Iterator
from typing import Any, Self

from pydantic import ConfigDict, TypeAdapter

from activities.agents.snapshot_fields import estimated_size
from activities.ports.agent import MAX_SNAPSHOT


class Snapshot:
    """The base of a dataclass whose fields are what feeding a transcript changes; their names are the JSON's."""

    __pydantic_config__ = ConfigDict(ser_json_inf_nan="constants")

    def to_json(self) -> bytes | None:
        """None if it would be larger than MAX_SNAPSHOT, which only the agent's own frames can make it."""
        if estimated_size(list(self.frames()), MAX_SNAPSHOT) >= MAX_SNAPSHOT:
            return None
        try:
            written: bytes = _adapter(type(self)).dump_json(self)
        except ValueError:  # nested deeper than pydantic writes
            return None
        return written if len(written) <= MAX_SNAPSHOT else None

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Raises ValueError."""
        try:
            state: Self = _adapter(cls).validate_json(data)
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"that is no snapshot: {error!r}") from error
        if not all(state.checks()):
            raise ValueError("a snapshot says what no journal could have")
        return state

    def frames(self) -> Iterable[Any]:
        """What may be so large that it is looked at before it is written."""
        return ()

    def checks(self) -> Iterator[bool]:
        """The checks of what a journal can have led to, each True if it holds."""
        raise NotImplementedError


_ADAPTERS: dict[type[Snapshot], TypeAdapter[Any]] = {}
"""Made when the first one is written or read: some of these types take milliseconds."""


def _adapter(kind: type[Snapshot]) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
