"""The shim: one small program that owns one agent process and outlives whoever started it.

`python -I -S shim.py run [--foreground] DIRECTORY` reads a JSON spec on stdin, goes into the background (process 1 of a
container stays), starts the agent in a session of its own, appends all of its output to DIRECTORY/journal, obeys
commands on DIRECTORY/shim.sock, and stops the agent with everything that the agent ever started. One file on purpose,
longer than others: nothing but this is loaded for a shim's life.

What must not live here: anything that is not in the standard library of Python 3.9; asyncio, subprocess and typing,
each of which costs more memory than all of this; knowledge of any agent's protocol; the client's side (client.py).
"""

from __future__ import annotations

import bisect
import errno
import fcntl
import json
import os
import select
import selectors
import signal
import socket
import struct
import sys
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, ClassVar, NoReturn, Union

    Descendants = dict[int, str]
    Table = Union["ProcTable", "PsTable"]

PROTOCOL = 1
MIN_PROTOCOL = 1
MARK = "STEERSMAN_MARK"
FILES = "files"
NAME = "steersman-shim"  # how ps and other shims know a shim; execve takes it away from the agent
READ_SIZE = 64 * 1024
FORK_MESSAGE = struct.Struct("!cQ")
OUTPUT_READ_SIZE = 32 * 1024  # a read of nothing but empty lines becomes 40 times as much journal
PIECE_SIZE = 224 * 1024  # a longer line is journaled in pieces; one more read on top of it makes 256 KiB
COMMAND_LIMIT = 64 * 1024 * 1024
REPLIES_LIMIT = 64 * 1024
INDEX_STEP = 1024 * 1024
PEERS_LIMIT = 256
JOURNAL_RETRY_S = 1.0
LEAD_LIMIT = 64 * 1024 * 1024  # an agent that floods is held back, as by a pipe, while its controller cannot keep up
JOURNAL_PATIENCE_S = 10.0
LEAVE_S = 1.0
LOOK_S = 0.75  # how often it is looked whether our directory is still there; gone is what is not there twice
GONE = "the directory of its run is gone"
STATE_SIZE = 16 * 1024
LOCK_PATIENCE_S = 0.1  # a probe or a tombstone being written holds the lock for microseconds
LEFTOVERS_KILL_S = 0.5
GIVE_UP_S = 5.0
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
SO_PEERPIDFD = 77
M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD = 128 * 1024  # fixed, so that what a big command took goes back to the system


class Refused(Exception):
    """What cannot be done, as a code for programs and a sentence for people."""

    def __init__(self, code: str, message: str, **extra: object) -> None:
        super().__init__(message)
        self.code = code
        self.reply: dict[str, object] = {"ok": False, "error": code, "message": message, **extra}


def log(message: str) -> None:
    """A line for shim.log."""
    try:
        os.write(2, f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {message}\n".encode("utf-8", "replace"))
    except OSError:
        pass  # a full disk must not stop the agent


# ---------------------------------------------------------------------------------------------------- reading the spec


def seconds(source: dict[str, Any], name: str, default: float, most: float = 1e9) -> float:
    """A number of seconds of a JSON object."""
    value = source.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise Refused("invalid", f"{name} must be a number of seconds from 0 to {most:g}")
    return float(value)


def text_bytes(value: object, name: str) -> bytes:
    r"""UTF-8, where a lone surrogate from \udc80 to \udcff stands for a raw byte (PEP 383)."""
    if not isinstance(value, str):
        raise Refused("invalid", f"{name} must be a string")
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Refused("invalid", f"{name} holds a lone surrogate") from None


def c_string(value: object, name: str) -> bytes:
    """What execve takes."""
    data = text_bytes(value, name)
    if b"\0" in data:
        raise Refused("invalid", f"{name} holds a NUL")
    return data


def is_socket(stdin: object) -> bool:
    """What the agent's stdin is to be."""
    if stdin not in ("pipe", "socket"):
        raise Refused("invalid", "stdin must be 'pipe' or 'socket'")
    return stdin == "socket"


def mark_tag(value: object) -> str:
    """What the mark of the agent's processes begins with, for whoever looks for them without our files."""
    if not isinstance(value, str) or len(value) > 24 or value.strip("0123456789abcdef"):
        raise Refused("invalid", "tag must be of up to 24 hexadecimal digits")
    return value


def command_id(value: object) -> str:
    """An id that fits into a record's header."""
    if not isinstance(value, str) or not 0 < len(value) <= 200 or value == "-":
        raise Refused("invalid", "id must be a string of 1 to 200 characters other than '-'")
    if not all("!" <= character <= "~" for character in value):
        raise Refused("invalid", "id must be of printable ASCII without spaces")
    return value


def file_name(value: str) -> bytes:
    """A name of a file beside the agent: one that cannot lead elsewhere."""
    name = c_string(value, "files")
    if not 0 < len(name) <= 100 or name.startswith(b".") or b"/" in name:
        raise Refused("invalid", "files holds a name that is empty, too long, hidden or a path")
    return name


def private_files(source: object) -> dict[bytes, bytes]:
    """What is put beside the agent, by its name."""
    if not isinstance(source, dict):
        raise Refused("invalid", "files must be an object of strings")
    return {file_name(name): text_bytes(data, "files") for name, data in source.items()}


def controller_token(value: object) -> str:
    """What a controller is known by whose connections are of several processes; empty for none."""
    if value is None:
        return ""
    if not isinstance(value, str) or not 16 <= len(value) <= 64:
        raise Refused("invalid", "controller must be a string of 16 to 64 characters")
    return value


ALREADY_FINISHED: dict[str, object] = {
    "outcome": "already_finished",
    "how": "exited",
    "processes": 0,
    "took_ms": 0,
    "left": [],
}


class StopTimes:
    """When a stop sends SIGTERM and SIGKILL, in seconds from the request."""

    __slots__ = ("kill_after_s", "terminate_after_s")

    def __init__(self, source: object, terminate_after_s: float = 0.25, kill_after_s: float = 1.5) -> None:
        if not isinstance(source, dict):
            raise Refused("invalid", "stop must be an object")
        self.terminate_after_s = seconds(source, "terminate_after_s", terminate_after_s, 86400)
        self.kill_after_s = seconds(source, "kill_after_s", kill_after_s, 86400)


class Spec:
    """What to start, checked. The environment holds secrets: it is never written anywhere."""

    def __init__(self, raw: bytes) -> None:
        try:
            spec = json.loads(raw.decode())
        except (ValueError, RecursionError) as error:
            raise Refused("invalid", f"the spec is not JSON: {error}") from None
        if not isinstance(spec, dict):
            raise Refused("invalid", "the spec must be an object")
        if spec.get("protocol") != PROTOCOL:
            raise Refused("invalid", f"this shim speaks protocol {PROTOCOL}, the spec says {spec.get('protocol')!r}")
        argv, env, writes = spec.get("argv"), spec.get("env"), spec.get("input", [])
        if not isinstance(argv, list) or not argv or not argv[0]:
            raise Refused("invalid", "argv must be a list that is not empty")
        self.argv = [c_string(word, "argv") for word in argv]
        self.program = str(argv[0])
        if not isinstance(env, dict):
            raise Refused("invalid", "env must be an object of strings")
        self.env = {c_string(name, "env"): c_string(value, "env") for name, value in env.items()}
        if any(not name or b"=" in name for name in self.env):
            raise Refused("invalid", "env holds a name that is empty or has a '='")
        self.cwd = c_string(spec.get("cwd"), "cwd")
        if not self.cwd.startswith(b"/"):
            raise Refused("invalid", "cwd must be an absolute path")
        if not isinstance(writes, list) or not all(isinstance(write, dict) for write in writes):
            raise Refused("invalid", "input must be a list of objects")
        self.writes = [(command_id(write.get("id")), text_bytes(write.get("data"), "data")) for write in writes]
        if len({ident for ident, _ in self.writes}) < len(self.writes):
            raise Refused("invalid", "input has the same id twice")
        self.files = private_files(spec.get("files", {}))
        self.close_stdin = spec.get("close_stdin", False) is True
        self.cwd_resolved = spec.get("cwd_resolved", False) is True
        self.socket_stdin = is_socket(spec.get("stdin", "pipe"))
        self.tag = mark_tag(spec.get("tag", ""))
        self.lease_s = seconds(spec, "lease_s", 900.0)
        self.stop = StopTimes(spec.get("stop", {}))


# ------------------------------------------------------------------------------------------------------------ processes


class Libc:
    """prctl, where there is one; without it the process table has to look for the mark of the agent's processes."""

    def __init__(self) -> None:
        self._prctl: Callable[..., int] | None = None
        self._move: Callable[[int, bytes, int], object] | None = None
        if sys.platform == "linux":
            try:
                import ctypes

                libc = ctypes.CDLL(None)
                self._prctl = libc.prctl
                self._move = ctypes.memmove
                libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)  # not in every libc
            except (ImportError, OSError, AttributeError):
                pass  # no ctypes, or another libc

    def prctl(self, option: int, value: int | bytes) -> bool:
        return self._prctl is not None and self._prctl(option, value, 0, 0, 0) == 0

    def name(self, directory: bytes) -> None:
        """Let ps show a shim and whose it is, in place of the launcher's command line."""
        fields = read_small("/proc/self/stat").rpartition(b")")[2].split()
        if not self.prctl(PR_SET_NAME, NAME.encode()) or self._move is None or len(fields) < 47:
            return
        start, end = int(fields[45]), int(fields[46])
        if 0 < start < end:
            title = (NAME.encode() + b"\0" + directory)[: end - start - 1]
            self._move(start, title.ljust(end - start, b"\0"), end - start)


