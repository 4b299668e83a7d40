"""Which requests of browsers may reach the Temporal Web UI: those of its own pages, under a name of its own.

The UI asks for no login, and its API starts workflows. Two things keep other pages of the same browser away: `Host` is
one of the names that the operator uses (a foreign name is DNS rebinding), and `Origin` is that same host (anything else
is another site's request). Pure decisions on headers; no server lives here.
"""

import re
from collections.abc import Sequence
from typing import Final

OWN_NAMES: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Names that no DNS server points elsewhere. Any port: a tunnel may end at another one, and `Origin` names it too."""

READING: Final = frozenset({"GET", "HEAD"})

NO_PAGES: Final = ("/api/", "/render")
"""Paths that no link from elsewhere opens: the API, and what shows any Markdown that its address holds."""

_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")

BLOCKED_PORTS: Final = (
    *(6566, 3659, 4045, 6669, 6668, 6667, 6666, 6665, 6697),
    *(5061, 5060, 1719, 1720, 1723, 10080),
)
"""Ports above 1023 to which browsers connect for no page (Fetch standard, "port blocking"), whatever name it uses.

What listens there is out of a page's reach, DNS rebinding included. Without NFS's 2049 and X11's 6000, and without 4190
and 6679: the standard has them, Chromium 150 connects to them.
"""


def refusal(method: str, path: str, headers: Sequence[tuple[str, str]], names: frozenset[str]) -> str | None:
    """Why a request must not pass, or None.

    `headers`: names in lower case, repeated ones repeated. `names`: hosts without ports, in lower case.
    """
    hosts = _all(headers, "host")
    named = _HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
    if named is None or named[1] not in names:
        return "this address is not one of the Web UI's own names"
    own = {f"{scheme}://{hosts[0].lower()}" for scheme in ("http", "https")}
    origins = _all(headers, "origin")
    if any(origin.lower() not in own for origin in origins):
        return "the request comes from another origin"
    sites = set(_all(headers, "sec-fetch-site"))
    if sites - {"same-origin", "none"} and not _follows_link(method, path, headers):
        return "the request comes from another site"
    if method not in READING and not origins and sites != {"same-origin"}:
        return "a request that changes something must name its origin"
    return None


def _follows_link(method: str, path: str, headers: Sequence[tuple[str, str]]) -> bool:
    """Whether a person follows a link from elsewhere to a page of the UI: it shows, and runs nothing of theirs."""
    modes, places = _all(headers, "sec-fetch-mode"), _all(headers, "sec-fetch-dest")
    return method == "GET" and modes == ["navigate"] and places == ["document"] and not path.startswith(NO_PAGES)


def _all(headers: Sequence[tuple[str, str]], name: str) -> list[str]:
    return [value for each, value in headers if each == name]
