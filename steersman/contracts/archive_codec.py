"""A compact text form of checkpoints: stored by column, common prefixes once, hashes as bytes. Pure."""

import base64
import json
import lzma
import os.path
import re
from collections.abc import Iterator, Sequence
from typing import Any

from steersman.contracts.loop_state import Checkpoint, Totals

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_FORM: Any = {"format": lzma.FORMAT_RAW, "filters": [{"id": lzma.FILTER_LZMA2, "dict_size": 64 * 1024}]}
"""A sixth smaller than deflate; the window has the size of a hundred checkpoints' text."""
MAX_BYTES = 16 * 1024 * 1024
"""Of so many checkpoints as are packed together; what would be larger was not made by `encode`."""
_LENGTH = 4
"""Bytes of the JSON's length, which come first; the hashes follow the JSON."""


def encode(checkpoints: Sequence[Checkpoint]) -> str:
    """The checkpoints as ASCII text, some 130 characters each."""
    rows, before = [], Totals()
    for each in checkpoints:
        rows.append(dict(_flat(_row(each, before))))
        before = each.totals
    names = sorted({name for row in rows for name in row})
    columns, blob = {}, bytearray()
    for name in names:
        columns[name] = _column([row.get(name) for row in rows], blob)
    text = json.dumps({"rows": len(rows), "columns": columns}, separators=(",", ":")).encode()
    return base64.b85encode(lzma.compress(len(text).to_bytes(_LENGTH, "big") + text + blob, **_FORM)).decode()


def decode(text: str) -> list[Checkpoint]:
    """The checkpoints of an encoded text. Raises ValueError where it is none."""
    count, columns = _columns(text)
    found, before = [], Totals()
    for place in range(count):
        row: dict[str, Any] = {}
        for name, values in columns.items():
            if values[place] is not None:
                _put(row, name.split("."), values[place])
        checkpoint = Checkpoint.model_validate(row)
        if "usage" not in row.get("totals", {}) and "cost_usd" not in row.get("totals", {}):
            checkpoint = checkpoint.model_copy(update={"totals": _after(before, checkpoint)})
        before = checkpoint.totals
        found.append(checkpoint)
    return found


def numbers(text: str) -> list[int]:
    """The numbers of the checkpoints in an encoded text."""
    _, columns = _columns(text)
    found: list[int] = columns["number"]
    return found


def _row(each: Checkpoint, before: Totals) -> dict[str, Any]:
    row = each.model_dump(mode="json", exclude_defaults=True)
    if each.totals == _after(before, each):
        row["totals"] = {"iterations": each.totals.iterations, "active_s": each.totals.active_s}
    else:
        row["totals"] = each.totals.model_dump(mode="json")
    return row


def _after(before: Totals, each: Checkpoint) -> Totals:
    """The totals if nothing but this checkpoint's own usage was added to those before."""
    usage, cost = before.usage + each.usage, before.cost_usd + each.cost_usd
    return each.totals.model_copy(update={"usage": usage, "cost_usd": cost})


def _flat(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _put(row: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        row = row.setdefault(name, {})
    row[path[-1]] = value


def _column(values: list[Any], blob: bytearray) -> Any:
    if all(isinstance(value, str) for value in values):
        for width, form in ((len(values[0]), _HASH), (32, _UUID)):
            if all(form.fullmatch(value) and len(value) == len(values[0]) for value in values):
                blob += b"".join(bytes.fromhex(value.replace("-", "")) for value in values)
                return {"hex": width, "uuid": form is _UUID}
        prefix = os.path.commonprefix(values)  # noqa: RUF071 - of any strings, character by character
        return {"prefix": prefix, "rest": [value[len(prefix) :] for value in values]}
    return values


def _columns(text: str) -> tuple[int, dict[str, list[Any]]]:
    try:
        unpacking = lzma.LZMADecompressor(**_FORM)
        data = unpacking.decompress(base64.b85decode(text), MAX_BYTES)
    except lzma.LZMAError as error:
        raise ValueError(f"no checkpoints: {error}") from error
    if not unpacking.eof:
        raise ValueError("cut off, or larger than any checkpoints")
    start = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
    header = json.loads(data[_LENGTH:start])
    hashes = data[start:].hex()
    columns: dict[str, list[Any]] = {}
    for name, column in header["columns"].items():
        if isinstance(column, list):
            columns[name] = column
        elif "hex" in column:
            width = column["hex"]
            taken, hashes = hashes[: width * header["rows"]], hashes[width * header["rows"] :]
            each = [taken[place : place + width] for place in range(0, len(taken), width)]
            columns[name] = [_dashed(one) for one in each] if column["uuid"] else each
        else:
            columns[name] = [column["prefix"] + rest for rest in column["rest"]]
    return header["rows"], columns


def _dashed(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
