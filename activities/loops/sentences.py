"""Text of ours that repeats what somebody hostile may have written, as it may go over the wire and to a terminal."""


def printable(text: str, limit: int = 2000) -> str:
    """The text with nothing in it that could move a cursor or that UTF-8 has no bytes for, on one line."""
    return "".join(each if each.isprintable() else "?" for each in text[:limit])
