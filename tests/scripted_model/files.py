"""Scripts as JSON files, for the demo and for tests that run the model as a process.

A file is `{"<script>": [STEP, ...]}` or `{"<script>": {"repeat": true, "steps": [STEP, ...]}}`; a STEP is one of
    {"say": TEXT, "chunks": 5, "delay_s": 0.1}    {"think": TEXT}    {"tool": NAME, "input": {...}}
    {"hold": TEXT, "after": TEXT}    {"cut": TEXT}    {"structured": {...}}
    {"fail": 429, "message": TEXT, "retry_after_s": 1, "headers": {...}}
    {"answer": [STEP, ...], "usage": {"input": 1, "output": 1, "cache_read": 0, "cache_write": 0}}
and may carry "times": how often it is played.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.scripted_model import steps
from tests.scripted_model.steps import Answer, Step, Usage


def _answer(parts: list[Mapping[str, Any]], usage: Mapping[str, int] | None = None, **rest: Any) -> Answer:
    built = [_step(part) for part in parts]
    if not all(isinstance(part, Answer) for part in built):
        raise ValueError("an answer cannot hold a failure")
    return steps.answer(*[p for p in built if isinstance(p, Answer)], usage=Usage(**(usage or {})), **rest)


def _tool(name: str, input: Mapping[str, Any] | None = None) -> Answer:
    return steps.tool(name, **(input or {}))


VERBS: dict[str, Callable[..., Step]] = {
    "say": steps.say,
    "think": steps.think,
    "tool": _tool,
    "hold": steps.hold,
    "cut": steps.cut,
    "structured": steps.structured,
    "fail": steps.fail,
    "answer": _answer,
}


def load_scripts(file: Path) -> dict[str, tuple[list[Step], bool]]:
    """Name -> (steps, repeat). Raises ValueError or TypeError naming the script and the step that is wrong."""
    parsed = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(parsed, dict):
        raise TypeError(f"{file}: an object of scripts is needed")
    return {name: _script(name, value) for name, value in parsed.items()}


def _script(name: str, value: Any) -> tuple[list[Step], bool]:
    entry = {"steps": value} if isinstance(value, list) else value
    if not isinstance(entry, dict) or not isinstance(entry.get("steps"), list) or entry.keys() - {"steps", "repeat"}:
        raise ValueError(f"script {name!r}: a list of steps, or an object with steps and repeat, is needed")
    played: list[Step] = []
    for number, raw in enumerate(entry["steps"]):
        try:
            fields = dict(raw)
            played += [_step(fields)] * int(fields.pop("times", 1))
        except (TypeError, ValueError) as error:
            raise ValueError(f"script {name!r}, step {number}: {error}") from error
    return played, bool(entry.get("repeat", False))


def _step(raw: Mapping[str, Any]) -> Step:
    fields = {k: v for k, v in raw.items() if k != "times"}
    verbs = fields.keys() & VERBS.keys()
    if len(verbs) != 1:
        raise ValueError(f"exactly one of {sorted(VERBS)} is needed, not {sorted(fields)}")
    verb = verbs.pop()
    return VERBS[verb](fields.pop(verb), **fields)
