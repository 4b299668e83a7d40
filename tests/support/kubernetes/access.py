"""Who may do what: users by their tokens, and rules as RBAC has them.

How a request is read must not live here.
"""

import secrets
from dataclasses import dataclass
from typing import Any

from tests.support.kubernetes import statuses
from tests.support.kubernetes.kinds import ACCESS_REVIEWS
from tests.support.kubernetes.requests import Target
from tests.support.kubernetes.settings import Settings

ANY = "*"


@dataclass(frozen=True)
class Rule:
    """`resource` may name a subresource: `pods/exec`. An asterisk is for any."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ANY

    def allows(self, verb: str, group: str, resource: str, namespace: str) -> bool:
        pairs = ((self.verb, verb), (self.group, group), (self.resource, resource), (self.namespace, namespace))
        return all(rule in {ANY, asked} for rule, asked in pairs)


@dataclass(frozen=True)
class User:
    name: str
    rules: tuple[Rule, ...]

    def may(self, verb: str, group: str, resource: str, namespace: str) -> bool:
        return any(each.allows(verb, group, resource, namespace) for each in self.rules)


class Access:
    """The table of tokens. `admin` is a token that may do everything."""

    admin = "admin-token"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._users = {self.admin: User("kubernetes-admin", (Rule(ANY, ANY, ANY),))}

    def grant(self, user: str, *rules: Rule) -> str:
        """A new token of a user who may do this alone."""
        token = secrets.token_urlsafe(24)
        self._users[token] = User(user, rules)
        return token

    def change(self, token: str, *rules: Rule) -> None:
        """From now on a token's user may do this alone."""
        self._users[token] = User(self._users[token].name, rules)

    def revoke(self, token: str) -> None:
        """From now on a token is nobody's."""
        del self._users[token]

    def user(self, authorization: str) -> User:
        """Raises ApiError."""
        kind, _, token = authorization.partition(" ")
        found = self._users.get(token.strip())
        if kind.lower() != "bearer" or found is None:
            raise statuses.unauthorized()
        return found

    def check(self, user: User, asked: Target) -> None:
        """Raises ApiError where the user may not do this."""
        if asked.kind is ACCESS_REVIEWS:
            return  # a right of everybody who is somebody
        verbs = [asked.verb]
        if asked.subresource in {"exec", "attach"} and asked.verb == "get" and self._settings.release.exec_takes_create:
            verbs.append("create")
        for verb in verbs:
            if not user.may(verb, asked.kind.group, asked.resource, asked.namespace):
                raise statuses.forbidden(asked.kind, asked.name, _why(user, verb, asked))

    def review(self, user: User, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer to a SelfSubjectAccessReview."""
        wanted = (asked.get("spec") or {}).get("resourceAttributes")
        if wanted is None:
            why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            raise statuses.invalid(
                ACCESS_REVIEWS, "", [statuses.Cause("spec.resourceAttributes", f"Invalid value: null: {why}")]
            )
        resource = wanted.get("resource", "")
        if wanted.get("subresource"):
            resource += f"/{wanted['subresource']}"
        allowed = user.may(wanted.get("verb", ""), wanted.get("group", ""), resource, wanted.get("namespace", ""))
        status = {"allowed": allowed, **({"reason": "RBAC: allowed by RoleBinding"} if allowed else {})}
        return {**asked, "metadata": {"creationTimestamp": None}, "status": status}


def _why(user: User, verb: str, asked: Target) -> str:
    where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    group = asked.kind.group
    return f'User "{user.name}" cannot {verb} resource "{asked.resource}" in API group "{group}" {where}'
