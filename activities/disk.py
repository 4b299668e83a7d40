"""Looking at directories that others change meanwhile: what is gone since counts as not there."""

import os
from collections.abc import Iterator
from pathlib import Path


def names(directory: Path) -> list[str]:
    """What a directory holds, sorted; nothing where it is not there or cannot be read."""
    try:
        return sorted(each.name for each in directory.iterdir())
    except OSError:
        return []


def size(directory: Path) -> int:
    """Bytes of the files below it."""
    return sum(_sizes(directory))


def _sizes(directory: Path) -> Iterator[int]:
    for inner, _, files in os.walk(directory):
        for name in files:
            try:
                yield Path(inner, name).lstat().st_size
            except OSError:
                continue
