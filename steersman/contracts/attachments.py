"""Files that go with a prompt or a message: images, and texts. What they are is found in their bytes alone."""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, Field, model_validator

from steersman.contracts.model import StrictModel

MAX_ATTACHED: Final = 700_000
"""Characters of base64 that a request's or a message's attachments have together: 525,000 bytes. Temporal takes a
payload of 2 MB, and a history of 50 MB has a message twice.
"""
MAX_FILES: Final = 20

_IMAGES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
"""The first bytes of each kind of image that models take. (WebP's are in two places.)"""


def media_type(content: bytes) -> str | None:
    """What a file is, by its bytes: a kind of image that models take, "text/plain" for UTF-8 without NUL; else None."""
    for beginning, kind in _IMAGES:
        if content.startswith(beginning):
            return kind
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    try:
        return None if "\0" in content.decode() else "text/plain"
    except UnicodeDecodeError:
        return None


NOT_IN_NAMES: Final = re.compile(r'[\x00-\x1f\x7f/\\"<>]')
"""What no attachment's name has."""


def _file_name(name: str) -> str:
    if NOT_IN_NAMES.search(name):
        raise ValueError('must be the name of a file, without directories, control characters, " < >')
    return name


class Attachment(StrictModel):
    """A file, whole. Its data must be those of an image (PNG, JPEG, GIF, WebP) or of a text in UTF-8."""

    name: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_file_name)]
    """How the agent is told of it: a file's name without directories."""
    data: Annotated[str, Field(min_length=1, max_length=MAX_ATTACHED)]
    """Base64, without line ends."""

    @model_validator(mode="after")
    def _check_kind(self) -> "Attachment":
        try:
            content = self.content
        except (binascii.Error, ValueError):
            raise ValueError("data is not base64") from None
        if media_type(content) is None:
            raise ValueError("is neither an image (PNG, JPEG, GIF, WebP) nor a text in UTF-8")
        return self

    @property
    def content(self) -> bytes:
        """The file's bytes."""
        return base64.b64decode(self.data, validate=True)

    @property
    def media_type(self) -> str:
        """See `media_type` of this module."""
        return media_type(self.content) or ""

    @property
    def is_image(self) -> bool:
        """Whether the agent is to be given it as an image."""
        return self.media_type.startswith("image/")


def _bounded(given: tuple[Attachment, ...]) -> tuple[Attachment, ...]:
    if (size := sum(len(each.data) for each in given)) > MAX_ATTACHED:
        raise ValueError(
            f"have {size:,} characters of base64 together, and may have {MAX_ATTACHED:,}: make images smaller, or put "
            "files into the workspace and name those"
        )
    return given


Attachments = Annotated[
    tuple[Attachment, ...],
    Field(max_length=MAX_FILES, exclude_if=lambda given: not given),
    AfterValidator(_bounded),
]


def images(attachments: Sequence[Attachment]) -> tuple[Attachment, ...]:
    """Those that the agent is given beside the text."""
    return tuple(each for each in attachments if each.is_image)


def worded(text: str, attachments: Sequence[Attachment]) -> str:
    """The text with all of it that can be said in words: texts in whole, images by their names."""
    texts = [
        f'<file name="{each.name}">\n{each.content.decode()}\n</file>' for each in attachments if not each.is_image
    ]
    named = ", ".join(each.name for each in images(attachments))
    return "\n\n".join(part for part in (text, *texts, named and f"[Images: {named}]") if part)
