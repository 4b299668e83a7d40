"""One run's directory: its paths, and what its files say of it. Which runs there are must not live here: see runs."""

import hashlib
import json
import math
import os
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from activities.shim import client as shim
from activities.store import disk
from steersman.contracts.activities import RunKey
from steersman.contracts.model import JsonObject

MAX_TOLD = 200_000
"""Characters of what is written down of an agent that could not go on."""
_BEGINNING = re.compile(r"[0-9a-f]{16}")


class RunGone(Exception):
    """What was written down of a run is gone: it can neither go on nor begin anew."""


@dataclass(frozen=True)
class Part:
    """An agent of a run that took over from the one before it."""

    attempt: int
    """Its first process."""
    why: str
    """Why the one before could not go on."""
    told: str
    """What it is told of that one."""


@dataclass(frozen=True)
class RunDirectory:
    """One run's directory, whether or not it is there: RunStore.create makes it."""

    path: Path
    key: RunKey

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def scratch(self) -> Path:
        """Where runs of earlier versions have what `Launch.files` holds now."""
        return self.path / "scratch"

    @property
    def beginning(self) -> str:
        """Which beginning of the run this is: a run that is reset after its end begins anew under the same key.

        Empty where run.json is of a version without beginnings, or cannot be read.
        """
        said = self._facts().get("beginning")
        return said if isinstance(said, str) and _BEGINNING.fullmatch(said) else ""

    @property
    def created(self) -> float | None:
        """Unix time at which the directory was made; None where run.json does not say."""
        said = self._facts().get("created")
        return said if isinstance(said, float) and math.isfinite(said) else None

    @property
    def agent_key(self) -> RunKey:
        """The run's key as its agent has it, which derives its own ids from the key.

        Each beginning of the run has another one; every worker has the same.
        """
        if not (beginning := self.beginning):
            return self.key
        return self.key.model_copy(update={"execution": f"{self.key.execution}:{beginning}"})

    @property
    def id(self) -> str:
        """A name that no other beginning of a run has, here or on another machine."""
        parts = (self.key.run, self.key.execution, self.beginning)
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    @property
    def placement(self) -> JsonObject:
        """Where the run's processes live: the request's `runtime`, as run.json has it; empty where that was lost.

        An agent of this machine can write there.
        """
        said = self._facts().get("runtime")
        if isinstance(said, str):  # as versions of before have it
            return {"kind": said} if said else {}
        if isinstance(said, dict) and isinstance(said.get("kind"), str):
            return said
        return {} if self.has_mirrors else {"kind": "local"}

    @property
    def is_local(self) -> bool:
        """Whether the run's processes live on this machine."""
        return self.placement.get("kind") == "local"

    @property
    def has_mirrors(self) -> bool:
        """Whether journals here are copies: see `runtimes.mirror`."""
        return any(os.path.lexists(each / "journal.epoch") for each in self.all_attempts())

    @property
    def is_removed(self) -> bool:
        """Whether what the run had on another machine has been removed, by what is written down here.

        An agent of this machine can have written it.
        """
        return not self.is_local and os.path.lexists(self.path / "removed")

    def note_removed(self) -> None:
        """Record that. Raises OSError."""
        (self.path / "removed").touch(mode=0o600)

    def note_left(self) -> None:
        """Record that something is left there all the same. Raises OSError."""
        (self.path / "removed").unlink(missing_ok=True)

    @property
    def is_given_up(self) -> bool:
        """Whether somebody has given up what the run has on a machine that cannot be reached."""
        return os.path.lexists(self.path / "given-up")

    def note_given_up(self) -> None:
        """Record that. Raises OSError."""
        (self.path / "given-up").touch(mode=0o600)

    @property
    def baseline(self) -> dict[str, str]:
        """The `commit` of the workspace's files before the first process, the `workspace`, and where that is a worktree
        the directory that was `asked` for; empty without one.

        An agent of this machine can write there.
        """
        facts = self._read("baseline.json")
        return {name: value for name, value in facts.items() if isinstance(value, str)}

    def note_baseline(self, commit: str, workspace: Path, asked: Path | None = None) -> None:
        """Record that, once: what a worker has recorded that was here before stays. Raises OSError."""
        beside = {"asked": str(asked)} if asked not in (None, workspace) else {}
        facts = json.dumps({"commit": commit, "workspace": str(workspace), **beside})
        temporary = self.path / f"baseline.json.{secrets.token_hex(8)}"
        disk.write_new(temporary, facts)
        try:
            os.link(temporary, self.path / "baseline.json")
        except FileExistsError:
            pass
        finally:
            temporary.unlink()

    def part(self, number: int) -> Part | None:
        """Where this agent took over from the one before it, and what it is told; None where it did not.

        An agent of this machine can write there.
        """
        facts = self._read(f"part-{number}.json")
        attempt, why, told = facts.get("attempt"), facts.get("why"), facts.get("told")
        if type(attempt) is not int or not isinstance(why, str) or not isinstance(told, str):
            return None
        return Part(attempt, why[:MAX_TOLD], told[:MAX_TOLD])

    def note_part(self, number: int, part: Part) -> None:
        """Record that. Raises OSError."""
        temporary = self.path / f"part-{number}.json.{secrets.token_hex(8)}"
        disk.write_new(temporary, json.dumps(asdict(part)))
        temporary.replace(self.path / f"part-{number}.json")

    def snapshot(self, attempt: int) -> Path:
        return self.path / "snapshots" / f"{attempt}.json"

    @property
    def tag(self) -> str:
        """The prefix of the marks of this run's processes."""
        return shim.tag_of(self.path.parents[1], f"{self.path.parent.name}/{self.path.name}")

    def attempt(self, number: int) -> Path:
        return self.path / "attempts" / str(number)

    def attempts(self) -> int:
        """The number of the newest attempt that had a process, 0 for none."""
        return max((number for number in map(int, self._attempt_names()) if self._was_used(number)), default=0)

    def require(self, attempts: int) -> None:
        """Check that this many processes have their files here. Raises RunGone if not, OSError if none can tell."""
        if (found := self.attempts()) >= attempts:
            return
        try:
            os.lstat(self.attempt(attempts) / "journal")
        except (FileNotFoundError, NotADirectoryError) as error:
            text = f"the run's directory is gone or empty: {self.path} holds {found} of its {attempts} attempts"
            raise RunGone(f"{text}; without what they wrote down it can neither go on nor begin anew") from error

    def all_attempts(self) -> list[Path]:
        """Every attempt's directory, whether or not a process came to be in it."""
        return [self.attempt(number) for number in sorted(map(int, self._attempt_names()))]

    def is_told_gone(self, attempt: int) -> bool:
        """Whether a worker has logged that this attempt's process is gone."""
        return os.path.lexists(self.path / f"gone-{attempt}")

    def tell_gone(self, attempt: int) -> bool:
        """The same, and record that one has from now on."""
        try:
            os.close(os.open(self.path / f"gone-{attempt}", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return True
        except OSError:
            return False  # a full disk: twice is better than never
        return False

    def _facts(self) -> dict[str, object]:
        return self._read("run.json")

    def _read(self, name: str) -> dict[str, object]:
        try:
            facts = json.loads(disk.read_text(self.path / name))
        except (OSError, ValueError, RecursionError) as error:
            if disk.exhaustion(error):
                raise
            return {}
        return facts if isinstance(facts, dict) else {}

    def _was_used(self, number: int) -> bool:
        return os.path.exists(self.attempt(number) / "journal")  # noqa: PTH110 - Path.exists raises on a disk that fails

    def _attempt_names(self) -> list[str]:
        return [name for name in disk.names(self.path / "attempts") if name.isdigit()]


def key_of_part(key: RunKey, part: int) -> RunKey:
    """A run's key as its agents have it (see RunDirectory.agent_key), as that of `fallback[part - 1]` has it; 0 is the
    first agent.
    """
    return key.model_copy(update={"execution": f"{key.execution}:fallback-{part}"}) if part else key
