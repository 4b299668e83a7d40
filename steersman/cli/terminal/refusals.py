"""Calls that a run's permission mode refused, summed up once it has ended, and what would have allowed them."""

import re
import shlex

from steersman.cli.formatting import counted
from steersman.contracts.events import REFUSED_BY_MODE, AgentEvent, PermissionEvent

MAX_KEPT = 200
MAX_RULES = 5
_SEPARATORS = re.compile(r"&&|\|\||[;|&\n]")
_WORD = re.compile(r"[A-Za-z0-9_./+-]+")


class Refusals:
    """Told each event of a run. Claude Code's rules: no other agent has a mode that refuses by itself."""

    def __init__(self) -> None:
        self._asked: dict[str, PermissionEvent] = {}
        self._refused: dict[str, PermissionEvent] = {}

    def on_event(self, event: AgentEvent) -> None:
        """Keep what the summary needs of it."""
        if event.type != "permission":
            return
        if event.state == "asked" and len(self._asked) < MAX_KEPT:
            self._asked[event.id] = event
        elif event.state == "denied" and REFUSED_BY_MODE in (event.message or "") and len(self._refused) < MAX_KEPT:
            self._refused[event.id] = self._asked.pop(event.id, event)
        else:
            self._asked.pop(event.id, None)

    def summary(self) -> str | None:
        """One sentence; None where nothing was refused."""
        if not self._refused:
            return None
        tools: dict[str, int] = {}
        for each in self._refused.values():
            tools[each.tool] = tools.get(each.tool, 0) + 1
        named = ", ".join(f"{tool} ({count})" if count > 1 else tool for tool, count in tools.items())
        rules = list(dict.fromkeys(rule for each in self._refused.values() for rule in rules_for(each)))
        flags = " ".join(f"--allow {shlex.quote(rule)}" for rule in rules[:MAX_RULES])
        return f"the permission mode refused {counted(len(self._refused), 'call')}: {named}. Next time: {flags}"


def rules_for(call: PermissionEvent) -> list[str]:
    """Rules that would have allowed this call: of a shell's command one for each program that it runs."""
    command = call.input.get("command")
    if call.tool != "Bash" or not isinstance(command, str):
        return [call.tool]
    words = (part.split() for part in _SEPARATORS.split(command))
    programs = [next((word for word in each if "=" not in word), "") for each in words]
    return [f"Bash({program} *)" for program in programs if _WORD.fullmatch(program)] or ["Bash"]
