"""Looking at files while programs still make and delete them: `Path.rglob` fails where a directory goes meanwhile."""

import os
from collections.abc import Iterator
from pathlib import Path


def below(root: Path) -> Iterator[Path]:
    """Everything below a directory, directories and links too."""
    for directory, names, files in os.walk(root):
        yield from (Path(directory, name) for name in [*names, *files])


def files_with(root: Path, text: str) -> list[Path]:
    """The files below a directory that hold a text."""
    return [path for path in below(root) if text.encode() in content(path)]


def content(path: Path) -> bytes:
    """A file's content; nothing of what is no file, or is gone."""
    try:
        return path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    except OSError:
        return b""
