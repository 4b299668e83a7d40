"""Files of this user alone, written as a whole or not at all."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Put a file with this text in the path's place, with mode 0600; what was there stays where that fails.

    Raises OSError.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".steersman-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
