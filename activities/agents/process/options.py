"""The options of agent "process" in a request, and what is written to its stdin by them."""

import json
from typing import Final, Literal

from pydantic import ValidationError

from activities import untrusted_json
from steersman.contracts.activities import OutgoingMessage
from steersman.contracts.errors import InvalidRequest, sentence
from steersman.contracts.model import StrictModel
from steersman.contracts.request import RunRequest

Messages = Literal["lines", "json"]
LINE_ENDS: Final = ("\n", "\r")


class ProcessOptions(StrictModel):
    """RunRequest.options for agent "process"."""

    messages: Messages | None = None
    """How messages are written to the program's stdin, which stays open for them; null: it takes none.

    lines: the text, which must be one line. json: an object {"type": "message", "id", "text"} a line; the prompt,
    before them, is an object {"type": "prompt", "text"}.
    """


def options_of(request: RunRequest) -> ProcessOptions:
    """Raises InvalidRequest naming the wrong field."""
    try:
        return ProcessOptions.model_validate_json(json.dumps(request.options))
    except ValidationError as error:
        raise InvalidRequest(sentence(error, "RunRequest", under=("options",))) from error


def prompt_input(request: RunRequest) -> str:
    """What the program finds on its stdin when it starts; empty for none."""
    messages = options_of(request).messages
    if not request.prompt or messages is None:
        return request.prompt
    if messages == "json":
        return json.dumps({"type": "prompt", "text": request.prompt}) + "\n"
    return request.prompt if request.prompt.endswith("\n") else f"{request.prompt}\n"


def message_line(messages: Messages, message: OutgoingMessage) -> str:
    """The line by which the program is given a message. Raises ValueError with the reason for one that is no line."""
    text = message.text or ""
    if messages == "json":
        return json.dumps({"type": "message", "id": message.id, "text": text}) + "\n"
    if any(end in text for end in LINE_ENDS):
        raise ValueError('options.messages is "lines": a message is one line, and this one has a line end')
    return f"{text}\n"


def text_of_line(message_id: str, line: bytes) -> str:
    """The text of a message, of the line that was written."""
    written = untrusted_json.parse_line(line)
    if written is None or (written.get("type"), written.get("id")) != ("message", message_id):
        return line.decode("utf-8", "replace").removesuffix("\n")
    return untrusted_json.text_of(written.get("text"))