def read_small(path: str) -> bytes:
    """The content of a file of /proc, empty where its process is gone or not ours to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return read_all(fd)
    except OSError:
        return b""
    finally:
        os.close(fd)


def hidden(pid: int) -> bool:
    """Whether a process that /proc does not show (hidepid) is there all the same, and another user's."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def concealed(pid: int) -> bool:
    """Whether a process that /proc does not show (hidepid) is there all the same, and ours to end. Zombies it shows."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def closure(root: int, children: dict[int, list[int]]) -> list[int]:
    """All that descend from a process."""
    found = list(children.get(root, ()))
    for pid in found:  # grows while it is walked
        found.extend(children.get(pid, ()))
    return found


class ProcTable:
    """Who descends from this process, by /proc. With a mark (no subreaper) also who has it in its environment."""

    snapshot_s: float | None = None

    def __init__(self, mark: str | None = None, root: str = "/proc", *, tag: bool = False) -> None:
        """`tag`: the mark is only the beginning of those that are meant."""
        self.proc = root
        self._mark = b"\0%b=%b%b" % (MARK.encode(), mark.encode(), b"" if tag else b"\0") if mark else None
        self._quick = mark is None and os.path.exists(f"{root}/self/task/{os.getpid()}/children")

    def alive(self, root: int | None = None) -> Descendants:
        """Process id to state letter, zombies left out."""
        root = root or os.getpid()
        pids = self._walk(root) if self._quick else self._scan(root)
        found = {}
        for pid in pids:
            fields = self.stat(pid)
            # A leader that has ended while other threads of it work is shown as a zombie too.
            if fields and (fields[0] not in "ZX" or int(fields[17]) > 1):
                found[pid] = fields[0]
            elif not fields and concealed(pid):
                found[pid] = "?"
        return found

    def certain(self) -> bool:
        """Whether having no child left proves that there is no descendant."""
        return self._mark is None

    def objection(self, peer: int) -> str | None:
        """Why a process must not speak to this shim: it is an agent's, this one's or another's. None for all others.

        Shims that this one descends from are no reason: Steersman may be at work within an agent of another.
        """
        lineage, here = self.lineage(peer), os.getpid()
        if lineage is None:
            return "it is gone"
        if here in lineage or (self._mark and peer in self.alive()):
            return "it descends from the agent"
        shims = [pid for pid, is_shim in lineage.items() if is_shim]
        if shims and not set(shims) <= set(self.lineage(here) or ()):
            return "it descends from the agent of another shim"
        return None

    def lineage(self, pid: int) -> dict[int, bool] | None:
        """A process and what it descends from, up to the first that is another user's and hidden, each with whether it
        is a shim; None where one of them is gone.
        """
        found: dict[int, bool] = {}
        if pid <= 0:
            return None
        while pid > 0 and pid not in found:
            head, _, rest = read_small(f"{self.proc}/{pid}/stat").rpartition(b")")
            if not rest:
                return found if hidden(pid) else None
            found[pid] = head.partition(b"(")[2] == NAME.encode()
            pid = int(rest.split()[1])
        return found

    def start_time(self, pid: int) -> int:
        fields = self.stat(pid)
        return int(fields[19]) if fields else 0

    def stat(self, pid: int) -> list[str]:
        """The fields of /proc/PID/stat from the state on; the name before them may hold anything."""
        return read_small(f"{self.proc}/{pid}/stat").decode("utf-8", "replace").rpartition(")")[2].split()

    def _environ(self, pid: int, fields: list[str]) -> bytes:
        """Of a leader that has ended, its other threads still have it."""
        if fields[0] not in "ZX" or int(fields[17]) < 2:
            return read_small(f"{self.proc}/{pid}/environ")
        try:
            tasks = os.listdir(f"{self.proc}/{pid}/task")
        except OSError:
            return b""
        return b"\0".join(read_small(f"{self.proc}/{pid}/task/{task}/environ") for task in tasks)

    def _walk(self, root: int) -> list[int]:
        found = [root]
        for pid in found:
            try:
                tasks = os.listdir(f"{self.proc}/{pid}/task")
            except OSError:
                continue
            for task in tasks:
                found.extend(int(child) for child in read_small(f"{self.proc}/{pid}/task/{task}/children").split())
        return found[1:]

    def _scan(self, root: int) -> list[int]:
        children: dict[int, list[int]] = {}
        marked = []
        for name in os.listdir(self.proc):
            if not name.isdigit():
                continue
            pid = int(name)
            fields = self.stat(pid)
            if fields:
                children.setdefault(int(fields[1]), []).append(pid)
                if self._mark and self._mark in b"\0" + self._environ(pid, fields):
                    marked.append(pid)
        found = closure(root, children)
        for pid in marked:
            found.extend([pid, *closure(pid, children)])
        return [pid for pid in dict.fromkeys(found) if pid != root]


class PsTable:
    """The same by `ps` (macOS). Weaker: an orphan is known only by the mark or because a snapshot saw it before."""

    snapshot_s: float | None = 5.0

    def __init__(self, mark: str) -> None:
        self._mark = f"{MARK}={mark}"
        self._known: dict[int, str] = {}

    def alive(self, root: int | None = None) -> Descendants:
        root = root or os.getpid()
        rows = self._rows()
        children: dict[int, list[int]] = {}
        for pid, (parent, _, _, _) in rows.items():
            children.setdefault(parent, []).append(pid)
        known = [pid for pid, born in self._known.items() if pid in rows and rows[pid][1] == born]
        marked = [pid for pid, row in rows.items() if self._mark in row[3]]
        found = closure(root, children)
        for pid in (*known, *marked):
            found.extend([pid, *closure(pid, children)])
        alive = {pid: rows[pid][2] for pid in found if pid != root and rows[pid][2] != "Z"}
        self._known = {pid: rows[pid][1] for pid in alive}
        return alive

    def certain(self) -> bool:
        return False

    def objection(self, peer: int) -> str | None:
        return "it descends from the agent" if peer in self.alive() else None

    def lineage(self, pid: int) -> dict[int, bool] | None:
        return None

    def start_time(self, pid: int) -> int:
        import calendar

        born = self._rows().get(pid, (0, "", "", ""))[1]
        return calendar.timegm(time.strptime(born)) if born else 0

    def _rows(self) -> dict[int, tuple[int, str, str, str]]:
        """Parent, start, state letter, command line with environment, by process id."""
        import subprocess

        every = "-axwwE" if sys.platform == "darwin" else "axwwe"
        command = ["/bin/ps", every, "-o", "pid=,ppid=,lstart=,stat=,command="]
        env = {"LC_ALL": "C", "TZ": "UTC0"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as ps:
            output = ps.communicate()[0].decode("utf-8", "replace")
        rows = {}
        for line in output.splitlines():
            words = line.split(None, 8)
            if len(words) > 7 and words[0].isdigit() and int(words[0]) != ps.pid:
                born, rest = " ".join(words[2:7]), words[8] if len(words) > 8 else ""
                rows[int(words[0])] = (int(words[1]), born, words[7][0], rest)
        return rows


def send(pid: int, number: int) -> None:
    """A signal, to whoever is still there."""
    try:
        os.kill(pid, number)
    except OSError:
        pass  # gone already, or not ours (a setuid program): whether it is left is looked at, not assumed


def kill_all(table: Table, root: int | None = None) -> list[int]:
    """SIGKILL to every descendant, frozen first so that a forker cannot outrun the walk."""
    seen: set[int] = set()
    for _ in range(20):
        fresh = [pid for pid in table.alive(root) if pid not in seen]
        if not fresh:
            break
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        seen.update(fresh)
    for pid in seen:
        send(pid, signal.SIGKILL)
    return list(seen)


class StopProcedure:
    """One stop, counted from its request: SIGTERM to every descendant, SIGKILL to every descendant, then give up."""

    def __init__(self, table: Table, reason: str, why: str | None, times: StopTimes) -> None:
        self.reason = reason
        self.why = why
        self.wake_at = self.started_at = time.monotonic()
        self.terminate_at = self.started_at + times.terminate_after_s
        self.kill_at = self.started_at + times.kill_after_s
        self.report: dict[str, object] | None = None
        self._table = table
        self._how = "exited"
        self._pause = 0.01
        self._terminated: set[int] = set()
        self._seen = set(table.alive())

    @property
    def processes(self) -> int:
        return len(self._seen)

    def hurry(self, terminate_after_s: float, kill_after_s: float) -> None:
        now = self.wake_at = time.monotonic()
        self.terminate_at = min(self.terminate_at, now + terminate_after_s)
        self.kill_at = min(self.kill_at, now + kill_after_s)

    def step(self) -> None:
        """Do what is due. Call it when `wake_at` has come."""
        now = time.monotonic()
        if now >= self.kill_at + GIVE_UP_S:
            self.finish(left=sorted(self._table.alive()))
        elif now >= self.kill_at:
            if self._how != "killed":
                self._pause = 0.005
            killed = kill_all(self._table)
            if killed:
                self._how = "killed"
                self._seen.update(killed)
            self._sleep(0.1, self.kill_at + GIVE_UP_S)
        elif now >= self.terminate_at:
            self._terminate()
            self._sleep(0.2, self.kill_at)
        else:
            self.wake_at = min(self.terminate_at, self.kill_at)

    def finish(self, left: list[int] | None = None) -> None:
        """None left is proven by None: a table that shows none may just not be allowed to show it."""
        self.report = {
            "outcome": "stopped" if left is None else "unverified",
            "how": self._how,
            "processes": len(self._seen),
            "took_ms": round((time.monotonic() - self.started_at) * 1000),
            "left": (left or [])[:100],
        }
        if self.why is not None:
            self.report["reason"] = self.why

    def _terminate(self) -> None:
        for pid, state in self._table.alive().items():
            if pid not in self._terminated:
                send(pid, signal.SIGTERM)
                if state == "T":
                    send(pid, signal.SIGCONT)
                self._terminated.add(pid)
                self._seen.add(pid)
                self._how = "terminated"

    def _sleep(self, longest: float, until: float) -> None:
        self.wake_at = min(time.monotonic() + self._pause, until)
        self._pause = min(self._pause * 2, longest)


# -------------------------------------------------------------------------------------------------------------- journal


class Journal:
    r"""`<seq> <unix_ms> <stream> <length> <id or ->\n<bytes>\n`, appended. A write that fails is tried again."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.seq = 0
        self.size = 0
        self.retry_at: float | None = None
        self.error = ""
        self._pending = bytearray()
        self._index = [(0, 0)]  # (records before, offset), about one for each INDEX_STEP bytes

    def append(self, stream: str, data: bytes | bytearray, ident: str = "-") -> int:
        """Queue a record for `flush`; the answer is where its bytes will be in the file."""
        offset = self._extend()
        self.seq += 1
        header = b"%d %d %b %d %b\n" % (self.seq, time.time() * 1000, stream.encode(), len(data), ident.encode())
        self._pending += header
        self._pending += data
        self._pending += b"\n"
        return offset + len(header)

    def append_lines(self, stream: str, lines: list[bytes]) -> None:
        """The same for many lines that came at once."""
        self._extend()
        name, now = stream.encode(), int(time.time() * 1000)
        first = self.seq + 1
        records = [b"%d %d %b %d -\n%b\n" % (seq, now, name, len(line), line) for seq, line in enumerate(lines, first)]
        self._pending += b"".join(records)
        self.seq += len(lines)

    @property
    def unwritten(self) -> bool:
        """Whether records wait for room."""
        return bool(self._pending)

    def _extend(self) -> int:
        offset = self.size + len(self._pending)
        if offset - self._index[-1][1] >= INDEX_STEP:
            self._index.append((self.seq, offset))
        return offset

    def flush(self) -> bool:
        """Whether everything is in the file."""
        while self._pending:
            try:
                written = os.write(self.fd, self._pending)
            except OSError as error:
                if self.retry_at is None:
                    log(f"the journal cannot be written: {error}; the agent is held back")
                self.retry_at = time.monotonic() + JOURNAL_RETRY_S
                self.error = str(error)
                return False
            self.size += written
            del self._pending[:written]
        self.retry_at = None
        return True

    def offset_after(self, seq: int) -> int:
        """Where the record after `seq` begins."""
        if seq >= self.seq:
            return self.size + len(self._pending)
        at, offset = self._index[bisect.bisect_right(self._index, (seq, 1 << 62)) - 1]
        chunk, base = b"", offset
        while at < seq:
            end = chunk.find(b"\n", offset - base) if offset - base < len(chunk) else -1
            if end < 0:
                if base == offset and chunk:
                    break  # not in the file yet
                chunk, base = os.pread(self.fd, READ_SIZE, offset), offset
                if not chunk:
                    break
                continue
            offset = base + end + 2 + int(chunk[offset - base : end].split(b" ")[3])
            at += 1
        return offset


