"""Sessions that an agent's own programs write out and take in, on any machine. Which sessions must not live here."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from activities.ports.archives import SessionArchives
from activities.ports.machine import Machine, Stream
from activities.workspaces.carry.sessions import SessionsFailed
from activities.workspaces.printable_text import printable
from steersman import timeouts

MAX_ARCHIVE = 64 * 1024 * 1024
"""A session that is written out has at most this many bytes."""
PATIENCE_S = 180.0
"""What a program does with a session may take this many seconds."""
SCRATCH = "steersman-session-"
"""How directories in the machine's TMPDIR begin in which sessions are while programs are at them."""
CLEARING_S = 10.0
"""A script has so long for all but its program: to remove its directory once its answer is here."""
_SAID = 500
_NO_PROGRAM = 127
"""How `env` ends where it does not find the program."""
_KILLED = 128 + 9
"""How a program ends that `timeout` has killed."""

_SCRATCH = f"""limit=$1; shift; timed=; command -v timeout >/dev/null && timed="timeout -s KILL $limit"
umask 077; base=${{TMPDIR:-/tmp}}; mine=$(id -u)
find "$base" -maxdepth 1 -name '{SCRATCH}*' -type d -user "$mine" -mtime +0 -exec rm -rf {{}} + 2>/dev/null </dev/null
scratch=$(mktemp -d "$base/{SCRATCH}XXXXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT; trap 'exit 1' HUP INT PIPE TERM"""
"""A script that was killed leaves its directory to one that comes a day later or more."""
_RUN = '$timed env -i TMPDIR="$scratch" XDG_STATE_HOME="$scratch/state" "$@"'
"""What a program notes for its next start goes with it: opencode's leave locks behind, for which that would wait. So
does what it leaves in the directory for temporary files.

It ends in time by itself where the machine can see to it: by ssh, nobody else would end what hangs there.
"""
_HAS_ROOM = 'head -c 1 /dev/zero >"$scratch/room"'
"""What a program says of a full disk finds no room there: this says it on stderr."""
_WRITE_OUT = f"""{_SCRATCH}
cd "$scratch" && {_RUN} >out 2>said </dev/null; code=$?
[ "$code" = 0 ] || {{ [ -s said ] || {_HAS_ROOM}; tail -c {_SAID} said >out; }}
size=$(wc -c <out); printf '%s %s\\n' "$code" "$size" && [ "$size" -le {MAX_ARCHIVE} ] && cat out
"""
"""What the program says goes into a file first: into a pipe it may not write all of it."""
_TAKE_IN = f"""{_SCRATCH}
cat >"$scratch/session" && cd "$1" && shift && {_RUN} "$scratch/session" >"$scratch/out" 2>&1 </dev/null; code=$?
tail -c {_SAID} "$scratch/out" >"$scratch/said"
printf '%s %s\\n' "$code" "$(wc -c <"$scratch/said")" && cat "$scratch/said"
"""


class NoProgram(SessionsFailed):
    """The agent's program is not on PATH there."""


