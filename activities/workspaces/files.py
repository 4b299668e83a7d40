"""Files of a workspace, read as hostile input.

Nothing outside the workspace is read, and nothing that could block or that has no bound. What a file means must not
live here.
"""

import errno
import os
from pathlib import Path

from activities.store import disk

MAX_FILE = 2 * 1024 * 1024
"""A text file of more bytes is not read."""
MAX_NAMES = 5_000
"""A directory of more names is not listed."""


class Unreadable(Exception):
    """The file cannot be read. The message is a sentence that begins with its name."""


class MissingFile(Unreadable):
    """The file does not exist."""


def resolve_inside(workspace: Path, path: str) -> Path:
    """The real path of a file in the workspace. Raises MissingFile, and Unreadable if a link leads out of it."""
    root = Path(os.path.realpath(workspace))
    try:
        real = Path(os.path.realpath(root / path))
        # Checked before it is opened: whether something exists outside must not show in the answer.
        if not real.is_relative_to(root):
            raise Unreadable(f"{path} leads out of the workspace")
        return real.resolve(strict=True)
    except FileNotFoundError:
        raise MissingFile(f"{path} does not exist in the workspace") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise Unreadable(f"{path} cannot be read: {_reason(error)}") from error


def read_text(workspace: Path, path: str) -> str:
    """The text of a file; bytes that are not UTF-8 become U+FFFD. Raises MissingFile, Unreadable."""
    try:
        data = read_regular(resolve_inside(workspace, path), MAX_FILE)
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {_reason(error)}") from error
    return data.decode("utf-8", "replace").removeprefix("\ufeff")


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a regular file, no link, of at most `limit` bytes. Raises OSError."""
    with os.fdopen(disk.open_regular(path), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        size = f"{limit // 1024} KiB" if limit < 1024 * 1024 else f"{limit // 1024 // 1024} MiB"
        raise OSError(errno.EFBIG, f"it is larger than {size}")
    return data


def list_names(workspace: Path, path: str) -> list[str] | None:
    """The names in a directory, sorted; None if it is no directory. Raises MissingFile, Unreadable."""
    real = resolve_inside(workspace, path)
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
