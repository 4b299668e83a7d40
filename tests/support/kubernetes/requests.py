"""What a request asks for, as its path, method and query say it, and the record of those that came.

How it is answered must not live here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.kubernetes.kinds import BY_PLURAL, Kind

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True)
class Target:
    """One request's verb, kind and object, in the words of RBAC."""

    verb: str
    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def resource(self) -> str:
        """As a rule names it."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


@dataclass
class Recorded:
    """One request; `status` is 0 until it is answered, and of one that never is."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    user: str = ""
    body: Any = None
    status: int = 0
    verb: str = ""
    resource: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    """The DeleteOptions, from body and query."""


def target(method: str, path: str, query: Mapping[str, str]) -> Target | None:
    """What a path means; None where no kind is served there."""
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, rest = parts[1], parts[3:]
    else:
        return None
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and (group, rest[2]) in BY_PLURAL:
        namespace, rest = rest[1], rest[2:]
    kind = BY_PLURAL.get((group, rest[0])) if rest else None
    if kind is None or len(rest) > 3 or (parts[0] == "apis" and parts[2] != kind.version):
        return None
    name, subresource = [*rest[1:], "", ""][:2]
    return Target(_verb(method, name, query), kind, namespace or _own(kind, name), name, subresource)


def true(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in {"true", "1"}


def _own(kind: Kind, name: str) -> str:
    """RBAC looks at a namespace as if it was in itself."""
    return name if kind.plural == "namespaces" else ""


def _verb(method: str, name: str, query: Mapping[str, str]) -> str:
    if method in {"GET", "HEAD"}:
        if true(query, "watch"):
            return "watch"
        return "get" if name else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return VERBS.get(method, method.lower())
