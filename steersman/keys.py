"""The file of a payload codec's keys: one a line, `ID BASE64`, for its owner alone.

The first key encrypts, all of them decrypt. The cryptography is in steersman.encryption.
"""

import base64
import binascii
import os
import re
import secrets
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from steersman.errors import BadCodec

try:
    import fcntl
except ImportError:  # Windows, see _check_system
    fcntl = None  # type: ignore[assignment]

KEY_BYTES: Final = 32
MAX_FILE_BYTES: Final = 64 * 1024
KEY_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
HEADER: Final = "# Keys of Steersman's payload codec. The first encrypts, all decrypt.\n"


@dataclass(frozen=True)
class Key:
    """A key of 256 bits, and the id by which payloads name it."""

    id: str
    secret: bytes = field(repr=False)

    @property
    def line(self) -> str:
        """The key's line in the file."""
        return f"{self.id} {base64.b64encode(self.secret).decode()}\n"


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys of a file, at least one. Raises BadCodec, whose message names the file and never a key."""
    keys = _parsed(_content(path), path)
    if not keys:
        raise BadCodec(f"{path} holds no key: make one with `steer codec new-key {path}`")
    return keys


def new_key(key_id: str | None = None) -> Key:
    """A random key; its id begins with the date where none is given. Raises BadCodec for a wrong id."""
    key_id = key_id or f"{datetime.now(UTC):%Y-%m-%d}-{secrets.token_hex(2)}"
    if not KEY_ID.fullmatch(key_id):
        raise BadCodec("a key's id is 1 to 64 of A-Z a-z 0-9 . _ - and begins with a letter or digit")
    return Key(key_id, secrets.token_bytes(KEY_BYTES))


def add_key(path: Path, key: Key, *, last: bool = False) -> None:
    """Add the key to the file, as the first or the `last`. The file and its directory are made where missing.

    The file is replaced as a whole, so that no reader sees half of it; writers wait for each other. Raises BadCodec.
    """
    _check_system()
    path = path.resolve()
    try:
        _make_directory(path.parent)
        with _locked(path.with_name(f".{path.name}.lock")):
            _write(path, key, last=last)
    except OSError as error:
        raise BadCodec(f"cannot write {path}: {error.strerror or error}") from error


def _make_directory(path: Path) -> None:
    """Make the directory and its parents with mode 0700, which Path.mkdir gives to the last one only."""
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the writers' lock. It is a file of its own, which stays, because the file of the keys is replaced."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, key: Key, *, last: bool) -> None:
    """Raises BadCodec, OSError."""
    earlier = _content(path) if path.exists() else HEADER
    if key.id in {each.id for each in _parsed(earlier, path)}:
        raise BadCodec(f"{path} has a key {key.id} already")
    if earlier and not earlier.endswith("\n"):
        earlier += "\n"
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(earlier + key.line if last else _in_front(key, earlier))
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError:
        with suppress(OSError):
            Path(name).unlink()
        raise


def _in_front(key: Key, earlier: str) -> str:
    header = HEADER if earlier.startswith(HEADER) else ""
    return header + key.line + earlier.removeprefix(header)


class KeyFile:
    """A file of keys that is read again when it has changed: a rotation needs no restart. Safe to use from threads."""

    def __init__(self, path: Path) -> None:
        """Reads the file. Raises BadCodec where it cannot be used."""
        self.path = path
        self._lock = threading.Lock()
        self._mark = _mark(path)
        self._keys = read_keys(path)

    @property
    def keys(self) -> Sequence[Key]:
        """The keys in the file now; the last good ones where it has gone or become wrong since."""
        with self._lock:
            mark = _mark(self.path)
            if mark is not None and mark != self._mark:
                with suppress(BadCodec):
                    self._keys = read_keys(self.path)
                    self._mark = mark  # only now: a process that is out of descriptors tries it again
            return self._keys


def _mark(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _check_system() -> None:
    if fcntl is None:
        raise BadCodec("the keys of steersman.encryption need files that belong to one user: not on Windows")


def _content(path: Path) -> str:
    _check_system()
    try:
        # Without O_NONBLOCK opening a FIFO would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            _check(os.fstat(descriptor), path)
            return file.read(MAX_FILE_BYTES).decode("ascii")
    except OSError as error:
        raise BadCodec(f"cannot read the codec's keys: {path}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise BadCodec(f"{path} is no file of keys: each line is `ID BASE64`") from None


def _check(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise BadCodec(f"{path} is no file")
    if found.st_uid not in {0, os.geteuid()}:
        raise BadCodec(f"{path} belongs to another user")
    if found.st_mode & 0o077:
        raise BadCodec(f"{path} is open to others (mode {stat.S_IMODE(found.st_mode):04o}): chmod 600 {path}")
    if found.st_size > MAX_FILE_BYTES:
        raise BadCodec(f"{path} is no file of keys: it is longer than {MAX_FILE_BYTES} bytes")


def _parsed(text: str, path: Path) -> tuple[Key, ...]:
    keys: dict[str, Key] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        # A wrong line may hold a key: its text is left out.
        if len(words) != 2 or not KEY_ID.fullmatch(words[0]) or words[0] in keys:
            raise BadCodec(f"{path}, line {number}: expected `ID BASE64`, each id once")
        try:
            secret = base64.b64decode(words[1], validate=True)
        except binascii.Error:
            secret = b""
        if len(secret) != KEY_BYTES:
            raise BadCodec(f"{path}, line {number}: a key is {KEY_BYTES} bytes in base64")
        keys[words[0]] = Key(words[0], secret)
    return tuple(keys.values())
