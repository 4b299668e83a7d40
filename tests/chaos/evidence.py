"""What is left of a run when all is over, read from outside: files, Temporal's own word, what the agent noted itself.

Journals and logs are read with a few lines of our own. What it should be like must not live here.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steersman.contracts.messages import DecisionReceipt, MessageReceipt
from steersman.contracts.run import MessageRecord, StopReport
from tests.chaos.subjects import Kind, Subject

LINE = re.compile(r"line (\d+)")
BEGIN = re.compile(r"begin (\S+)")


@dataclass
class Evidence:
    """Of one run; of a loop's runs, too, with what befell the loop."""

    run: str
    kind: Kind
    status: str
    """How Temporal closed it: COMPLETED, FAILED, CANCELED, TERMINATED, or RUNNING."""
    befell: Counter[str] = field(default_factory=Counter)
    failure: str = ""
    events: list[dict[str, Any]] | None = None
    """The log's whole lines; None where there is no log."""
    torn: bool = False
    """The log ends in the middle of a line."""
    journals: list[list[tuple[int, str, str, bytes]]] = field(default_factory=list)
    """Of each attempt: number, stream, command id and bytes of every record."""
    files: list[str] = field(default_factory=list)
    noted: dict[str, list[int]] = field(default_factory=dict)
    """Token of each process that counted -> the lines that it noted itself."""
    overlaps: list[str] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)
    """The numbers of the tool calls that ran, as the tools noted them."""
    conversations: list[list[str]] = field(default_factory=list)
    """All texts of each request that the model got."""
    session: list[str] = field(default_factory=list)
    """What people said in the agent's own record of its sessions, a line each: what a later run goes on with."""
    answered: list[int] = field(default_factory=list)
    """The numbers of the requests that the model answered to the end."""
    said: dict[str, str] = field(default_factory=dict)
    receipts: list[MessageReceipt] = field(default_factory=list)
    messages: tuple[MessageRecord, ...] = ()
    decisions: list[DecisionReceipt] = field(default_factory=list)
    report: StopReport | None = None
    living_at_close: dict[int, str] = field(default_factory=dict)
    living: dict[int, str] = field(default_factory=dict)
    agents_at_once: int = 0

    def count(self, *faults: str) -> int:
        """How often any of these faults befell it."""
        return sum(self.befell[fault] for fault in faults)

    @property
    def lines(self) -> list[int]:
        """The numbered lines in the log."""
        texts = [each["text"] for each in self.events or () if each["type"] == "message" and not each.get("delta")]
        return [int(found[1]) for text in texts if (found := LINE.fullmatch(text))]

    @property
    def token(self) -> str | None:
        """Of the process whose lines are in the log."""
        texts = [each["text"] for each in self.events or () if each["type"] == "message"]
        return next((found[1] for text in texts if (found := BEGIN.fullmatch(text))), None)

    @property
    def words(self) -> list[int]:
        """The numbers of the model's words in the log, from whole messages."""
        texts = [each["text"] for each in self.events or () if each["type"] == "message" and not each.get("delta")]
        return [int(number) for text in texts for number in re.findall(rf"\[{re.escape(self.run)} word (\d+)\]", text)]


def of_subject(state: Path, subject: Subject, run: str) -> Evidence:
    """Everything that lies in files and in the suite's own memory."""
    found = Evidence(run, subject.kind, subject.closed_as or "RUNNING", befell=Counter(subject.befell))
    directories = [each for each in (state / "runs" / run).glob("*") if each.suffix == ""]
    for directory in directories:
        _read_directory(found, directory)
    for path in sorted(subject.record.glob("said-*")):
        found.noted[path.name.removeprefix("said-")] = _numbers(path)
    found.overlaps = sorted(path.name for path in subject.record.glob("overlap-*"))
    found.ran = _numbers(subject.record / "ran")
    found.living_at_close, found.agents_at_once = subject.living_at_close, subject.agents_at_once
    found.session = _session(state.parent / "claude", found.events or [])
    found.said, found.receipts, found.decisions = subject.said, subject.receipts, subject.decisions
    if subject.script:
        found.conversations = [each.texts for each in subject.script.requests]
        found.answered = [each.number for each in subject.script.requests if each.outcome == "answered"]
    return found


def _read_directory(found: Evidence, directory: Path) -> None:
    log = directory / "events.jsonl"
    if log.exists():
        whole, _, rest = log.read_bytes().rpartition(b"\n")
        found.events, found.torn = [json.loads(line) for line in whole.splitlines()], bool(rest)
    attempts = [each for each in (directory / "attempts").glob("*") if (each / "journal").exists()]
    for attempt in sorted(attempts, key=lambda each: int(each.name)):
        found.journals.append(read_journal((attempt / "journal").read_bytes()))
    found.files = sorted(each.name for each in directory.glob("attempts/*/files/*"))


def _session(own: Path, events: list[dict[str, Any]]) -> list[str]:
    """Claude Code's own record, without its notes of what waits in its queue."""
    sessions = {each["session_id"] for each in events if each["type"] == "init" and each.get("session_id")}
    files = [file for session in sessions for file in own.glob(f"projects/*/{session}.jsonl")]
    lines = [line for file in files for line in file.read_text("utf-8", "replace").splitlines()]
    return [line for line in lines if '"type":"queue-operation"' not in line]


def read_journal(data: bytes) -> list[tuple[int, str, str, bytes]]:
    """The whole records of a shim's journal, by PROTOCOL.md."""
    records, place = [], 0
    while (end := data.find(b"\n", place)) >= 0:
        number, _, stream, length, command = data[place:end].decode().split(" ")
        body = data[end + 1 : end + 1 + int(length)]
        place = end + 2 + int(length)
        if place > len(data):
            break  # torn by the death of its shim
        records.append((int(number), stream, command, body))
    return records


def _numbers(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []
