"""What an editor says, as a prompt: its text, and the images that go with it. No I/O."""

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

from acp.exceptions import RequestError
from acp.schema import (
    AudioContentBlock,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
)

from steersman.attachments import named
from steersman.contracts.attachments import Attachment

Block = TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock

LOOK: Final = "Look at what is attached."
TEXT_AND_IMAGES: Final = "an agent is given texts and images alone: no audio, no other binary files"


def text_of(blocks: Iterable[Block]) -> str:
    """The blocks as one text: links by their address, files that come along in whole after their address. Images alone
    have a text of ours, as no agent is told nothing.

    Raises RequestError (invalid params) for what is no text, which `initialize` says.
    """
    blocks = list(blocks)
    text = "".join(_text(block) for block in blocks)
    return text if text.strip() or not any(isinstance(each, ImageContentBlock) for each in blocks) else LOOK


def _text(block: Block) -> str:
    match block:
        case TextContentBlock():
            return block.text
        case ResourceContentBlock():
            return f"\n[{block.name}]({block.uri})\n"
        case EmbeddedResourceContentBlock(resource=TextResourceContents() as file):
            return f"\n[{file.uri}]:\n{file.text}\n"
        case ImageContentBlock():
            return ""
        case _:
            raise RequestError.invalid_params({"details": TEXT_AND_IMAGES})


def images_of(blocks: Iterable[Block]) -> tuple[Attachment, ...]:
    """The images, in their order. Raises InvalidRequest for one that is none, or too large."""
    images = [block for block in blocks if isinstance(block, ImageContentBlock)]
    return tuple(named(_name(block) or f"image-{number}", block.data) for number, block in enumerate(images, start=1))


def _name(block: ImageContentBlock) -> str:
    """The file's own, where the editor says it."""
    return PurePosixPath(unquote(urlsplit(block.uri or "").path)).name
