"""What an editor says, as the text of a prompt. No I/O."""

from collections.abc import Iterable
from typing import Final

from acp.exceptions import RequestError
from acp.schema import (
    AudioContentBlock,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
)

Block = TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock

TEXT_ONLY: Final = "an agent is given text alone: no images, no audio, no binary files"


def text_of(blocks: Iterable[Block]) -> str:
    """The blocks as one text: links by their address, files that come along in whole after their address.

    Raises RequestError (invalid params) for what is no text, which `initialize` says.
    """
    return "".join(_text(block) for block in blocks)


def _text(block: Block) -> str:
    match block:
        case TextContentBlock():
            return block.text
        case ResourceContentBlock():
            return f"\n[{block.name}]({block.uri})\n"
        case EmbeddedResourceContentBlock(resource=TextResourceContents() as file):
            return f"\n[{file.uri}]:\n{file.text}\n"
        case _:
            raise RequestError.invalid_params({"details": TEXT_ONLY})
