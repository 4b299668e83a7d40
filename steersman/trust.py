"""The trusted directories, whose own settings, hooks and servers agents may load on this host; see `steer trust`.

They are listed in a file in the state directory, for its user alone. Workers read it for each process that they start.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from steersman.errors import SteersmanError
from steersman.private_files import write_private

FILE = "trusted.json"
MAX_FILE = 1024 * 1024


class TrustUnreadable(SteersmanError):
    """The file of trusted directories cannot be read, or is not what `steer trust` writes."""


def trusted_directories(state: Path) -> tuple[Path, ...]:
    """The trusted directories, absolute; all that is below one is trusted, too. Raises TrustUnreadable."""
    path = state / FILE
    try:
        with path.open("rb") as file:
            listed = json.loads(file.read(MAX_FILE))["directories"]
        found = tuple(Path(each) for each in listed)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrustUnreadable(f"{path} cannot be used ({type(error).__name__}): mend it, or remove it") from error
    return tuple(each for each in found if each.is_absolute())


def trust(state: Path, directory: Path) -> Path:
    """Trust a directory; returns its path with links resolved. Raises TrustUnreadable, or OSError if it is none."""
    real = directory.resolve(strict=True)
    if not real.is_dir():
        raise NotADirectoryError(f"{directory} is not a directory")
    known = trusted_directories(state)
    if real not in known:
        _write(state, (*known, real))
    return real


def distrust(state: Path, directory: Path) -> bool:
    """Trust a directory no longer, even one that is gone; whether it was trusted. Raises TrustUnreadable, OSError."""
    known = trusted_directories(state)
    kept = tuple(each for each in known if each not in (directory.absolute(), directory.resolve()))
    if kept != known:
        _write(state, kept)
    return kept != known


def _write(state: Path, directories: Sequence[Path]) -> None:
    """Raises OSError that names the file."""
    text = json.dumps({"directories": [str(each) for each in directories]}, indent=2)
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(state / FILE, text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(state / FILE)) from error
