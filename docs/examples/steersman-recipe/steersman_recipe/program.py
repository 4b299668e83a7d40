"""The program that is driven: it takes the steps of a recipe, one after another. It knows nothing of Steersman.

Of the standard library alone, as it is sent to the machine on which it runs. stdin and stdout have one JSON object a
line:

    in   {"type": "prompt" | "message", "id", "text"}
    out  {"type": "session", "id"}      once, first: the session has the steps that it begins with
         {"type": "read", "id"}         it has read a message
         {"type": "said", "text"}
         {"type": "answer", "value"}
         {"type": "failed", "text"}     a step failed: it ends
         {"type": "done"}               no steps are left: it ends

A session is a file of lines, which only grows: where it was begun, the steps that came and each that was begun. One
that is resumed goes on with the first step that was not begun.
"""

import json
import os
import select
import subprocess
import sys
import time
from typing import Any


def put(**frame: Any) -> None:
    """One line of output."""
    print(json.dumps(frame), flush=True)


class Session:
    """The steps that are left, on disk."""

    def __init__(self, home: str, name: str) -> None:
        self.path = os.path.join(home, "sessions", f"{name}.jsonl")
        self.steps: list[str] = []
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        for line in self._lines():
            if line["type"] == "steps":
                self.steps[:0] = line["steps"]
            elif line["type"] == "begun":
                self.steps.pop(0)

    def _lines(self) -> list[Any]:
        if not os.path.exists(self.path):
            self._write(type="session", directory=os.getcwd())
        with open(self.path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def _write(self, **line: Any) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def add(self, text: str) -> None:
        """Take these steps next."""
        steps = [step for step in text.split("\n") if step.strip()]
        self._write(type="steps", steps=steps)
        self.steps[:0] = steps

    def begin(self) -> str:
        """The next step, which is never begun again."""
        self._write(type="begun")
        return self.steps.pop(0)


class Inbox:
    """What comes on stdin."""

    def __init__(self) -> None:
        self.rest, self.open = b"", True

    def look(self, session: Session, seconds: float) -> None:
        """Wait this long, or until something has come, and take it."""
        if not self.open:
            time.sleep(seconds)
        elif select.select([0], [], [], seconds)[0]:
            data = os.read(0, 1 << 20)
            self.open = bool(data)
            *lines, self.rest = (self.rest + data).split(b"\n")
            for frame in map(json.loads, lines):
                session.add(frame["text"])
                if frame["type"] == "message":
                    put(type="read", id=frame["id"])


def take(step: str, session: Session, inbox: Inbox) -> str | None:
    """Take one step; what went wrong."""
    verb, _, rest = step.partition(" ")
    if verb == "run":
        done = subprocess.run(rest, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
        return f"`{rest}` ended with {done.returncode}" if done.returncode else None
    if verb == "wait":
        while not os.path.exists(rest):
            inbox.look(session, 0.02)
    elif verb == "answer":
        try:
            put(type="answer", value=json.loads(rest))
        except ValueError as error:
            return f"{step}: {error}"
    else:
        put(type="said", text=rest if verb == "say" else step)
    return None


def main(home: str, name: str, prompted: str, pace_s: str) -> None:
    """`prompted`: yes where steps come on stdin before anything is done."""
    session, inbox = Session(home, name), Inbox()
    while prompted == "yes" and inbox.open:
        before = len(session.steps)
        inbox.look(session, 1.0)
        if len(session.steps) > before:
            break
    put(type="session", id=name)
    while session.steps:
        inbox.look(session, float(pace_s))
        if (wrong := take(session.begin(), session, inbox)) is not None:
            put(type="failed", text=wrong)
            return
    put(type="done")


if __name__ == "__main__":
    main(*sys.argv[1:])
