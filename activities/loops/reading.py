"""Files of a workspace, read as if somebody hostile had put them there.

Nothing outside the workspace is read, nothing that could block or grow without bound. What a file means must not live
here.
"""

import errno
import os
from pathlib import Path

from activities.store import disk

MAX_FILE = 2 * 1024 * 1024
MAX_NAMES = 5_000
"""So many names of a directory are looked at."""


class Unreadable(Exception):
    """The file cannot be used, in a sentence that begins with its name."""


class Missing(Unreadable):
    """There is no such file."""


def inside(workspace: Path, path: str) -> Path:
    """The real path of something in the workspace. Raises Missing, Unreadable where a link leads out of it."""
    root = Path(os.path.realpath(workspace))
    try:
        real = Path(os.path.realpath(root / path))
        # Judged before it is looked at: whether something is there, outside, must not show in the answer.
        if not real.is_relative_to(root):
            raise Unreadable(f"{path} leads out of the workspace")
        return real.resolve(strict=True)
    except FileNotFoundError:
        raise Missing(f"{path} does not exist in the workspace") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise Unreadable(f"{path} cannot be read: {_reason(error)}") from error


def read_text(workspace: Path, path: str) -> str:
    """A file of the workspace; bytes that are no UTF-8 become U+FFFD. Raises Missing, Unreadable."""
    try:
        data = read_regular(inside(workspace, path), MAX_FILE)
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {_reason(error)}") from error
    return data.decode("utf-8", "replace").removeprefix("\ufeff")


def read_regular(path: Path, limit: int) -> bytes:
    """A regular file of at most `limit` bytes, no link. Raises OSError."""
    with os.fdopen(disk.open_regular(path), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        size = f"{limit // 1024} KiB" if limit < 1024 * 1024 else f"{limit // 1024 // 1024} MiB"
        raise OSError(errno.EFBIG, f"it is larger than {size}")
    return data


def names_in(workspace: Path, path: str) -> list[str] | None:
    """Names in a directory of the workspace, sorted; None where it is none. Raises Missing, Unreadable."""
    real = inside(workspace, path)
    if not real.is_dir():
        return None
    names = []
    try:
        with os.scandir(real) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > MAX_NAMES:
                    raise Unreadable(f"{path} holds more than {MAX_NAMES} files")
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {_reason(error)}") from error
    return sorted(names)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
