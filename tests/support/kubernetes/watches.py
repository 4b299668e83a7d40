"""Lists, and streams of what changes: which changes a watch is told, and as what.

How a request is answered must not live here.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tests.support.kubernetes import statuses
from tests.support.kubernetes.kinds import Kind
from tests.support.kubernetes.selectors import Matcher
from tests.support.kubernetes.store import Change, Object, Store


@dataclass(frozen=True)
class Selection:
    """Objects of one kind, in one namespace or all, that a selector matches."""

    kind: Kind
    namespace: str
    matches: Matcher

    def of(self, store: Store) -> list[Object]:
        return [each for each in store.list(self.kind, self.namespace) if self.matches(each)]

    def event(self, change: Change) -> dict[str, Any] | None:
        """What a watch is told of a change: that an object does not match any more is a deletion for it."""
        if change.kind is not self.kind or self.namespace not in {"", change.after["metadata"].get("namespace", "")}:
            return None
        before = change.before is not None and self.matches(change.before)
        after = change.type != "DELETED" and self.matches(change.after)
        if not before and not after:
            return None
        kind = "MODIFIED" if before and after else "ADDED" if after else "DELETED"
        return {"type": kind, "object": change.after}


def listed(selection: Selection, store: Store) -> dict[str, Any]:
    """A list's body. Its items do not say what they are."""
    items = [
        {key: value for key, value in each.items() if key not in {"kind", "apiVersion"}} for each in selection.of(store)
    ]
    kind = selection.kind
    metadata = {"resourceVersion": str(store.version)}
    return {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata, "items": items}


class Watches:
    """All watches that are open, so that they can be ended."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ended: set[asyncio.Event] = set()
        self._open: dict[asyncio.Event, bool] = {}
        """Whether a stream ends with an error."""

    @property
    def count(self) -> int:
        return len(self._open)

    def end(self, *, expired: bool = False) -> None:
        """End every stream; `expired`: each is told that its version is too old."""
        for waker in self._open:
            self._ended.add(waker)
            self._open[waker] = expired
            waker.set()

    def check(self, version: str) -> None:
        """Raises ApiError where a watch cannot begin there."""
        if version and not version.isdigit():
            why = f'Invalid value: "{version}": strconv.ParseUint: parsing "{version}": invalid syntax'
            raise statuses.bad_request(f"resourceVersion: {why}")
        if version not in {"", "0"} and int(version) < self._store.oldest:
            raise statuses.expired(int(version), self._store.oldest)

    async def stream(self, selection: Selection, version: str, seconds: float) -> AsyncIterator[dict[str, Any]]:
        """Events after a version; without one, what is there comes first, as added."""
        store = self._store
        if version in {"", "0"}:
            first, at = selection.of(store), store.version
        else:
            first, at = [], int(version)
        waker = store.waker()
        self._open[waker] = False
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            for each in first:
                yield {"type": "ADDED", "object": each}
            while True:
                waker.clear()
                if waker in self._ended:
                    if self._open[waker]:
                        yield {"type": "ERROR", "object": statuses.expired(at, store.version).status}
                    return
                for change in self._since(at):
                    at = change.version
                    if event := selection.event(change):
                        yield event
                async with asyncio.timeout_at(deadline):
                    await waker.wait()
        except TimeoutError:
            return
        finally:
            store.drop(waker)
            self._open.pop(waker, None)
            self._ended.discard(waker)

    def _since(self, version: int) -> list[Change]:
        changes = self._store.changes
        start = len(changes)
        while start and changes[start - 1].version > version:
            start -= 1
        return changes[start:]
