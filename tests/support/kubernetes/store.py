"""Every object of the cluster, and everything that ever became of one: numbered changes, as etcd has them.

Objects that are kept are never changed in place. What a change leads to must not live here.
"""

import asyncio
import copy
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.support.kubernetes import statuses
from tests.support.kubernetes.kinds import Kind

Object = dict[str, Any]
Key = tuple[Kind, str, str]
"""Kind, namespace (empty where the kind has none), name."""

SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True)
class Change:
    """`before` is None of what was added, `after` of nothing: a removed object has its last state in both."""

    version: int
    kind: Kind
    type: str
    before: Object | None
    after: Object


class Store:
    """Objects by kind, namespace and name; one counter of versions for all."""

    def __init__(self) -> None:
        self.version = 1
        self.changes: list[Change] = []
        self.listeners: list[Callable[[Change], None]] = []
        """Called at once with each change, in order."""
        self._objects: dict[Key, Object] = {}
        self._wakers: set[asyncio.Event] = set()

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Raises ApiError where there is none."""
        found = self.find(kind, namespace, name)
        if found is None:
            raise statuses.not_found(kind, name)
        return found

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self._objects.get((kind, namespace, name))

    def by_uid(self, kind: Kind, uid: str) -> Object | None:
        return next((each for each in self.list(kind) if each["metadata"]["uid"] == uid), None)

    def list(self, kind: Kind, namespace: str = "") -> list[Object]:
        """Of one namespace or all, ordered by namespace and name."""
        keys = sorted(
            (key for key in self._objects if key[0] is kind and namespace in {"", key[1]}), key=lambda key: key[1:]
        )
        return [self._objects[key] for key in keys]

    def everything(self) -> Iterator[tuple[Kind, Object]]:
        for key, each in list(self._objects.items()):
            yield key[0], each

    def create(self, kind: Kind, given: Object) -> Object:
        """Keep a new object, which has its name and its uid already."""
        made = copy.deepcopy(given)
        metadata = made["metadata"]
        key = (kind, metadata.get("namespace", ""), metadata["name"])
        if key in self._objects:
            raise statuses.already_exists(kind, metadata["name"])
        metadata["creationTimestamp"] = now()
        made = {"kind": kind.name, "apiVersion": kind.api_version} | made
        return self._put(key, "ADDED", None, made)

    def update(self, kind: Kind, before: Object, change: Callable[[Object], None]) -> Object:
        """Let `change` work on a copy of what is kept now; without a difference nothing happens.

        Raises ApiError where it is gone, or is another by the same name.
        """
        metadata = before["metadata"]
        current = self.get(kind, metadata.get("namespace", ""), metadata["name"])
        if current["metadata"]["uid"] != metadata["uid"]:
            raise statuses.conflict(kind, metadata["name"])
        after = copy.deepcopy(current)
        change(after)
        if after == current:
            return current
        return self._put((kind, metadata.get("namespace", ""), metadata["name"]), "MODIFIED", current, after)

    def remove(self, kind: Kind, found: Object) -> Object:
        """Take an object out; what is returned has the version of its removal. Nothing happens to one that is gone."""
        metadata = found["metadata"]
        key = (kind, metadata.get("namespace", ""), metadata["name"])
        current = self._objects.get(key)
        if current is None or current["metadata"]["uid"] != metadata["uid"]:
            return found
        del self._objects[key]
        return self._note(kind, "DELETED", current, copy.deepcopy(current))

    def ever(self) -> str:
        """Everything that was ever kept, as JSON, one state of an object a line."""
        return "\n".join(json.dumps(each.after, ensure_ascii=False) for each in self.changes)

    def forget(self) -> None:
        """As a compaction of etcd: no watch can begin at an earlier version than now."""
        self.changes.clear()

    @property
    def oldest(self) -> int:
        """The version that a watch can begin at."""
        return self.changes[0].version - 1 if self.changes else self.version

    def waker(self) -> asyncio.Event:
        """Set with every change, until it is dropped."""
        event = asyncio.Event()
        self._wakers.add(event)
        return event

    def drop(self, waker: asyncio.Event) -> None:
        self._wakers.discard(waker)

    def wake(self) -> None:
        for each in self._wakers:
            each.set()

    def _put(self, key: Key, change: str, before: Object | None, after: Object) -> Object:
        self._objects[key] = after
        return self._note(key[0], change, before, after)

    def _note(self, kind: Kind, change: str, before: Object | None, after: Object) -> Object:
        self.version += 1
        after["metadata"]["resourceVersion"] = str(self.version)
        noted = Change(self.version, kind, change, before, after)
        self.changes.append(noted)
        for listener in list(self.listeners):
            listener(noted)
        self.wake()
        return after


def suffix() -> str:
    """What makes a name of a prefix."""
    return "".join(secrets.choice(SUFFIX_LETTERS) for _ in range(5))


def now() -> str:
    """Kubernetes keeps times to the second."""
    return stamp(datetime.now(UTC))


def stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def read_stamp(text: str) -> datetime:
    return datetime.fromisoformat(text)


def controller_of(found: Object) -> Object | None:
    """The owner reference with `controller`."""
    references = found["metadata"].get("ownerReferences", [])
    return next((each for each in references if each.get("controller")), None)


def owner_reference(kind: Kind, owner: Object) -> Object:
    """What a controller's objects name it by."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
