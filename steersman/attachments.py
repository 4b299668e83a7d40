"""Files of this machine as attachments: they go with a prompt or a message, whole, and are nowhere else to be had."""

import base64
import os
import stat
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from steersman.contracts.attachments import MAX_ATTACHED, NOT_IN_NAMES, Attachment
from steersman.contracts.errors import InvalidRequest, sentence

MAX_BYTES: Final = MAX_ATTACHED // 4 * 3
"""Of all attachments of a request or message together."""
READING: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Without waiting for the other end of a pipe."""


def typed(path: str) -> Path:
    """The file that a person means by this, `~` included. Raises InvalidRequest for nobody's home."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InvalidRequest(f"attachment: cannot read {path}: {error}") from error


def attachment(path: str | os.PathLike[str]) -> Attachment:
    """The file as it is now, under its name: an image (PNG, JPEG, GIF, WebP) or a text in UTF-8.

    Raises InvalidRequest: it cannot be read, is neither, or has more than 525,000 bytes.
    """
    try:
        with os.fdopen(os.open(path, READING), "rb") as file:
            is_pipe = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
            content = b"" if is_pipe else file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"attachment: cannot read {os.fspath(path)!s}: {why}") from error
    if is_pipe:  # who reads one waits for whoever may write into it
        raise InvalidRequest(f"attachment: {os.fspath(path)} is a pipe, and no file")
    if len(content) > MAX_BYTES:
        raise InvalidRequest(
            f"attachment: {os.fspath(path)} has more than {MAX_BYTES:,} bytes: make an image smaller, or put the file "
            "into the workspace and name it in the prompt"
        )
    if not content:
        raise InvalidRequest(f"attachment: {os.fspath(path)} is empty")
    try:
        return named(Path(path).name, base64.b64encode(content).decode())
    except InvalidRequest as error:
        raise InvalidRequest(error.message.replace("attachment:", f"attachment: {os.fspath(path)}", 1)) from error


def named(name: str, data: str) -> Attachment:
    """Base64 as an attachment of about that name. Raises InvalidRequest as `attachment`."""
    try:
        return Attachment(name=NOT_IN_NAMES.sub("_", name)[-200:], data=data)
    except ValidationError as error:
        raise InvalidRequest(sentence(error, "attachment")) from error
