"""What OpenSSH's client says when it fails, as an error: one that a person has to mend, or one that may pass.

What must not live here: running the client.
"""

import re

from activities.shim.client import MachineUnreachable, MachineUnusable
from steersman.contracts.text import flat

_LONGEST = 300
_PERMANENT = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the one in known_hosts: make sure that it is this machine, then put the new key there",
    ),
    ("REVOKED HOST KEY DETECTED|marked as revoked", "its host key is revoked"),
    (
        "Host key verification failed",
        "its host key is not known here: log in once by hand, as the worker's user, and see that it is this machine",
    ),
    (
        r"Permission denied \(",
        "it lets no key of the worker's user in: authorized_keys there, and here the key's file or SSH_AUTH_SOCK",
    ),
    ("Too many authentication failures", "it refused too many keys: name the right one (IdentityFile, IdentitiesOnly)"),
    (
        r"Could not resolve hostname .*?: (?!Temporary failure|System error)",
        "no host has this name: give a name or address that this machine resolves, or a Host of the ssh config",
    ),
    ("hostname contains invalid characters", "this is no name of a host"),
    ("no matching .* found", "the two have no algorithm in common"),
    (
        r"[Bb]ad configuration option|terminating, \d+ bad|Bad owner or permissions|[Cc]an't open user config file",
        "the ssh config cannot be used: mend it",
    ),
    ("account is (currently )?not available|account has expired", "the user may not run programs there"),
)
"""What the client says (LogLevel INFO, or ERROR where that suffices; OpenSSH 9.2), and what a person hears of it."""
_NOISE = re.compile(r"mux_client_|Control ?[Ss]ocket |@@@|\*\*|Warning: Permanently added|\s*$")


def failure(machine: str, said: str) -> MachineUnreachable:
    """The error for what the client said, as it ended before the program had begun there."""
    for pattern, advice in _PERMANENT:
        if found := re.search(pattern, said):
            return MachineUnusable(f"{machine}: {advice}. ssh: {_line(said, found.start())}")
    return MachineUnreachable(f"{machine}: {last_words(said) or 'ssh ended without a word'}")


def last_words(said: str) -> str:
    """The last line that is no remark on the shared connection, cut and made visible: much of it is the machine's."""
    lines = [line for line in said.splitlines() if not _NOISE.match(line)]
    return flat(lines[-1].strip())[-_LONGEST:] if lines else ""


def _line(said: str, where: int) -> str:
    begin = said.rfind("\n", 0, where) + 1
    return flat(said[begin:].partition("\n")[0].strip(" @\r\t"))[:_LONGEST]
