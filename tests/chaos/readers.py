"""`steer attach` as a person has it open: killed in the middle, and begun again after the last event that it showed."""

import json
import os
from pathlib import Path
from typing import Any

from tests.cli.forked_steer import on_files
from tests.support.forkserver import Forked


class Reader:
    """Follows one run into a file, over as many processes as it takes."""

    def __init__(self, run: str, file: Path, env: dict[str, str]) -> None:
        self.run, self._file = run, file
        self._env = {"PATH": os.environ["PATH"], **env}
        self._process: Forked | None = None
        self.cuts = 0
        file.touch()
        self.go_on()

    def go_on(self) -> None:
        """Follow from after the last whole event."""
        whole, _, _ = self._file.read_bytes().rpartition(b"\n")
        self._file.write_bytes(whole + b"\n" if whole else b"")
        after = json.loads(whole.splitlines()[-1])["seq"] if whole else 0
        words, error = ["attach", self.run, "--json", "--after", str(after)], self._file.with_suffix(".err")
        with Path(os.devnull).open("rb") as nothing, self._file.open("ab") as out, error.open("ab") as err:
            self._process = on_files(words, self._env, (nothing.fileno(), out.fileno(), err.fileno()))

    def cut(self) -> None:
        """SIGKILL, and again from there."""
        self.leave()
        self.cuts += 1
        self.go_on()

    def leave(self) -> None:
        """SIGKILL."""
        if self._process:
            self._process.kill()
            self._process.wait()

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    @property
    def shown(self) -> list[dict[str, Any]]:
        """What it showed, in whole lines."""
        return [json.loads(line) for line in self._file.read_bytes().rpartition(b"\n")[0].splitlines()]


def findings(run: str, shown: list[dict[str, Any]], log: list[dict[str, Any]] | None) -> list[str]:
    """What was shown is the log from its first event on, each once; a log's end may not have been reached."""
    if log is None:
        return [] if len(shown) <= 1 else [f"{run}: {len(shown)} events were shown, and there is no log"]
    numbers = [each["seq"] for each in shown]
    if numbers != list(range(1, len(numbers) + 1)):
        return [f"{run}: a reader that was cut got the events {numbers}"]
    kept = [(each["seq"], each["type"], each.get("text")) for each in log]
    if [(each["seq"], each["type"], each.get("text")) for each in shown] != kept[: len(shown)]:
        return [f"{run}: a reader that was cut was shown other events than the log has"]
    return []
