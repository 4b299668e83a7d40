"""Patches: JSON merge patches, JSON patches, and strategic merge patches, which are taken for merge patches.

Which fields may be changed must not live here.
"""

import copy
from collections.abc import Callable
from typing import Any

from tests.support.kubernetes import statuses

MERGE = ("application/merge-patch+json", "application/strategic-merge-patch+json")
JSON = "application/json-patch+json"


def patched(found: dict[str, Any], patch: Any, content_type: str) -> dict[str, Any]:
    """What a patch makes of an object. Raises ApiError."""
    if content_type in MERGE and isinstance(patch, dict):
        merged = merge(found, patch)
        assert isinstance(merged, dict)
        return merged
    if content_type == JSON and isinstance(patch, list):
        made = copy.deepcopy(found)
        for step in patch:
            _apply(made, step)
        return made
    raise statuses.unsupported_media_type(content_type, ", ".join((JSON, *MERGE)))


def merge(value: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    made = copy.deepcopy(value) if isinstance(value, dict) else {}
    for key, each in patch.items():
        if each is None:
            made.pop(key, None)
        else:
            made[key] = merge(made.get(key), each)
    return made


def _apply(whole: dict[str, Any], step: dict[str, Any]) -> None:
    *path, last = [each.replace("~1", "/").replace("~0", "~") for each in step["path"].split("/")[1:]]
    operations: dict[str, Callable[[Any, Any, Any], None]] = {
        "add": _add,
        "replace": _replace,
        "remove": _remove,
        "test": _test,
    }
    try:
        parent: Any = whole
        for each in path:
            parent = parent[int(each) if isinstance(parent, list) else each]
        operations[step["op"]](parent, last, step.get("value"))
    except (KeyError, IndexError, ValueError, TypeError) as error:
        said = f"the server rejected our request due to an error in our request: {step['op']} {step['path']}"
        raise statuses.ApiError(422, "Invalid", said) from error


def _add(parent: Any, key: str, value: Any) -> None:
    if isinstance(parent, list):
        parent.insert(len(parent) if key == "-" else int(key), value)
    else:
        parent[key] = value


def _replace(parent: Any, key: str, value: Any) -> None:
    at: Any = int(key) if isinstance(parent, list) else key
    _test(parent, key, parent[at])  # what is not there cannot be replaced
    parent[at] = value


def _remove(parent: Any, key: str, _: Any) -> None:
    del parent[int(key) if isinstance(parent, list) else key]


def _test(parent: Any, key: str, value: Any) -> None:
    if parent[int(key) if isinstance(parent, list) else key] != value:
        raise ValueError(key)
