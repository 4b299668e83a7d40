"""Which objects a request means: label selectors and field selectors.

What is done with them must not live here.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.kubernetes import statuses

Matcher = Callable[[dict[str, Any]], bool]

_SET = re.compile(r"^(?P<key>\S+)\s+(?P<how>in|notin)\s*\((?P<values>[^)]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^=!\s]+)\s*(?P<how>==|=|!=)\s*(?P<value>\S*)$")
_KEY = re.compile(r"^!?\s*[A-Za-z0-9][-A-Za-z0-9_./]*$")


def matcher(query: Mapping[str, str]) -> Matcher:
    """Whether an object is one of those that a query selects. Raises ApiError."""
    labels = [_label(each) for each in _split(query.get("labelSelector", ""))]
    fields = [_field(each) for each in _split(query.get("fieldSelector", ""))]

    def matches(found: dict[str, Any]) -> bool:
        own = found["metadata"].get("labels") or {}
        return all(each(own) for each in labels) and all(each(found) for each in fields)

    return matches


def matches_labels(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Of a LabelSelector in an object: `matchLabels` and `matchExpressions`."""
    equal = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return equal and all(_expression(each, labels) for each in selector.get("matchExpressions") or [])


def _expression(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _split(text: str) -> list[str]:
    """At commas, but for those within parentheses."""
    return [each.strip() for each in re.split(r",(?![^(]*\))", text) if each.strip()]


def _label(text: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _SET.match(text):
        key = found["key"]
        values = {each.strip() for each in found["values"].split(",")}
        if found["how"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUAL.match(text):
        key, value = found["key"], found["value"]
        if found["how"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if not _KEY.match(text):
        raise statuses.bad_request(f"unable to parse requirement: found '{text}', expected: in, notin, =, ==, !=")
    if text.startswith("!"):
        return lambda labels: text[1:].strip() not in labels
    return lambda labels: text in labels


def _field(text: str) -> Matcher:
    found = _EQUAL.match(text)
    if not found:
        raise statuses.bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
    path, value, equal = found["key"].split("."), found["value"], found["how"] != "!="

    def matches(whole: dict[str, Any]) -> bool:
        at: Any = whole
        for name in path:
            at = at.get(name) if isinstance(at, dict) else None
        return (("" if at is None else str(at)) == value) is equal

    return matches