@dataclass(frozen=True)
class ArchivePlace:
    """Where an agent's programs are run on a machine. `environment`: all that they have; nothing in it is secret.

    Each method raises SessionsFailed, and MachineUnreachable where the machine cannot be asked.
    """

    machine: Machine
    archives: SessionArchives
    environment: Mapping[str, str]

    async def written_out(self, session: str) -> bytes | None:
        """The session; None where there is none. It may be hostile."""
        async with self._script(_WRITE_OUT, "", self.archives.written_out(session)) as stream:
            stream.stdin.close()
            code, said = await _answer(stream)
        if code == 0:
            return said
        text = _text(said)
        if self.archives.is_absent(text):
            return None
        what = f"{self.archives.written_out(session)[0]} could not write it out"
        raise _failed(code, what, text or _said_besides(stream))

    async def take_in(self, data: bytes, directory: str) -> None:
        """Have the session here, held in this directory."""
        async with self._script(_TAKE_IN, directory, self.archives.taken_in()) as stream:
            with suppress(BrokenPipeError, ConnectionResetError):
                stream.stdin.write(data)
                await stream.stdin.drain()
            stream.stdin.close()
            code, said = await _answer(stream)
        if code != 0:
            what = f"{self.archives.taken_in()[0]} could not take it in"
            raise _failed(code, what, _text(said) or _said_besides(stream))

    async def time_s(self) -> float:
        """The time by the machine's clock, in seconds since 1970."""
        async with self._started("date", "+%s") as stream:
            stream.stdin.close()
            said = (await stream.stdout.read(64)).strip()
        if not said.isdigit():
            raise SessionsFailed("the machine does not say the time")
        return float(said)

    async def remove(self, files: Sequence[str]) -> None:
        """Remove these files of the machine."""
        async with self._started("rm", "-f", "--", *files) as stream:
            stream.stdin.close()
            if await stream.wait() != 0:
                raise SessionsFailed(_said_besides(stream) or "the sessions could not be removed")

    @asynccontextmanager
    async def _script(self, script: str, directory: str, command: Sequence[str]) -> AsyncIterator[Stream]:
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        where = (directory,) if directory else ()
        async with self._started("sh", "-c", script, "sh", _limit_s(), *where, *variables, *command) as stream:
            yield stream

    @asynccontextmanager
    async def _started(self, *argv: str) -> AsyncIterator[Stream]:
        stream = await self.machine.exec(*argv)
        try:
            async with timeouts.timeout(PATIENCE_S):
                yield stream
        except TimeoutError as error:
            raise SessionsFailed(f"nothing came of the session for {PATIENCE_S:.0f} s") from error
        finally:
            stream.kill()


async def _answer(stream: Stream) -> tuple[int, bytes]:
    """The program's exit code, and what it wrote, with nothing left of it there. Raises SessionsFailed."""
    try:
        answer = await _read(stream)
    except SessionsFailed:
        await _cleared(stream)
        raise
    await _cleared(stream)
    if answer is None:
        raise SessionsFailed(_said_besides(stream) or "the programs of its sessions could not be run")
    return answer


async def _cleared(stream: Stream) -> None:
    """The script has removed its directory: one that is killed before leaves the session there, for a day or more."""
    with suppress(TimeoutError):
        async with timeouts.timeout(CLEARING_S):
            await stream.wait()


async def _read(stream: Stream) -> tuple[int, bytes] | None:
    """None where the script did not come to an answer. Raises SessionsFailed."""
    try:
        heading = (await stream.stdout.readline()).split()
    except ValueError:  # a line longer than a stream takes
        return None
    if len(heading) != 2 or not all(each.isdigit() for each in heading):
        return None
    code, size = (int(each) for each in heading)
    if size > MAX_ARCHIVE:
        raise SessionsFailed(f"a session has more than {MAX_ARCHIVE >> 20} MiB")
    try:
        return code, await stream.stdout.readexactly(size)
    except asyncio.IncompleteReadError as error:
        raise SessionsFailed("a session was cut off on its way") from error


def _limit_s() -> str:
    """Seconds that a script gives its program."""
    return f"{PATIENCE_S - CLEARING_S:.0f}"


def _said_besides(stream: Stream) -> str:
    """What the script says itself: that there is no room, where the program could not."""
    return printable(" ".join(stream.said().split()))[-_SAID:]


def _text(said: bytes) -> str:
    return printable(" ".join(said.decode(errors="replace").split()))


def _failed(code: int, what: str, said: str) -> SessionsFailed:
    kind = NoProgram if code == _NO_PROGRAM else SessionsFailed
    if code == _KILLED:
        said = f"it was not through after {_limit_s()} s, or was killed otherwise"
    return kind(f"{what}: {said or 'it said nothing'} (exit code {code})")
