"""What an API server says instead of an object: `Status`, shaped and worded as Kubernetes does.

Who decides that something is refused must not live here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.kubernetes.kinds import Kind

CONFLICT_TEXT = "the object has been modified; please apply your changes to the latest version and try again"


@dataclass(frozen=True)
class Cause:
    """One field that is invalid; `reason` is that of `details.causes`."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class ApiError(Exception):
    """A request's refusal, with the Status that a client gets."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details, self.headers = details, headers or {}

    @property
    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details:
            body["details"] = self.details
        return {**body, "code": self.code}


def success(kind: Kind, name: str, uid: str) -> dict[str, Any]:
    """What a deletion is answered with."""
    details = {"name": name, **({"group": kind.group} if kind.group else {}), "kind": kind.plural, "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def not_found(kind: Kind, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{kind.qualified} "{name}" not found', details=_details(kind, name))


def already_exists(kind: Kind, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{kind.qualified} "{name}" already exists', details=_details(kind, name))


def conflict(kind: Kind, name: str, why: str = CONFLICT_TEXT) -> ApiError:
    message = f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, details=_details(kind, name))


def forbidden(kind: Kind, name: str, why: str) -> ApiError:
    named = f'{kind.qualified} "{name}"' if name else kind.qualified
    return ApiError(403, "Forbidden", f"{named} is forbidden: {why}", details=_details(kind, name))


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unsupported_method() -> ApiError:
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message, details={})


def unsupported_media_type(content_type: str, accepted: str) -> ApiError:
    message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    return ApiError(415, "UnsupportedMediaType", message)


def expired(asked: int, oldest: int) -> ApiError:
    return ApiError(410, "Expired", f"too old resource version: {asked} ({oldest})")


def internal(message: str) -> ApiError:
    details = {"causes": [{"message": message}]}
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", details=details)


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> ApiError:
    said = [f"{each.field}: {each.message}" for each in causes]
    text = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
    qualified = f"{kind.name}.{kind.group}" if kind.group else kind.name
    details: dict[str, Any] = {"name": name, **({"group": kind.group} if kind.group else {}), "kind": kind.name}
    details["causes"] = [{"reason": each.reason, "message": each.message, "field": each.field} for each in causes]
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details=details)


def _details(kind: Kind, name: str) -> dict[str, Any]:
    details = {"name": name} if name else {}
    return {**details, **({"group": kind.group} if kind.group else {}), "kind": kind.plural}
