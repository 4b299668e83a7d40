"""A run or a loop in one file, for somebody else to look at: histories, events, journals, versions. See `write_bundle`.

bundle.json                                what it is of, versions, what is missing
histories/<number>-<workflow>.json         Temporal's histories, oldest first; `steer replay FILE.zip` replays them
events/<run>.jsonl                         what `steer attach --json` shows
journals/<run>/<attempt>                   what the agent's process said, where the run was on this machine
"""

import errno
import json
import os
import platform
import re
import stat
import zipfile
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowHistory

import steersman
from steersman._client import visibility
from steersman.client import Steersman
from steersman.contracts import names
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.events import AgentEvent, MessageEvent, ToolOutputEvent
from steersman.errors import (
    HostUnreachable,
    MissingKey,
    NoWorker,
    RunNotFound,
    ServerRefused,
    UnreadablePayload,
    translated,
)
from steersman.history_payloads import decoded
from steersman.hosts import state_directory
from steersman.redaction import Redactor

FORMAT: Final = 1
MAX_JOURNAL: Final = 64 * 1024 * 1024
"""A journal of more bytes is left out, and named."""
MAX_ABOUT: Final = 16 * 1024 * 1024
"""Bytes that are read of what a bundle says of itself."""
MAX_HISTORIES: Final = 10_000
MAX_HISTORY: Final = 256 * 1024 * 1024
MAX_ALL: Final = 512 * 1024 * 1024
"""A bundle may come from anybody: a history of more bytes, and histories that are more or larger together, are not
read.
"""
_METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_HISTORY: Final = re.compile(r"histories/[0-9]{1,6}-[A-Za-z0-9._-]{1,250}\.json")
_EXECUTION: Final = re.compile(r"[0-9A-Za-z-]{36}")
_RECORD: Final = re.compile(rb"\d{1,19} \d{1,19} (out|err|in|eof|exit)(\+?) (\d{1,12}) [!-~]{1,200}\n")
"""The header of a record: activities/shim/PROTOCOL.md."""


async def write_bundle(client: Steersman, id: str, file: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """Write the run or loop of this id to a new file, for its owner alone; what bundle.json says.

    Whatever looks like a secret is masked (see redaction), prompts and answers stay. Payloads that are encrypted are in
    it in the clear.

    Raises: RunNotFound, ServerUnreachable, ServerRefused; FileExistsError, OSError.
    """
    redactor, missing, encrypted = Redactor(environ), list[str](), list[str]()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
            kind, executions = await _write_histories(client, id, bundle, redactor, missing, encrypted)
            for run in executions:
                await _write_events(client, run, bundle, redactor, missing)
                _write_journals(run, executions[run], bundle, redactor, missing)
            about = {
                "format": FORMAT,
                "id": id,
                "kind": kind,
                "runs": list(executions),
                "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
                "steersman": steersman.__version__,
                "temporalio": _version("temporalio"),
                "python": platform.python_version(),
                "system": platform.platform(),
                "masked": redactor.masked,
                "encrypted": bool(encrypted),
                "missing": [*encrypted, *missing],
            }
            bundle.writestr("bundle.json", json.dumps(about, indent=1))
    except BaseException:
        os.unlink(file)  # noqa: PTH108 - nothing else runs
        raise
    return about


def file_name(id: str) -> str:
    """What a bundle is called where nobody says: a plain name, whatever characters the id has."""
    return f"{_name(id)}.zip"


def is_bundle(file: Path) -> bool:
    """Whether the file is one."""
    try:
        with zipfile.ZipFile(file) as bundle:
            return "bundle.json" in bundle.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def has_encrypted(file: Path) -> bool:
    """Whether the bundle says that payloads in it are still encrypted."""
    try:
        with zipfile.ZipFile(file) as bundle:
            if bundle.getinfo("bundle.json").compress_type not in _METHODS:
                return False
            with bundle.open("bundle.json") as about:
                return json.loads(about.read(MAX_ABOUT)).get("encrypted") is True
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, AttributeError, KeyError):
        return False


