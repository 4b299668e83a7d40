"""The agents of a worker, by name: one that is not among them is told as the requester's mistake."""

from collections.abc import Collection, Mapping

from activities.ports.agent import Agent
from steersman.contracts.errors import InvalidRequest


class Agents(dict[str, Agent]):
    """All that this worker has, also those that requests may not name; `allowed` are those that they may."""

    def __init__(self, made: Mapping[str, Agent], allowed: Collection[str]) -> None:
        super().__init__(made)
        self._allowed = frozenset(allowed)

    def __missing__(self, name: str) -> Agent:
        """Raises InvalidRequest, which names what this worker has."""
        has = ", ".join(sorted(self.keys() & self._allowed)) or "none"
        raise InvalidRequest(f'agent: this worker has no "{name}" that can be used; it has {has}')
