"""Events: what the cluster's parts tell of an object; one that comes again is counted.

Who tells what must not live here.
"""

import secrets

from tests.support.kubernetes.kinds import EVENTS, Kind
from tests.support.kubernetes.store import Object, Store, now


class Events:
    """Keeps them in the store, as the objects that they are."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def normal(self, kind: Kind, about: Object, reason: str, message: str, component: str) -> None:
        self._tell(kind, about, ("Normal", reason, message, component))

    def warn(self, kind: Kind, about: Object, reason: str, message: str, component: str) -> None:
        self._tell(kind, about, ("Warning", reason, message, component))

    def _tell(self, kind: Kind, about: Object, said: tuple[str, str, str, str]) -> None:
        metadata = about["metadata"]
        for each in self._store.list(EVENTS, metadata["namespace"]):
            if each["involvedObject"]["uid"] == metadata["uid"] and _said(each) == said:
                self._store.update(EVENTS, each, _count)
                return
        self._store.create(EVENTS, _made(kind, about, said))


def _said(event: Object) -> tuple[str, str, str, str]:
    return event["type"], event["reason"], event["message"], event["source"]["component"]


def _count(event: Object) -> None:
    event["count"] += 1
    event["lastTimestamp"] = now()


def _made(kind: Kind, about: Object, said: tuple[str, str, str, str]) -> Object:
    metadata = about["metadata"]
    number = secrets.token_hex(8)
    return {
        "metadata": {"name": f"{metadata['name']}.{number}", "namespace": metadata["namespace"], "uid": number},
        "involvedObject": {
            "kind": kind.name,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "apiVersion": kind.api_version,
            "resourceVersion": metadata["resourceVersion"],
        },
        "type": said[0],
        "reason": said[1],
        "message": said[2],
        "source": {"component": said[3]},
        "reportingComponent": said[3],
        "reportingInstance": "",
        "eventTime": None,
        "firstTimestamp": now(),
        "lastTimestamp": now(),
        "count": 1,
    }