def unpack_histories(file: Path, directory: Path) -> list[Path]:
    """The bundle's histories as files in a directory, in its order. Raises InvalidRequest; OSError."""
    found: list[Path] = []
    try:
        with zipfile.ZipFile(file) as bundle:
            packed = [bundle.getinfo(name) for name in bundle.namelist() if _HISTORY.fullmatch(name)]
            if len(packed) > MAX_HISTORIES:
                raise InvalidRequest(f"{file}: it has more than {MAX_HISTORIES} histories")
            sizes = [each.file_size for each in packed]
            if max(sizes, default=0) > MAX_HISTORY or sum(sizes) > MAX_ALL:
                raise InvalidRequest(f"{file}: its histories are too large")
            if not {each.compress_type for each in packed} <= _METHODS:
                raise InvalidRequest(f"{file}: its histories are compressed otherwise than steer export does")
            for each in packed:
                path = directory / each.filename.removeprefix("histories/")
                path.write_bytes(bundle.read(each))
                found.append(path)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:  # a password, say
        raise InvalidRequest(f"{file} is no bundle that can be read: {error}") from error
    return found


async def _write_histories(
    client: Steersman,
    id: str,
    bundle: zipfile.ZipFile,
    redactor: Redactor,
    missing: list[str],
    encrypted: list[str],
) -> tuple[str, dict[str, set[str]]]:
    """All executions of the workflow, and those of a loop's runs and verifications; its kind, and the ids of the runs,
    each with Temporal's run ids of its beginnings.
    """
    with translated(of=f"run {id}", address=client.temporal.service_client.config.target_host):
        found = await client.temporal.get_workflow_handle(id).describe()
    kind = {names.LOOP_WORKFLOW: "loop", names.RUN_WORKFLOW: "run"}.get(found.workflow_type)
    if kind is None:
        raise RunNotFound(f"{id} is no run and no loop")
    workflows = [id]
    number, executions = 0, dict[str, set[str]]()
    for workflow in workflows:  # a loop's history names what comes after it
        try:
            async for history in _executions(client.temporal, workflow):
                number += 1
                workflows += [run for run in dict.fromkeys(_runs_in(history)) if run not in workflows]
                began = history.events[0].workflow_execution_started_event_attributes
                beginnings = {began.first_execution_run_id, began.original_execution_run_id}
                executions[workflow] = executions.get(workflow, set()) | beginnings
                told = redactor.in_json(await _in_the_clear(history, client.temporal, encrypted))
                bundle.writestr(f"histories/{number}-{_name(workflow)}.json", json.dumps(told))
        except RunNotFound as error:
            if workflow == id:
                raise
            missing.append(f"history of {workflow}: {error}")
    if kind == "loop":
        del executions[id]
    return kind, executions


def _runs_in(history: WorkflowHistory) -> Iterator[str]:
    """The ids of the runs and verifications that a loop has started, in their order."""
    for event in history.events:
        started = event.child_workflow_execution_started_event_attributes
        if started.workflow_type.name == names.RUN_WORKFLOW:
            yield started.workflow_execution.workflow_id


async def _executions(client: Client, id: str) -> AsyncIterator[WorkflowHistory]:
    """Of one workflow, the oldest first. Raises RunNotFound, SteersmanError."""
    with translated(of=f"run {id}", address=client.service_client.config.target_host):
        for each in await visibility.executions(client, id):
            yield await client.get_workflow_handle(id, run_id=each.run_id).fetch_history()


async def _in_the_clear(history: WorkflowHistory, client: Client, encrypted: list[str]) -> Any:
    """The history as JSON, its payloads in the clear. Where some cannot be, `encrypted` says so."""
    history, reasons = await decoded(history, client.data_converter.payload_codec)
    if reasons:
        count = "1 payload" if len(reasons) == 1 else f"{len(reasons)} payloads"
        encrypted.append(f"history of {history.workflow_id}: {count} stayed encrypted: {reasons[0]}")
    return json.loads(history.to_json())


async def _write_events(
    client: Steersman, run: str, bundle: zipfile.ZipFile, redactor: Redactor, missing: list[str]
) -> None:
    try:
        events = await client.events(run)
    except (HostUnreachable, MissingKey, NoWorker, RunNotFound, ServerRefused, UnreadablePayload) as error:
        missing.append(f"events of {run}: {error}")
        return
    with bundle.open(f"events/{_name(run)}.jsonl", "w") as file:
        for event in _masked(events, redactor):
            file.write(json.dumps(redactor.in_json(event.model_dump(mode="json"))).encode() + b"\n")


