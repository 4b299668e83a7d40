"""Which code decides, as Temporal shows it for each workflow task."""

import hashlib
import importlib.metadata
from pathlib import Path

import steersman
import workflows

_DECIDING = (workflows, steersman)
_LIBRARIES = ("temporalio", "pydantic")


def build_id() -> str:
    """Steersman's version, and a hash of the code that decides: the same on every machine that has the same.

    The SDK's own is a hash of every module that is loaded, which takes a third of a worker's start.
    """
    digest = hashlib.sha256()
    for package in _DECIDING:
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            digest.update(b"%s\0%s\0" % (path.relative_to(root).as_posix().encode(), path.read_bytes()))
    for name in _LIBRARIES:
        digest.update(f"{name}=={importlib.metadata.version(name)}\n".encode())
    return f"{steersman.__version__}+{digest.hexdigest()[:12]}"
