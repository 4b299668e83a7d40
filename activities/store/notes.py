"""Models written down in a run's directory, each in a file that is whole whenever it is there."""

import json
import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from activities.store import disk

M = TypeVar("M", bound=BaseModel)


def note(path: Path, facts: BaseModel) -> None:
    """Write them down, in place of what was there. Raises OSError."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    disk.write_new(temporary, facts.model_dump_json())
    temporary.replace(path)


def noted(path: Path, model: type[M]) -> M | None:
    """What is written down; None where nothing is, or nothing that can be read.

    Raises OSError where no descriptors are left.
    """
    try:
        return model.model_validate(json.loads(disk.read_text(path)))
    except (OSError, ValueError, RecursionError, ValidationError) as error:
        if disk.exhaustion(error):
            raise
        return None