class Output:
    """One of the agent's output pipes, cut into lines; of a line that is too long for that, into pieces."""

    def __init__(self, stream: str, fd: int) -> None:
        self.stream = stream
        self.fd = fd
        self._tail = bytearray()
        self._pieces = False

    def read(self, journal: Journal) -> bool | None:
        """True after some bytes, None where there are none now, False at the end of the pipe."""
        try:
            data = os.read(self.fd, OUTPUT_READ_SIZE)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.finish(journal)
            return False
        lines = data.split(b"\n")
        if len(lines) > 1:
            if self._tail or self._pieces:
                self._tail += lines[0]
                self.finish(journal, complete=True)
                lines = lines[1:]
            if len(lines) > 1:
                journal.append_lines(self.stream, lines[:-1])
        self._tail += lines[-1]
        if len(self._tail) >= PIECE_SIZE:
            journal.append(self.stream + "+", self._tail)
            self._tail.clear()
            self._pieces = True
        return True

    def finish(self, journal: Journal, *, complete: bool = False) -> None:
        """End the line that is open, which the agent may have left without a newline."""
        if self._tail or self._pieces or complete:
            journal.append(self.stream, self._tail)
            self._tail.clear()
            self._pieces = False


class Input:
    """The agent's stdin. What is to be written is read back from the journal, so a slow agent costs no memory."""

    def __init__(self, fd: int, journal: Journal, selector: selectors.BaseSelector) -> None:
        self.open = True
        self.closing: str | None = None
        self.written: dict[str, int] = {}
        self._fd = fd
        self._journal = journal
        self._selector = selector
        self._watched = False
        self._queue: deque[tuple[int, int]] = deque()

    def write(self, ident: str, data: bytes) -> int:
        offset = self._journal.append("in", data, ident)
        self.written[ident] = self._journal.seq
        if data:
            self._queue.append((offset, len(data)))
        return self._journal.seq

    def pump(self) -> None:
        """Write what the pipe takes now; more when it takes more."""
        full = False
        while self.open and self._queue and not full:
            offset, length = self._queue[0]
            count = min(length, READ_SIZE, self._journal.size - offset)
            if count <= 0:
                break  # not in the journal yet
            try:
                done = os.write(self._fd, os.pread(self._journal.fd, count, offset))
            except BlockingIOError:
                full = True
            except OSError:
                self.close("-")  # the agent has closed its stdin
            else:
                self._queue[0] = (offset + done, length - done)
                if done == length:
                    self._queue.popleft()
        if self.closing is not None and not self._queue:
            self.close(self.closing)
        self._watch(wanted=full)

    def close(self, ident: str) -> None:
        """Now, whatever is queued."""
        if self.open:
            self._watch(wanted=False)
            self.open = False
            self._queue.clear()
            os.close(self._fd)
            self._journal.append("eof", b"", ident)

    def _watch(self, *, wanted: bool) -> None:
        if wanted != self._watched:
            self._watched = wanted
            if wanted:
                self._selector.register(self._fd, selectors.EVENT_WRITE, lambda _: None)
            else:
                self._selector.unregister(self._fd)


