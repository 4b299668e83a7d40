"""The JSON answer of another program."""

import json
from typing import Any


def last_json(output: str) -> Any:
    """The JSON value that a program printed last, after whatever else it printed; None where there is none."""
    for text in (output, output.strip().rpartition("\n")[2]):
        try:
            return json.loads(text)
        except ValueError:
            continue
    return None
