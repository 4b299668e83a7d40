"""Which store a state directory is: its path may lead to another one later, or nowhere.

What a store holds must not live here.
"""

import json
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from activities.store import disk


class StoreGone(Exception):
    """The state directory is not there, or another one is at its path: nothing of its runs can be read."""


class StoreIdentity:
    """A state directory by its path and by the random id in its `store.json`, which is asked for anew each time."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.first = ""
        """The store's id when this process opened it."""

    def open(self) -> str:
        """Make the directory a store, if it is none; returns its id.

        Raises OSError where that cannot be written, StoreGone where its store.json cannot be read.
        """
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        meta = self.state / "store.json"
        if not os.path.lexists(meta):
            temporary = self.state / f"store.json.{os.getpid()}"
            disk.write_new(temporary, json.dumps({"store": secrets.token_hex(8), "created": time.time()}))
            with suppress(FileExistsError):
                meta.hardlink_to(temporary)  # never over what another worker has written meanwhile
            temporary.unlink()
        self.first = self.check()
        return self.first

    def check(self, began_in: str = "") -> str:
        """The id of the store that the path leads to now. Raises StoreGone where it is none, or another than that one.

        OSError where no descriptors are left.

        Args:
            began_in: the store that a run began in; empty where that is not known.
        """
        try:
            found = str(json.loads(disk.read_text(self.state / "store.json"))["store"])
        except OSError as error:
            if disk.exhaustion(error):
                raise
            raise StoreGone(f"state directory: {self.state} holds no store: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreGone(f"state directory: {self.state} holds no store: store.json cannot be read") from error
        if began_in not in ("", found):
            text = f"state directory: {self.state} is store {found[:40]}, and the run began in store {began_in}"
            raise StoreGone(f"{text}: bring that one back, or cancel the run")
        return found
