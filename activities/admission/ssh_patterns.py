"""Which machines an operator lets requests name: patterns like `build-*`, `deploy@build-1`, `*@lab-*:2222`."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from activities.admission.wildcards import fits
from steersman.contracts.runtime import SshRuntime

_PATTERN = re.compile(r"(?:(?P<user>[^@]+)@)?(?P<address>\[[^\[\]@]+\]|[^\[\]@:]+)(?::(?P<port>\d+|\*))?")


@dataclass(frozen=True)
class SshPattern:
    """One of them; `*` stands for any characters. A part that it does not name is the ssh config's alone to say."""

    user: str | None
    address: str
    port: str | None

    @classmethod
    def of(cls, text: str) -> "SshPattern":
        """Of an operator's `[USER@]ADDRESS[:PORT]`, an address of version 6 in brackets. Raises ValueError."""
        found = _PATTERN.fullmatch(text)
        if not found:
            raise ValueError(f"{text!r} is not [USER@]ADDRESS[:PORT], where * stands for any characters")
        return cls(found["user"], found["address"].strip("[]"), found["port"])

    def fits(self, runtime: SshRuntime) -> bool:
        """Whether it allows what a request names.

        Upper and lower case differ, as for a Host of the ssh config: what that says of `build` would not count for
        `BUILD`, which may be another machine, with another user and another key.
        """
        port = None if runtime.port is None else str(runtime.port)
        return _fits(self.user, runtime.user) and _fits(self.address, runtime.address) and _fits(self.port, port)


def is_allowed(patterns: Iterable[SshPattern], runtime: SshRuntime) -> bool:
    """Whether one of them allows it."""
    return any(pattern.fits(runtime) for pattern in patterns)


def _fits(pattern: str | None, value: str | None) -> bool:
    if value is None:
        return pattern in (None, "*")
    return pattern is not None and fits(pattern, value)