# ------------------------------------------------------------------------------------------------------------- the shim


class Peer:
    """One connection: commands and replies, or after `attach` the journal from an offset."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.sock = sock
        self.pid = pid
        self.inbox = bytearray()
        self.scanned = 0
        self.skipping = False
        self.outbox = bytearray()
        self.greeted = False
        self.epoch: int | None = None
        self.offset: int | None = None
        self.waiting = 0
        self.ended = False
        self.blocked = False
        self.mask = 0

    def lines(self) -> Iterator[bytes | None]:
        """The complete lines received; None for one that was too long."""
        while self.offset is None:
            end = self.inbox.find(b"\n", self.scanned)
            if end < 0:
                self.scanned = len(self.inbox)
                if self.scanned > COMMAND_LIMIT or self.skipping:
                    self.inbox.clear()
                    self.scanned = 0
                    if not self.skipping:
                        self.skipping = True
                        yield None
                return
            line = bytes(self.inbox[:end])
            del self.inbox[: end + 1]
            self.scanned = 0
            if self.skipping:
                self.skipping = False
            elif line.strip():
                yield line


class Shim:
    """The loop: the agent's pipes, its processes, the connections and the clocks."""

    def __init__(
        self, spec: Spec, agent: int, pipes: tuple[int, int, int], table: Table, mark: str, directory: str
    ) -> None:
        self.agent = agent
        self.table = table
        self.mark = mark
        self.spec = spec
        self.state = "running"
        self.exit: dict[str, object] | None = None
        self.epoch: int | None = None
        self.controller = 0
        self.token = ""
        self.turned_away = 0
        self.started_at = time.time()
        self.start_time = table.start_time(agent)
        self.boot_id = boot_id()
        self.journal = Journal("journal")
        self.place = os.path.join(directory, "journal")
        self.missing = False
        self.look_at = time.monotonic() + LOOK_S
        self.selector = selectors.DefaultSelector()
        self.stdin = Input(pipes[0], self.journal, self.selector)
        self.outputs = [Output("out", pipes[1]), Output("err", pipes[2])]
        self.peers: set[Peer] = set()
        self.stopping: list[tuple[Peer, object]] = []
        self.stop_procedure: StopProcedure | None = None
        self.ended = False  # no process is left, or we have given up: only the exit record is missing
        self.leaving = False
        self.leave_at: float | None = None
        self.leftovers = 0
        self.reason = "exited"
        self.report: dict[str, object] | None = None
        self.agent_status: int | None = None
        self.has_children = True
        self.renewed_at = time.monotonic()
        self.snapshot_at = self.renewed_at + (table.snapshot_s or 0)
        self._reading = False
        for fd in pipes:
            os.set_blocking(fd, False)

    # -- the loop

    def open(self) -> None:
        """Listen, and give the agent its first input. After this the shim can be reached."""
        if os.path.lexists("shim.sock"):
            os.unlink("shim.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind("shim.sock")
        os.chmod("shim.sock", 0o600)
        self.listener.listen(128)
        self.listener.settimeout(0)
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self._watch_outputs(wanted=True)
        for ident, data in self.spec.writes:
            self.stdin.write(ident, data)
        self.spec.writes = []
        self.spec.env = {}
        if self.spec.close_stdin:
            self.stdin.closing = "-"
        if not self.journal.flush():
            raise Refused("os_error", f"the journal cannot be written: {self.journal.error}")
        self.save()
        signals, wakeup = os.pipe()
        os.set_blocking(signals, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        self.selector.register(signals, selectors.EVENT_READ, lambda _: self._signalled(signals))
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)

    def run(self) -> None:
        try:
            while True:
                self.tick()
                self.feed()
                if self.leaving and self._may_leave():
                    return
                for key, mask in self.selector.select(self._timeout()):
                    key.data(mask)
        except BaseException:
            for _ in range(100):
                kill_all(self.table)
                self.reap()
                if not self.has_children:
                    break
                time.sleep(0.01)
            raise

    def tick(self) -> None:
        """Everything that time or a child's end makes due."""
        self.reap()
        now = time.monotonic()
        if self.journal.retry_at is not None and now >= self.journal.retry_at:
            self.journal.flush()
        expired = self.stop_procedure is None and now >= self.renewed_at + self.spec.lease_s
        if expired and not self.ended:
            log("no controller for longer than the lease: stopping")
            self.begin("lease", None, self.spec.stop)
        if now >= self.look_at and not self.leaving:
            self._look()
        if self.agent_status is not None and not self.ended:
            self._agent_ended()
        if self.stop_procedure is not None:
            self._advance_stop(self.stop_procedure, now)
        if self.table.snapshot_s and now >= self.snapshot_at and not self.ended:
            self.table.alive()
            self.snapshot_at = now + self.table.snapshot_s
        if self.ended and self.exit is None and self.journal.retry_at is None:
            self._finish()
        elif expired and self.ended and not self.leaving:
            self.leave()

    def feed(self) -> None:
        """Hand on what has come in: the journal to its file, the file to the agent and to the attached."""
        if self.journal.retry_at is None:
            self.journal.flush()
        self.stdin.pump()
        if self.journal.retry_at is None:
            self.journal.flush()  # closing stdin is a record too
        self._watch_outputs(wanted=self.journal.retry_at is None and not self._far_ahead())
        for peer in list(self.peers):
            if peer.offset is not None and not peer.blocked:
                self._send(peer)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.has_children = False
                return
            if pid == 0:
                self.has_children = True
                return
            if pid == self.agent and self.agent_status is None:
                self.agent_status = status

    def _timeout(self) -> float:
        now = time.monotonic()
        due = [now + 3600.0]
        if self.stop_procedure is not None:
            due.append(self.stop_procedure.wake_at)
        elif not self.leaving:
            due.append(self.renewed_at + self.spec.lease_s)
        if self.journal.retry_at is not None:
            due.append(self.journal.retry_at)
        if not self.leaving:
            due.append(self.look_at)
        if self.table.snapshot_s and not self.ended:
            due.append(self.snapshot_at)
        if self.leave_at is not None and self.leave_at > now:
            due.append(self.leave_at)
        return max(0.0, min(due) - now)

    def _signalled(self, fd: int) -> None:
        if signal.SIGTERM not in os.read(fd, 4096):
            return
        log("SIGTERM: stopping the agent")
        if not self.ended:
            self.begin("terminated", None, self.spec.stop)
        self.leave()

    def _look(self) -> None:
        """Without its directory nobody finds this shim, and what its agent does is not written down for anybody."""
        self.look_at = time.monotonic() + LOOK_S
        before, self.missing = self.missing, self._is_gone()
        if before and self.missing:
            log("the directory is gone: stopping the agent")
            if not self.ended:
                self.begin("terminated", GONE, self.spec.stop)
            self.leave()

    def _is_gone(self) -> bool:
        """Whether the path of the journal leads to none, or to another. What cannot be looked at is not gone."""
        try:
            found, own = os.stat(self.place), os.fstat(self.journal.fd)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino)

    def leave(self) -> None:
        """Go as soon as nothing is left to do."""
        self.leaving = True
        self.leave_at = time.monotonic() + LEAVE_S

    def _may_leave(self) -> bool:
        """After the end, when everybody has read everything; who does not read is not waited for."""
        if not self.ended or self.stop_procedure is not None or self.leave_at is None:
            return False
        now = time.monotonic()
        if self.exit is None:  # the disk is full: whoever wants us gone cannot wait for ever
            return now >= self.leave_at + JOURNAL_PATIENCE_S
        behind = any(
            peer.outbox or (peer.offset is not None and peer.offset < self.journal.size) for peer in self.peers
        )
        return not behind or now >= self.leave_at

    # -- stopping

    def begin(self, reason: str, why: str | None, times: StopTimes) -> StopProcedure:
        """Start a stop, or make the one at work as quick as this one would be."""
        if self.stop_procedure is not None:
            self.stop_procedure.hurry(times.terminate_after_s, times.kill_after_s)
            return self.stop_procedure
        self.stop_procedure = procedure = StopProcedure(self.table, reason, why, times)
        if times.terminate_after_s <= 0:
            # A SIGTERM that is due now is not to wait for the loop, nor for the disk. Stdin stays open: an agent could
            # take its end for an answer, and go on.
            procedure.step()
        else:
            self.stdin.close("-")
        if self.exit is None:
            self.state = "stopping"
            self.save()
        return procedure

    def _agent_ended(self) -> None:
        if self.stop_procedure is None:
            if self._none_left():
                self.ended = True
                return
            procedure = self.begin("exited", None, StopTimes({}, 0.0, LEFTOVERS_KILL_S))
            self.leftovers = procedure.processes
        elif self.stop_procedure.terminate_at > time.monotonic():
            self.stop_procedure.hurry(0.0, LEFTOVERS_KILL_S)  # the agent has used its grace

    def _none_left(self) -> bool:
        return not self.has_children and (self.table.certain() or not self.table.alive())

    def _advance_stop(self, procedure: StopProcedure, now: float) -> None:
        proven = not self.has_children and self.table.certain()
        if not proven and now < procedure.wake_at:
            return
        if not proven and not self._none_left():
            procedure.step()
            self.reap()
            proven = self._none_left()
        else:
            proven = True
        if proven and procedure.report is None:
            procedure.finish()
        if procedure.report is not None:
            self._end_stop(procedure, procedure.report)

    def _end_stop(self, procedure: StopProcedure, report: dict[str, object]) -> None:
        self.stop_procedure = None
        if not self.ended:
            self.ended = True
            self.reason = procedure.reason
            self.report = report if procedure.processes or procedure.reason != "exited" else None
        for peer, ident in self.stopping:
            peer.waiting -= 1
            self._reply(peer, {"id": ident, "ok": True, **report})
        self.stopping.clear()

    def _finish(self) -> None:
        """Take what is left in the pipes and close the journal: no record comes after `exit`."""
        self.stdin.close("-")
        until = time.monotonic() + 1.0  # somebody outside of the tree may hold a pipe and flood it
        for output in list(self.outputs):
            while self.journal.flush():
                if not output.read(self.journal) or time.monotonic() > until:
                    break
            if self.journal.retry_at is not None:
                return
            output.finish(self.journal)
            self._drop(output)
        status = self.agent_status
        code = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None
        number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
        ending: dict[str, object] = {"code": code, "signal": number, "reason": self.reason}
        ending.update(stop=self.report, leftovers=self.leftovers)
        self.journal.append("exit", json.dumps(ending).encode())
        self.exit = ending
        self.state = "exited"
        self.renewed_at = time.monotonic()
        if self.leaving:
            self.leave()
        self.journal.flush()
        self.save()

    # -- the agent's pipes

    def _far_ahead(self) -> bool:
        """Whether every controller that reads is far behind; with nobody reading the agent works on."""
        read = [peer.offset for peer in self.peers if peer.offset is not None and self._controls(peer)]
        return bool(read) and self.journal.size - max(read) > LEAD_LIMIT

    def _controls(self, peer: Peer) -> bool:
        return peer.epoch is not None and peer.epoch == self.epoch

    def _watch_outputs(self, *, wanted: bool) -> None:
        if wanted != self._reading:
            self._reading = wanted
            for output in self.outputs:
                if wanted:
                    self.selector.register(output.fd, selectors.EVENT_READ, lambda _, o=output: self._read(o))
                else:
                    self.selector.unregister(output.fd)

    def _read(self, output: Output) -> None:
        if self._reading and output in self.outputs and output.read(self.journal) is False:
            self._drop(output)

    def _drop(self, output: Output) -> None:
        if self._reading:
            self.selector.unregister(output.fd)
        os.close(output.fd)
        self.outputs.remove(output)

    # -- connections

    def _accept(self, _: int) -> None:
        try:
            sock, _address = self.listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                time.sleep(0.01)
            return
        uid, pid = peer_credentials(sock)
        if len(self.peers) >= PEERS_LIMIT:
            for each in [each for each in self.peers if each.ended and has_hung_up(each.sock)]:
                self._close(each)  # a reader that went while the agent was silent: nothing has been sent to it since
        if len(self.peers) >= PEERS_LIMIT or uid not in (os.getuid(), 0):
            sock.close()
            return
        sock.settimeout(0)
        objection = self.table.objection(pid) or ("it is gone" if has_ended(sock) else None)
        if objection is not None:
            self._turn_away(sock, pid, objection)
            return
        peer = Peer(sock, pid)
        self.peers.add(peer)
        self._watch(peer)

    def _turn_away(self, sock: socket.socket, pid: int, why: str) -> None:
        self.turned_away += 1
        if self.turned_away & (self.turned_away - 1) == 0:  # the 1st, 2nd, 4th, ...: an agent must not fill the disk
            log(f"process {pid} must not speak to this shim: {why} ({self.turned_away} turned away so far)")
        try:
            sock.send(json.dumps(Refused("not_admitted", f"not from process {pid}: {why}").reply).encode() + b"\n")
        except OSError:
            pass
        sock.close()

    def _watch(self, peer: Peer) -> None:
        if peer not in self.peers:
            return
        mask = 0 if peer.ended or len(peer.outbox) > REPLIES_LIMIT else selectors.EVENT_READ
        if peer.outbox or peer.blocked:
            mask |= selectors.EVENT_WRITE
        if mask == peer.mask:
            return
        if not peer.mask:
            self.selector.register(peer.sock, mask, lambda ready, p=peer: self._serve(p, ready))
        elif mask:
            self.selector.modify(peer.sock, mask, self.selector.get_key(peer.sock).data)
        else:
            self.selector.unregister(peer.sock)
        peer.mask = mask

    def _close(self, peer: Peer) -> None:
        if peer in self.peers:
            self.peers.discard(peer)
            if peer.mask:
                self.selector.unregister(peer.sock)
            peer.sock.close()
            peer.outbox.clear()

    def _serve(self, peer: Peer, ready: int) -> None:
        if peer in self.peers and ready & selectors.EVENT_READ:
            self._receive(peer)
        if peer in self.peers and ready & selectors.EVENT_WRITE:
            self._send(peer)

    def _receive(self, peer: Peer) -> None:
        try:
            data = peer.sock.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            self._close(peer)
            return
        peer.ended = not data
        if peer.offset is None:
            peer.inbox += data
            for line in peer.lines():
                self._obey(peer, line)
        self._send(peer)

    def _send(self, peer: Peer) -> None:
        """Replies first, then the journal; one chunk a turn, so that nobody waits for a quick reader."""
        try:
            while peer.outbox:
                del peer.outbox[: peer.sock.send(peer.outbox)]
            peer.blocked = False
            if peer.offset is not None and peer.offset < self.journal.size:
                peer.offset += peer.sock.send(os.pread(self.journal.fd, READ_SIZE, peer.offset))
                peer.blocked = peer.offset < self.journal.size
        except BlockingIOError:
            peer.blocked = True
        except OSError:
            self._close(peer)
            return
        if peer.offset is None:
            over = peer.ended and not peer.waiting
        else:
            over = self.exit is not None and self.journal.retry_at is None
        if over and not peer.outbox and not peer.blocked:
            self._close(peer)
        else:
            self._watch(peer)

    def _reply(self, peer: Peer, reply: dict[str, object]) -> None:
        if peer in self.peers:
            peer.outbox += json.dumps(reply).encode() + b"\n"
            self._watch(peer)

    # -- commands

    def _obey(self, peer: Peer, line: bytes | None) -> None:
        head: dict[str, object] = {}
        try:
            if line is None:
                raise Refused("too_long", f"a command may have {COMMAND_LIMIT} bytes")
            command = json.loads(line.decode())
            if not isinstance(command, dict):
                raise Refused("invalid", "a command must be an object")
            if isinstance(command.get("id"), (str, int)):
                head = {"id": command["id"]}
            reply = self._command(peer, command)
        except Refused as refused:
            reply = refused.reply
        except (ValueError, RecursionError) as error:
            reply = Refused("invalid", f"the command is not JSON: {error}").reply
        if reply is not None:
            self._reply(peer, {**head, **reply})

    def _command(self, peer: Peer, command: dict[str, Any]) -> dict[str, object] | None:
        op = command.get("op")
        if op == "hello":
            return self._hello(peer, command)
        if not peer.greeted:
            raise Refused("invalid", "say hello first")
        handler = self.COMMANDS.get(op) if isinstance(op, str) else None
        if handler is None:
            raise Refused("invalid", f"there is no command {op!r:.100}")
        if peer.epoch is not None:
            self._check_epoch(peer.epoch)
            self.renewed_at = time.monotonic()
        elif op in ("write", "close_stdin", "renew"):
            raise Refused("observer", f"{op} takes a controller: say hello with an epoch")
        return handler(self, peer, command)

    def _check_epoch(self, epoch: int) -> None:
        if self.epoch is not None and epoch < self.epoch:
            raise Refused("fenced", "a newer controller has taken over", epoch=self.epoch)

    def _hello(self, peer: Peer, command: dict[str, Any]) -> dict[str, object]:
        if peer.greeted:
            raise Refused("invalid", "hello was said already")
        newest = command.get("protocol")
        oldest = command.get("min_protocol", newest)
        if type(newest) is not int or type(oldest) is not int:
            raise Refused("invalid", "protocol must be a whole number")
        spoken = {"protocol": min(newest, PROTOCOL), "min_protocol": MIN_PROTOCOL}
        if spoken["protocol"] < max(oldest, MIN_PROTOCOL):
            message = f"this shim speaks protocol {MIN_PROTOCOL} to {PROTOCOL}, not {oldest} to {newest}"
            raise Refused("protocol", message, protocol=PROTOCOL, min_protocol=MIN_PROTOCOL)
        epoch = command.get("epoch")
        if epoch is not None:
            if type(epoch) is not int or not 0 <= epoch < 1 << 63:
                raise Refused("invalid", "epoch must be a whole number that is not negative, or null")
            token = controller_token(command.get("controller"))
            self._check_epoch(epoch)
            if epoch == self.epoch and peer.pid != self.controller and (not token or token != self.token):
                raise Refused("fenced", "another process has this epoch", epoch=self.epoch)
            self.renewed_at = time.monotonic()
            if epoch != self.epoch:
                self.epoch = epoch
                self.controller, self.token = peer.pid, token
                self.save()
                for other in list(self.peers):
                    if other.offset is not None and other.epoch is not None and other.epoch < epoch:
                        self._close(other)
        peer.greeted = True
        peer.epoch = epoch
        return {"ok": True, **spoken, "status": self.status()}

    def _write(self, peer: Peer, command: dict[str, Any]) -> dict[str, object]:
        ident = command_id(command.get("id"))
        full = Refused("journal_full", "the journal cannot be written now; try again with the same id")
        if ident in self.stdin.written:
            if self.journal.retry_at is not None:
                raise full
            return {"ok": True, "seq": self.stdin.written[ident], "duplicate": True}
        data = text_bytes(command.get("data"), "data")
        if self.ended:
            raise Refused("exited", "the agent has ended")
        if not self.stdin.open or self.stdin.closing is not None:
            raise Refused("stdin_closed", "the agent's stdin is closed")
        if self.journal.retry_at is not None:
            raise full
        seq = self.stdin.write(ident, data)
        if not self.journal.flush():
            raise full  # it is written when there is room, once: until then nobody may take it for done
        return {"ok": True, "seq": seq}

    def _close_stdin(self, peer: Peer, command: dict[str, Any]) -> dict[str, object]:
        ident = command_id(command["id"]) if command.get("id") is not None else "-"
        if self.stdin.open and self.stdin.closing is None:
            self.stdin.closing = ident
        return {"ok": True}

    def _stop(self, peer: Peer, command: dict[str, Any]) -> dict[str, object] | None:
        times = StopTimes(command, self.spec.stop.terminate_after_s, self.spec.stop.kill_after_s)
        why = command.get("reason")
        if why is not None and not (isinstance(why, str) and len(why) <= 1000):
            raise Refused("invalid", "reason must be a string of up to 1000 characters")
        self.reap()
        if self.ended and self._none_left():
            return {"ok": True, **ALREADY_FINISHED}
        self.begin("stopped", why, times)
        self.stopping.append((peer, command.get("id")))
        peer.waiting += 1
        return None

    def _status(self, peer: Peer, command: dict[str, Any]) -> dict[str, object]:
        return {"ok": True, "status": self.status()}

    def _renew(self, peer: Peer, command: dict[str, Any]) -> dict[str, object]:
        return {"ok": True, "lease_left_s": self.spec.lease_s}

    def _release(self, peer: Peer, command: dict[str, Any]) -> dict[str, object]:
        if self.exit is None:
            raise Refused("running", "the agent has not ended: stop it first")
        self.leave()
        return {"ok": True}

    def _attach(self, peer: Peer, command: dict[str, Any]) -> dict[str, object]:
        after = command.get("after", 0)
        if type(after) is not int or after < 0:
            raise Refused("invalid", "after must be a sequence number")
        if peer.waiting:
            raise Refused("invalid", "this connection waits for a stop")
        peer.offset = self.journal.offset_after(after)
        return {"ok": True}

    if TYPE_CHECKING:
        Handler = Callable[["Shim", Peer, dict[str, Any]], Union[dict[str, object], None]]
    COMMANDS: ClassVar[dict[str, Handler]] = {
        "write": _write,
        "close_stdin": _close_stdin,
        "stop": _stop,
        "status": _status,
        "renew": _renew,
        "release": _release,
        "attach": _attach,
    }

    # -- what is known

    def identity(self) -> dict[str, object]:
        return {
            "state": self.state,
            "protocol": PROTOCOL,
            "shim_pid": os.getpid(),
            "host": os.uname().nodename,
            "boot_id": self.boot_id,
            "pid": self.agent,
            "start_time": self.start_time,
            "started_at": self.started_at,
            "program": self.spec.program,
            "epoch": self.epoch,
            "exit": self.exit,
        }

    def status(self) -> dict[str, object]:
        left = max(0.0, self.renewed_at + self.spec.lease_s - time.monotonic())
        live = {"seq": self.journal.seq, "unwritten": self.journal.unwritten, "lease_left_s": round(left, 3)}
        return {**self.identity(), **live, "stdin_open": self.stdin.open and self.stdin.closing is None}

    def save(self) -> None:
        try:
            fd = os.open("state.json.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                inherits = list(self.table.lineage(os.getppid()) or ())  # whoever gets our processes when we are killed
                os.write(fd, json.dumps({**self.identity(), "mark": self.mark, "reapers": inherits}).encode())
            finally:
                os.close(fd)
            os.replace("state.json.new", "state.json")
        except OSError as error:
            log(f"state.json cannot be written: {error}")


def peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """User and process at the other end of a connection."""
    if sys.platform == "linux":
        pid, uid, _ = struct.unpack("iIi", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    else:
        uid = struct.unpack_from("2I", sock.getsockopt(0, 1, 128))[1]  # LOCAL_PEERCRED: struct xucred
        pid = sock.getsockopt(0, 2)  # LOCAL_PEERPID
    return int(uid), int(pid)


def has_ended(sock: socket.socket) -> bool:
    """Whether the process that connected has ended, so that its id may be another's. False before Linux 6.5."""
    try:
        fd = sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        return error.errno in (errno.ESRCH, errno.EINVAL) and sys.platform == "linux"
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(fd)


def has_hung_up(sock: socket.socket) -> bool:
    """Whether nobody is at its other end, to read what is sent; one that only sends no more is there."""
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(0))


def boot_id() -> str:
    """With a process id and its start time this names a process for all time."""
    found = read_small("/proc/sys/kernel/random/boot_id").decode().strip()
    if not found and sys.platform == "darwin":
        import subprocess

        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return found


# ------------------------------------------------------------------------------------------------------------- starting


def exec_agent(spec: Spec, env: dict[bytes, bytes], fds: tuple[int, ...], report: int, umask: int) -> NoReturn:
    """In the forked child: become the agent, or say why not on the pipe that a successful exec closes."""
    code = "os_error"
    try:
        os.setsid()
        for fd, target in zip(fds, range(3)):
            os.dup2(fd, target)
        for number in range(1, signal.NSIG):
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.umask(umask)
        code = "no_directory"
        os.chdir(spec.cwd)
        if spec.cwd_resolved:
            code = "moved"
            if os.getcwdb() != spec.cwd:
                raise OSError(0, "its path leads somewhere else since it was looked at")
        code = "exec"
        os.execvpe(spec.argv[0], spec.argv, env)
    except OSError as error:
        if code == "exec":
            missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
            unfit = error.errno in (errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.EISDIR)
            code = "not_found" if missing else "not_executable" if unfit else "os_error"
        name = os.fsdecode(spec.cwd) if code in ("no_directory", "moved") else spec.program
        os.write(report, json.dumps([code, f"{name}: {error.strerror}"]).encode())
    finally:
        os._exit(127)


def socket_pair() -> tuple[int, int]:
    """The agent's end and ours of a socket. Unlike a pipe nobody can open it by a path of /proc."""
    theirs, ours = socket.socketpair()
    ours.shutdown(socket.SHUT_RD)
    return theirs.detach(), ours.detach()


def make_room(spec: Spec) -> None:
    """Nothing is started of which the first records find no room. Raises OSError."""
    fd = os.open("state.json.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        left = STATE_SIZE + sum(len(data) for _, data in spec.writes)
        while left > 0:
            left -= os.write(fd, bytes(min(left, READ_SIZE)))
    finally:
        os.close(fd)
        os.unlink("state.json.new")


def put_files(spec: Spec) -> None:
    """What the agent's arguments refer to, for this user alone. Raises OSError."""
    if not spec.files:
        return
    os.makedirs(FILES, 0o700, exist_ok=True)
    for name, data in spec.files.items():
        path = os.path.join(FILES.encode(), name)
        if os.path.lexists(path):
            os.unlink(path)  # of a start that was refused
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
    spec.files.clear()  # they may hold secrets, and be large


def start_agent(spec: Spec, table: str, umask: int, libc: Libc, directory: str) -> Shim:
    """Fork the agent, get ready while it execs, and see that it did."""
    make_room(spec)
    put_files(spec)
    mark = spec.tag + os.urandom(16).hex()[len(spec.tag) :]
    subreaper = libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    if not subreaper and sys.platform == "linux":
        log("without prctl this shim is no subreaper")
    inputs = socket_pair() if spec.socket_stdin else os.pipe()
    outputs, errors, report = os.pipe(), os.pipe(), os.pipe()
    parent = os.getpid()
    agent = os.fork()
    if agent == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        env = {**spec.env, MARK.encode(): mark.encode()}
        exec_agent(spec, env, (inputs[0], outputs[1], errors[1]), report[1], umask)
    for fd in (inputs[0], outputs[1], errors[1], report[1]):
        os.close(fd)
    try:
        processes: Table = PsTable(mark) if table == "ps" else ProcTable(None if subreaper else mark)
        shim = Shim(spec, agent, (inputs[1], outputs[0], errors[0]), processes, mark, directory)
        shim.open()
        failure = read_all(report[0])
        os.close(report[0])
        if failure:
            raise Refused(*json.loads(failure.decode()))
    except BaseException:
        send(agent, signal.SIGKILL)
        os.waitpid(agent, 0)
        for name in ("shim.sock", "journal", "state.json"):
            if os.path.exists(name):
                os.unlink(name)
        raise
    return shim


def read_all(fd: int) -> bytes:
    """Until the end of the pipe."""
    chunks: list[bytes] = []
    while True:
        chunk = os.read(fd, READ_SIZE)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)


def serve(spec: Spec, table: str, umask: int, lock: int, launcher: int, libc: Libc, directory: str) -> None:
    """The daemon. Answers the launcher as soon as the agent runs and the socket listens."""
    shim = None
    try:
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        errors = os.open("shim.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        for fd, target in ((null, 0), (null, 1), (errors, 2)):
            os.dup2(fd, target)
        os.close(null)
        os.close(errors)
        libc.name(os.getcwdb())
        shim = start_agent(spec, table, umask, libc, directory)
        answer: dict[str, object] = {"ok": True, "status": shim.status()}
    except Refused as refused:
        answer = refused.reply
    except OSError as error:
        answer = Refused("os_error", str(error), errno=error.errno).reply
    if shim is None:
        os.close(lock)  # who is told that nothing was started may try again at once
    try:
        os.write(launcher, json.dumps(answer).encode() + b"\n")
    except OSError:
        pass  # nobody waits for it any more; the lease sees to the rest
    os.close(launcher)
    if shim is not None:
        shim.run()
        try:
            os.unlink("shim.sock")
        except OSError:
            pass  # gone with its directory


def take_lock() -> int:
    """The lock is the shim's life: whoever can take it knows that no shim lives here."""
    fd = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > until:
                raise Refused("already_running", "a shim lives in this directory") from None
            time.sleep(0.005)


def launch(directory: str, table: str, raw: bytes, libc: Libc, *, foreground: bool) -> dict[str, object]:
    """Check, go into the background, and wait for the daemon's answer. In the foreground this process becomes the shim,
    which itself writes its answer to stdout, and this never returns.
    """
    try:
        spec = Spec(raw)
    except Refused as refused:
        raise Refused("invalid_spec", str(refused)) from None
    umask = os.umask(0o077)
    # Not abspath, to which "link/.." is another directory than to who asks for what is in this one.
    directory = os.path.join(os.getcwd(), directory)
    os.makedirs(directory, 0o700, exist_ok=True)
    os.chdir(directory)
    os.chmod(".", 0o700)
    lock = take_lock()
    if os.path.lexists("stopped"):
        raise Refused("stopped", "this directory has a tombstone: it was stopped before it was started")
    if os.path.lexists("journal"):
        raise Refused("already_used", "a shim has run in this directory and is gone")
    if foreground:
        serve_and_exit(spec, table, umask, lock, os.dup(1), libc, directory)
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.close(reader)
        os.setsid()
        if os.fork() == 0:
            serve_and_exit(spec, table, umask, lock, writer, libc, directory)
        os._exit(0)
    os.close(writer)
    os.waitpid(middle, 0)
    answer = read_all(reader)
    if not answer:
        raise Refused("os_error", "the shim died while it was starting: see shim.log")
    result: dict[str, object] = json.loads(answer.decode())
    return result


def serve_and_exit(
    spec: Spec, table: str, umask: int, lock: int, launcher: int, libc: Libc, directory: str
) -> NoReturn:
    """The daemon's whole life; a failure goes to its log, where somebody may look for it."""
    code = 1
    try:
        serve(spec, table, umask, lock, launcher, libc, directory)
        code = 0
    except BaseException:  # noqa: BLE001 - the last one to catch anything
        import traceback

        log("the shim failed: " + traceback.format_exc())
    finally:
        os._exit(code)


def close_inherited() -> None:
    """Whatever else whoever started us had open."""
    for fd in [int(name) for name in os.listdir("/dev/fd")]:
        if fd > 2:
            try:
                os.close(fd)
            except OSError:
                pass  # the listing's own


def main(arguments: list[str]) -> int:
    """The launcher: prints one line of JSON when the shim is ready, or why it is not."""
    table = "proc" if os.path.exists("/proc/self/stat") else "ps"
    if arguments[-2:-1] == ["--processes"] and arguments[-1] in ("proc", "ps"):
        *arguments, _, table = arguments
    foreground = arguments[:2] == ["run", "--foreground"]
    if foreground:
        arguments = ["run", *arguments[2:]]
    if len(arguments) != 2 or arguments[0] not in ("run", "serve"):
        sys.stderr.write("usage: shim.py run [--foreground] DIRECTORY [--processes proc|ps]   (a JSON spec on stdin)\n")
        sys.stderr.write("       shim.py serve -     (launchers on demand: stdin is a socket, see fork_launchers)\n")
        return 2
    close_inherited()
    libc = Libc()
    # Secrets pass through here: no core dump, and nobody without privileges opens our memory or descriptors by /proc.
    libc.prctl(PR_SET_DUMPABLE, 0)
    if arguments[0] == "serve":
        return fork_launchers(table, libc)
    return launch_and_answer(arguments[1], table, read_all(0), libc, foreground=foreground)


def launch_and_answer(directory: str, table: str, raw: bytes, libc: Libc, *, foreground: bool) -> int:
    """What `launch` says, on stdout; the launcher's exit code."""
    try:
        answer = launch(directory, table, raw, libc, foreground=foreground)
    except Refused as refused:
        answer = refused.reply
    except OSError as error:
        answer = Refused("os_error", str(error), errno=error.errno).reply
    os.write(1, json.dumps(answer).encode() + b"\n")
    return 0 if answer["ok"] else 1


class ForkedLaunchers:
    """The launchers that this process has forked and that have not ended, by the numbers that their asker gave them."""

    def __init__(self, table: str, libc: Libc) -> None:
        self.table, self.libc = table, libc
        self.pids: dict[int, int] = {}

    def reap(self, *_: object) -> None:
        for number, pid in list(self.pids.items()):
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self.pids[number]
            except ChildProcessError:
                pass  # this is a fork of the server, whose signal it was

    def fork(self, number: int, control: socket.socket, fd: int) -> None:
        pid = os.fork()
        if pid == 0:
            control.detach()
            launch_for(fd, self.table, self.libc)
        self.pids[number] = pid

    def kill(self, number: int) -> None:
        if number in self.pids:
            os.kill(self.pids[number], signal.SIGKILL)


def fork_launchers(table: str, libc: Libc) -> int:
    """A launcher for each that is asked for, by a fork: without the start of an interpreter. Ends with its stdin.

    Each message is FORK_MESSAGE: `s` and a number, with a socket. On that the new launcher sends an empty line, takes
    the directory, a newline and the spec, to their end, and answers. `k` and a number: that launcher is killed.
    """
    control, launchers = socket.socket(fileno=0), ForkedLaunchers(table, libc)
    signal.signal(signal.SIGCHLD, launchers.reap)
    while True:
        message, sockets, _, _ = socket.recv_fds(control, FORK_MESSAGE.size, 1)
        if len(message) != FORK_MESSAGE.size:
            return 0
        kind, number = FORK_MESSAGE.unpack(message)
        # Until that is over, what has ended stays a child of ours: its pid is nobody else's.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        if kind == b"k":
            launchers.kill(number)
        elif sockets:
            launchers.fork(number, control, sockets[0])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        for fd in sockets:
            os.close(fd)


def launch_for(fd: int, table: str, libc: Libc) -> NoReturn:
    """The life of a launcher that was forked. Its socket is its stderr, too: where it fails, that is its answer."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        for target in (0, 1, 2):
            os.dup2(fd, target)
        close_inherited()
        os.write(1, b"\n")
        name, _, raw = read_all(0).partition(b"\n")
        if name:  # else nobody waits for it any more
            code = launch_and_answer(os.fsdecode(name), table, raw, libc, foreground=False)
    except BaseException:  # noqa: BLE001 - no launcher goes on as a server
        import traceback

        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
