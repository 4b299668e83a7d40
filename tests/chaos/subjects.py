"""The runs and loops that the faults meet: what each is asked to do, and what is kept of what befell it.

Six at a time, one of each kind. What is expected of them must not live here.
"""

import secrets
import shlex
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from steersman.contracts.messages import DecisionReceipt, MessageReceipt
from tests.acceptance.loops import process_loop
from tests.acceptance.site import Site
from tests.chaos.programs import counting
from tests.loops.loop_site import repository
from tests.scripted_model import Request, Script, ScriptedModel, Step, answer, say, tool

Kind = Literal["talking", "asking", "counting", "quick", "stubborn", "loop"]
KINDS: tuple[Kind, ...] = ("talking", "asking", "counting", "quick", "stubborn", "loop")
CLAUDE: tuple[Kind, ...] = ("talking", "asking")
TURNS = 10
"""Answers of the model after which Claude is done, where nobody says anything more to it."""
APPROVAL_S = 6.0
ITEMS = ("one", "two", "three")


@dataclass
class Subject:
    """One run, or one loop with its runs. All that the suite itself knows of it."""

    id: str
    kind: Kind
    mark: str
    record: Path
    request: dict[str, Any]
    script: Script | None = None
    befell: Counter[str] = field(default_factory=Counter)
    said: dict[str, str] = field(default_factory=dict)
    """Id of each message with a text -> that text."""
    receipts: list[MessageReceipt] = field(default_factory=list)
    decisions: list[DecisionReceipt] = field(default_factory=list)
    closed_as: str | None = None
    living_at_close: dict[int, str] = field(default_factory=dict)
    """Processes with its mark in the moment in which its close was seen."""
    agents_at_once: int = 0
    """The most processes of Claude Code that were ever seen of it at a time."""

    @property
    def is_loop(self) -> bool:
        return self.kind == "loop"

    @property
    def is_claude(self) -> bool:
        return self.kind in CLAUDE

    def heard(self, answer: object) -> None:
        """What came back to somebody who said something."""
        if isinstance(answer, MessageReceipt):
            self.receipts.append(answer)
        elif isinstance(answer, DecisionReceipt):
            self.decisions.append(answer)

    def owns(self, run: str) -> bool:
        """Whether a run's id is its own, or of a run of its loop."""
        return run == self.id or (self.is_loop and run.startswith(f"{self.id}-"))


def subject(site: Site, model: ScriptedModel, kind: Kind, number: int) -> Subject:
    """The next of its kind, to be started."""
    name, mark = f"{kind}-{number}", f"chaos-{secrets.token_hex(8)}"
    record = site.root / "record" / name
    record.mkdir(parents=True)
    if kind in CLAUDE:
        script = model.script(name, turns(name, record))
        mode = {"talking": "full", "asking": "ask"}[kind]
        limits = {"approval_s": APPROVAL_S}
        request = site.claude(script, mark=mark, permissions={"mode": mode}, limits=limits)
        return Subject(name, kind, mark, record, request, script)
    if kind == "loop":
        workspace = repository(site.workspace(), {"PLAN.md": "".join(f"- [ ] {each}\n" for each in ITEMS)})
        work = f"{shlex.join(counting(record, 15, 0.1))} && sed -i '0,/\\[ \\]/s//[x]/' PLAN.md"
        return Subject(name, kind, mark, record, process_loop(site, work, workspace, mark))
    lines, pause_s = {"counting": (120, 0.1), "quick": (10, 0.05), "stubborn": (0, 0.2)}[kind]
    command = counting(record, lines, pause_s, stubborn=kind == "stubborn")
    return Subject(name, kind, mark, record, site.process(*command, mark=mark))


def word(name: str, number: int) -> str:
    """What the model says in its answer of that number."""
    return f"[{name} word {number}]"


def turns(name: str, record: Path) -> Any:
    """A model that says a numbered word and calls a tool that notes the number, again and again."""

    def play(request: Request) -> Step:
        number = request.number
        if number >= TURNS:
            return say(word(name, number))
        note = tool("Bash", command=f"echo {number} >> {record}/ran; sleep 0.4")
        return answer(say(word(name, number), chunks=4, delay_s=0.1), note)

    return play
