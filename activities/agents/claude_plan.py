"""Claude Code's own plan, from whichever of its plan tools the model has: TodoWrite, or TaskCreate and TaskUpdate."""

from dataclasses import dataclass, field
from datetime import datetime

from activities.agents.claude_frames import Frame, part, text_of
from steersman.contracts.events import PlanItem, PlanUpdateEvent

MAX_ITEMS = 500
PLANNERS = ("TodoWrite", "TaskCreate", "TaskUpdate")


@dataclass
class Plan:
    """The plan as it stands after each tool that succeeded."""

    _tasks: dict[str, PlanItem] = field(default_factory=dict)

    def is_sound(self) -> bool:
        """Whether tools can have come to this; it may be from a file."""
        items = self._tasks.values()
        return len(items) <= MAX_ITEMS and all(len(item.text) <= 500 and len(item.status) <= 50 for item in items)

    def after(self, time: datetime, tool: str, asked: Frame, answered: Frame) -> PlanUpdateEvent | None:
        """The plan, if this tool's input and result changed it."""
        if tool == "TodoWrite":
            todos = asked.get("todos")
            listed = [todo for todo in todos if isinstance(todo, dict)] if isinstance(todos, list) else []
            items = [_item(todo.get("content"), todo.get("status")) for todo in listed]
            return PlanUpdateEvent(time=time, items=tuple(items[:MAX_ITEMS]))
        if tool == "TaskCreate" and len(self._tasks) < MAX_ITEMS:
            created = text_of(part(answered, "task").get("id"))
            self._tasks[created] = _item(asked.get("subject"), "pending")
        elif tool == "TaskUpdate" and (task := text_of(asked.get("taskId"))) in self._tasks:
            known = self._tasks[task]
            self._tasks[task] = _item(asked.get("subject") or known.text, asked.get("status") or known.status)
            if self._tasks[task].status == "deleted":
                del self._tasks[task]
        else:
            return None
        return PlanUpdateEvent(time=time, items=tuple(self._tasks.values()))


def _item(text: object, status: object) -> PlanItem:
    return PlanItem(text=text_of(text)[:500], status=text_of(status)[:50])
