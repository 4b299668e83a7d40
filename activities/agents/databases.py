"""The SQLite database that an agent's processes in one directory of another machine have alone, beside the user's."""

import hashlib
from pathlib import PurePath


def name_of(directory: PurePath) -> str:
    """Its file's name, which no other directory has."""
    return f"steersman-{hashlib.sha256(str(directory).encode()).hexdigest()[:32]}.db"


def files_of(path: str) -> tuple[str, ...]:
    """The database at this path, and what SQLite keeps beside it."""
    return tuple(f"{path}{suffix}" for suffix in ("", "-shm", "-wal"))