def _masked(events: Sequence[AgentEvent], redactor: Redactor) -> Iterator[AgentEvent]:
    """Texts that come piece by piece, or line by line, are masked as one."""
    streams: dict[tuple[object, ...], list[int]] = {}
    pieces = [b""] * len(events)
    for number, event in enumerate(events):
        if isinstance(event, MessageEvent):
            stream: tuple[object, ...] = (event.role, event.kind, event.delta, event.message_id, event.parent_tool_id)
            text = event.text if event.delta else f"{event.text}\n"
        elif isinstance(event, ToolOutputEvent):
            stream, text = (event.id,), event.text
        else:
            continue
        streams.setdefault(stream, []).append(number)
        pieces[number] = text.encode("utf-8", "surrogatepass")
    for numbers in streams.values():
        for number, piece in zip(numbers, redactor.in_pieces([pieces[each] for each in numbers]), strict=True):
            pieces[number] = piece
    for event, piece in zip(events, pieces, strict=True):
        if isinstance(event, MessageEvent | ToolOutputEvent):
            text = piece.decode("utf-8", "surrogatepass")
            is_line = isinstance(event, MessageEvent) and not event.delta
            yield event.model_copy(update={"text": text[:-1] if is_line else text})
        else:
            yield event


def _write_journals(
    run: str, executions: Iterable[str], bundle: zipfile.ZipFile, redactor: Redactor, missing: list[str]
) -> None:
    # By what Temporal calls them: another namespace may have a run of this id on this machine.
    ids = [each for each in executions if _EXECUTION.fullmatch(each)]
    runs = state_directory() / "runs"
    found = sorted(path for each in ids for path in runs.glob(f"*/{each}*/attempts/*/journal"))
    if not found:
        missing.append(f"journals of {run}: none is on this machine")
    for number, path in enumerate(found, 1):
        try:
            data = _own_file(path, runs)
        except OSError as error:
            why = "a link leads there" if error.errno == errno.ELOOP else error.strerror
            missing.append(f"{path}: {why}")
            continue
        bundle.writestr(f"journals/{_name(run)}/{number}", _masked_journal(data, redactor))


def _own_file(path: Path, root: Path) -> bytes:
    """What is in a file below a directory that agents may write in, too. Raises OSError where it is none, or reached by
    a link, or larger than a journal may be.
    """
    with os.fdopen(_opened(root, path.relative_to(root)), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if facts.st_size > MAX_JOURNAL:
            raise OSError(errno.EFBIG, f"more than {MAX_JOURNAL >> 20} MiB")
        return file.read(MAX_JOURNAL)


def _opened(root: Path, below: Path) -> int:
    """A descriptor of what is at this path below a directory, each part looked up in the one before: no link is
    followed, also where one is put there meanwhile. Raises OSError.
    """
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in below.parts:
        try:
            # A pipe would be waited for.
            found = os.open(part, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        finally:
            os.close(at)
        at = found
    return at


def _masked_journal(data: bytes, redactor: Redactor) -> bytes:
    """Its records as they are, what was said in them masked: all of one stream as one text."""
    streams: dict[bytes, list[tuple[int, int, bool]]] = {}
    at = 0
    while header := _RECORD.match(data, at):
        begin, end = header.end(), header.end() + int(header[3])
        if data[end : end + 1] != b"\n":
            break
        streams.setdefault(header[1], []).append((begin, end, header[2] == b"+"))
        at = end + 1
    masked = bytearray(data)
    masked[at:] = redactor.in_bytes(data[at:])  # a record that was not finished
    for records in streams.values():
        said = redactor.in_lines(b"".join(data[begin : end if goes_on else end + 1] for begin, end, goes_on in records))
        taken = 0
        for begin, end, goes_on in records:
            masked[begin:end] = said[taken : taken + end - begin]
            taken += end - begin + (not goes_on)
    return bytes(masked)


def _name(id: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", id)[:250]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
