"""Programs of ours on another machine: brought there once, into a directory that is named by what it holds.

What must not live here: how programs are run there, and the commands of the shim's program.
"""

import functools
import hashlib
import json
from pathlib import Path
from typing import Final

from activities.shim.client.launching import PROGRAM

TOO_OLD: Final = 7
MISSING: Final = 8
_BEGIN: Final = f"""
import sys
if sys.version_info < (3, 9):
    sys.stderr.write("Python %d.%d" % sys.version_info[:2])
    sys.exit({TOO_OLD})
import os
place = os.path.join(os.path.expanduser("~"), ".cache", "steersman", sys.argv.pop(1))
"""

COMMAND: Final = f"""{_BEGIN}
sys.path.insert(0, place)
try:
    from program.main import main
    code = main(sys.argv[1:])
except ImportError as error:
    sys.stderr.write(str(error))
    code = {MISSING}
sys.exit(code)
"""
"""Runs there, on any Python: a command of the program, which lies in a directory of this name, the first argument.

With exit code MISSING nothing was done, as the program or a part of it is not there; with TOO_OLD, as Python is older
than 3.9, and stderr says which it is.
"""

LOOK: Final = f"""{_BEGIN}
import json
path = os.path.join(place, "program", sys.argv[1])
print(json.dumps({{"ok": True, "path": path, "there": os.path.exists(path)}}))
"""
"""Runs there, on any Python: where a file of the program of this name is, and whether it is there."""

INSTALL: Final = f"""{_BEGIN}
import json, tempfile
os.umask(0o077)
try:
    os.makedirs(os.path.join(place, "program"), exist_ok=True)
    for name, text in json.load(sys.stdin).items():
        fd, path = tempfile.mkstemp(dir=place)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path, os.path.join(place, "program", name))
        except BaseException:
            os.unlink(path)
            raise
    answer = {{"ok": True}}
except OSError as error:
    answer = {{"ok": False, "error": "os_error", "message": str(error)}}
print(json.dumps(answer))
"""
"""Runs there, on any Python: takes the program from stdin. Two at once are fine: both write the same, file by file."""


@functools.cache
def archive() -> tuple[str, bytes]:
    """The shim's program, the same bytes each time, and a name that says what it holds.

    Its door is the last file: what finds it there finds the others too.
    """
    return _archive("shim", *sorted(Path(PROGRAM).glob("*.py"), key=lambda path: (path.name == "main.py", path.name)))


@functools.cache
def archive_of(program: Path) -> tuple[str, bytes]:
    """The same of a program of one file."""
    return _archive(program.stem, program)


def _archive(name: str, *files: Path) -> tuple[str, bytes]:
    data = json.dumps({path.name: path.read_text(encoding="utf-8") for path in files}).encode()
    return f"{name}-{hashlib.sha256(data).hexdigest()[:20]}", data
