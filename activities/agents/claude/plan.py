"""Claude Code's own plan, from whichever of its plan tools the model has: TodoWrite, or TaskCreate and TaskUpdate."""

from dataclasses import dataclass, field
from datetime import datetime

from activities.agents.frames import Frame
from activities.untrusted_json import object_at, objects_in, text_of
from steersman.contracts.events import PlanItem, PlanUpdateEvent

MAX_ITEMS = 500
PLANNERS = ("TodoWrite", "TaskCreate", "TaskUpdate")


@dataclass
class Plan:
    """The plan after each tool call that succeeded. The field's name and values are in snapshots."""

    _tasks: dict[str, PlanItem] = field(default_factory=dict)

    def is_sound(self) -> bool:
        """Whether tools can have led to this state; it may be from a forged snapshot."""
        items = self._tasks.values()
        return len(items) <= MAX_ITEMS and all(len(item.text) <= 500 and len(item.status) <= 50 for item in items)

    def after(self, time: datetime, tool: str, tool_input: Frame, result: Frame) -> PlanUpdateEvent | None:
        """Apply a tool call; the plan if the call changed it."""
        if tool == "TodoWrite":
            todos = objects_in(tool_input.get("todos"))
            items = [_item(todo.get("content"), todo.get("status")) for todo in todos]
            return PlanUpdateEvent(time=time, items=tuple(items[:MAX_ITEMS]))
        if tool == "TaskCreate" and len(self._tasks) < MAX_ITEMS:
            created = text_of(object_at(result, "task").get("id"))
            self._tasks[created] = _item(tool_input.get("subject"), "pending")
        elif tool == "TaskUpdate" and (task := text_of(tool_input.get("taskId"))) in self._tasks:
            known = self._tasks[task]
            self._tasks[task] = _item(tool_input.get("subject") or known.text, tool_input.get("status") or known.status)
            if self._tasks[task].status == "deleted":
                del self._tasks[task]
        else:
            return None
        return PlanUpdateEvent(time=time, items=tuple(self._tasks.values()))


def _item(text: object, status: object) -> PlanItem:
    return PlanItem(text=text_of(text)[:500], status=text_of(status)[:50])
