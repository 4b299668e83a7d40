"""Structured answers of agents that can only be asked for them: the words that ask, and the JSON in what they say."""

import json
import re

from activities import untrusted_json
from activities.ports.agent import MAX_STRUCTURED
from steersman.contracts.model import JsonObject, JsonValue

_FENCED = re.compile(r"```[A-Za-z]*\n(.*?)\n?```", re.DOTALL)


def asking(schema: JsonObject) -> str:
    """What a prompt says of the schema that the answer is to have."""
    return (
        "When your work is done, end with an answer that is one JSON value of this JSON Schema, alone: no words before "
        f"or after it, no code fence.\n\n{json.dumps(schema)}"
    )


def asking_again(why: str) -> str:
    """What a second prompt says of an answer that did not fit."""
    return (
        f"Your last answer was not what was asked for ({why}). Say it again as one JSON value of the schema that you "
        "were given, alone: no words before or after it, no code fence."
    )


def answer_in(text: str) -> JsonValue:
    """The JSON value in an answer: all of it, its last fenced block, or from its first bracket on. None for none."""
    fenced = _FENCED.findall(text)
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    for candidate in (text, *fenced[-1:], text[min(starts) :] if starts else ""):
        try:
            value: JsonValue = untrusted_json.parse(candidate.strip()) if candidate.strip() else None
        except ValueError:
            continue
        if value is not None and len(candidate) <= MAX_STRUCTURED:
            return value
    return None
