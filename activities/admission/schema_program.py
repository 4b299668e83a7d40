"""A program of its own: is a JSON Schema one, does a value fit it. `schema_program.py SECONDS`: of processor time.

Reads {"schema": ...} or {"schema": ..., "value": ...} on stdin, prints null where all is well, else what is wrong as a
JSON string. Fetches nothing: a reference leads to the schema itself or to a published meta-schema, or nowhere.
What that means for a run must not live here.
"""

import json
import resource
import sys
from contextlib import suppress
from typing import Any

MEMORY = 512 * 1024 * 1024
MAX_WORDS = 500


def main(seconds: int) -> None:
    """Answer the one question on stdin."""
    _confine(seconds)
    asked = json.load(sys.stdin)
    try:
        wrong = _wrong(asked)
    except RecursionError:
        wrong = "it is nested too deeply"
    except MemoryError:
        wrong = "it takes too much memory"
    except Exception as error:  # noqa: BLE001 - what the library trips over is no schema to anybody
        wrong = f"{type(error).__name__}: {error}"
    print(json.dumps(None if wrong is None else wrong[:MAX_WORDS]))  # noqa: T201 - the answer


def _confine(seconds: int) -> None:
    limits = ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0))
    for what, limit in (*limits, (resource.RLIMIT_FSIZE, 0)):
        with suppress(OSError, ValueError):  # macOS has no RLIMIT_AS to set
            resource.setrlimit(what, (limit, limit))


def _wrong(asked: dict[str, Any]) -> str | None:
    import jsonschema  # noqa: PLC0415 - behind the limits
    import jsonschema_specifications  # type: ignore[import-untyped] # noqa: PLC0415
    import referencing.exceptions  # noqa: PLC0415

    schema = asked["schema"]
    dialect = jsonschema.validators.validator_for(schema)
    if "value" not in asked:
        try:
            dialect.check_schema(schema)
        except jsonschema.SchemaError as error:
            return str(error.message)
        return None
    validator = dialect(schema, registry=jsonschema_specifications.REGISTRY)
    try:
        found = next(iter(validator.iter_errors(asked["value"])), None)
    except referencing.exceptions.Unresolvable as error:
        return f"the schema refers to {error.ref}, which is not in it"
    return None if found is None else str(found.message)


if __name__ == "__main__":
    main(int(sys.argv[1]))
