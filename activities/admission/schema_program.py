"""A program of its own: is a JSON Schema one, does a value fit it. `schema_program.py SECONDS`: of processor time.

Reads {"schema": ...} or {"schema": ..., "value": ...} on stdin, prints null where all is well, else what is wrong as a
JSON string. Fetches nothing: a reference leads to the schema itself or to a published meta-schema, or nowhere.
What that means for a run must not live here.
"""

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

MEMORY = 512 * 1024 * 1024
MAX_WORDS = 500
OUTSIDE = "the schema refers to {}, which is not in it"
VALUES = ("const", "enum", "default", "examples")
"""Keywords of which the value is no schema."""


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
        return _unresolvable(schema, dialect)
    validator = dialect(schema, registry=jsonschema_specifications.REGISTRY)
    try:
        found = next(iter(validator.iter_errors(asked["value"])), None)
    except referencing.exceptions.Unresolvable as error:
        return OUTSIDE.format(error.ref)
    return None if found is None else str(found.message)


def _unresolvable(schema: Any, dialect: Any) -> str | None:
    """A reference that leads nowhere. Where parts of the schema have addresses of their own, judging alone finds it."""
    import jsonschema_specifications  # noqa: PLC0415
    import referencing.exceptions  # noqa: PLC0415
    import referencing.jsonschema  # noqa: PLC0415

    if not isinstance(schema, dict):
        return None
    found = list(_parts(schema))
    if any(isinstance(part.get(name), str) for part in found[1:] for name in ("$id", "id")):
        return None
    default = referencing.jsonschema.DRAFT202012
    draft = referencing.jsonschema.specification_with(dialect.META_SCHEMA.get("$schema", ""), default=default)
    resource = draft.create_resource(schema)
    own = resource.id() or ""
    resolver = jsonschema_specifications.REGISTRY.with_resource(own, resource).resolver(own)
    for reference in (part["$ref"] for part in found if isinstance(part.get("$ref"), str)):
        try:
            resolver.lookup(reference)
        except referencing.exceptions.Unresolvable:
            return OUTSIDE.format(reference)
    return None


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """The objects in a schema, itself first, but for those that are values."""
    if isinstance(schema, dict):
        yield schema
        for name, each in schema.items():
            if name not in VALUES:
                yield from _parts(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _parts(each)


if __name__ == "__main__":
    main(int(sys.argv[1]))
