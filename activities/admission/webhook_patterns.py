"""Which addresses an operator lets requests tell of runs: beginnings of URLs like `https://hooks.example.com/steersman/`."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

PORTS = {"https": 443, "http": 80}


class WrongUrl(ValueError):
    """The text is no address of a webhook. The message does not have it: it may be a secret."""


@dataclass(frozen=True)
class Target:
    """A webhook's address, taken apart. `path` begins with a slash, and has the query."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> "Target":
        """Raises WrongUrl."""
        if not url.isascii() or not url.isprintable() or " " in url or "\\" in url or "#" in url:
            raise WrongUrl("it has to be ASCII without spaces, backslashes and a fragment")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise WrongUrl("it is no URL") from error
        if parts.scheme not in PORTS or not parts.hostname:
            raise WrongUrl("it has to begin with https:// or http:// and name a host")
        if parts.username is not None or parts.password is not None:
            raise WrongUrl("it must not have a user or a password")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        plain = parts.path.lower().replace("%2e", ".")
        if any(part in (".", "..") for part in plain.split("/")) or "%2f" in plain or "%5c" in plain:
            raise WrongUrl("its path must not have . or .. as a part, nor an encoded slash")
        return cls(parts.scheme, parts.hostname.rstrip("."), port or PORTS[parts.scheme], path)

    @property
    def address(self) -> str | None:
        """The IP address, where the URL has one for its host."""
        try:
            return str(ipaddress.ip_address(self.host))
        except ValueError:
            return None

    @property
    def is_named_loosely(self) -> bool:
        """Whether some programs would take the host for an address that it does not look like: 0x7f.1, 2130706433."""
        last = self.host.rpartition(".")[2]
        return self.address is None and (last.isdigit() or last.startswith("0x"))


def checked(url: str, allowed: Iterable[Target]) -> Target | None:
    """The address, if one of those that the operator has named is its beginning. Raises WrongUrl."""
    target = Target.of(url)
    if target.is_named_loosely:
        raise WrongUrl("its host looks like an address, and is none")
    return target if any(_begins(each, target) for each in allowed) else None


def _begins(pattern: Target, target: Target) -> bool:
    same = (pattern.scheme, pattern.host, pattern.port) == (target.scheme, target.host, target.port)
    exact = target.path == pattern.path or target.path.startswith(pattern.path.rstrip("/") + "/")
    return same and (exact or target.path.startswith(pattern.path.rstrip("/") + "?"))
