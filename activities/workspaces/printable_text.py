"""Messages of Steersman's own that quote hostile text, made safe for the wire and for terminals."""


def printable(text: str, limit: int = 2000) -> str:
    """The first `limit` characters on one line, with "?" for what could move a cursor or is not UTF-8."""
    return "".join(each if each.isprintable() else "?" for each in text[:limit])
