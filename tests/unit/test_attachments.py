"""Files that go with a prompt or a message: what they are, how many, and what agents are told of them."""

import base64
import os
from pathlib import Path
from typing import Any

import pytest

from steersman import attachment
from steersman.attachments import MAX_BYTES
from steersman.contracts.attachments import MAX_ATTACHED, MAX_FILES, Attachment, media_type
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.request import parse_request
from tests.support.images import attached, png

REQUEST = {"agent": "claude", "prompt": "look", "workspace": {"path": "/src"}}
NOTES = attached(b"x = 41", "notes.py")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (png(), "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
        ("täxt".encode(), "text/plain"),
        (b"<svg/>", "text/plain"),
        (b"RIFF\x10\0\0\0WAVEfmt ", None),
        (b"%PDF-1.7\n\xe2\xe3", None),
        (b"a\0b", None),
        (png()[:7], None),
    ],
)
def test_a_file_is_what_its_bytes_say(content: bytes, kind: str | None) -> None:
    assert media_type(content) == kind


def test_texts_are_told_in_the_prompt_and_images_beside_it() -> None:
    request = parse_request({**REQUEST, "attachments": [attached(png(), "a.png"), NOTES, attached(png(), "b.png")]})
    told = request.as_told()
    assert told.prompt == 'look\n\n<file name="notes.py">\nx = 41\n</file>\n\n[Images: a.png, b.png]'
    assert [each.name for each in told.attachments] == ["a.png", "b.png"]
    assert (request.outline().attachments, parse_request(REQUEST).as_told()) == ((), parse_request(REQUEST))


def test_a_request_without_any_is_written_as_before() -> None:
    assert "attachments" not in parse_request(REQUEST).model_dump()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([{"name": "../a", "data": "aGk="}], "attachments.0.name: must be the name of a file"),
        ([{"name": "a\nb", "data": "aGk="}], "attachments.0.name: must be the name of a file"),
        ([{"name": "", "data": "aGk="}], "attachments.0.name"),
        ([{"name": "a", "data": "a GK="}], "attachments.0: data is not base64"),
        ([{"name": "a", "data": "aGk"}], "attachments.0: data is not base64"),
        ([{"name": "a", "data": "é"}], "attachments.0: data is not base64"),
        ([{"name": "a", "data": ""}], "attachments.0.data"),
        ([attached(b"\xff\xfe", "a")], "attachments.0: is neither an image"),
        ([{**NOTES, "media_type": "image/png"}], "attachments.0.media_type"),
        ([attached(b"x" * (MAX_BYTES // 2 + 3), "a")] * 2, "attachments: have 700,008 characters of base64 together"),
        ([attached(b"x" * MAX_BYTES * 10, "a")], "attachments.0.data"),
        ([NOTES] * (MAX_FILES * 10), "attachments"),
    ],
)
def test_a_wrong_one_is_named(given: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_request({**REQUEST, "attachments": given})
    assert says in str(refused.value)
    assert len(str(refused.value)) < 2_000


@pytest.mark.parametrize("agent", [{"agent": "hermes", "permissions": {"mode": "full"}}, {"agent": "process"}])
def test_who_cannot_see_is_given_texts_alone(agent: dict[str, Any]) -> None:
    request = {**REQUEST, **agent, **({"command": ["cat"]} if agent["agent"] == "process" else {})}
    assert parse_request({**request, "attachments": [NOTES]}).as_told().prompt.startswith("look\n\n<file")
    with pytest.raises(InvalidRequest, match="cannot be given images"):
        parse_request({**request, "attachments": [attached(png(), "a.png")]})


def test_each_agent_that_may_go_on_must_see_what_the_first_does() -> None:
    fallback = {"fallback": [{"agent": "hermes"}], "permissions": {"mode": "full"}}
    with pytest.raises(InvalidRequest, match=r"fallback\.0.*cannot be given images"):
        parse_request({**REQUEST, **fallback, "attachments": [attached(png(), "a.png")]})
    parse_request({**REQUEST, **fallback, "attachments": [NOTES]})


class TestFile:
    def test_is_read_whole_under_its_name(self, tmp_path: Path) -> None:
        (tmp_path / 'a "b".png').write_bytes(png())
        assert attachment(tmp_path / 'a "b".png') == Attachment.model_validate(attached(png(), "a _b_.png"))

    def test_of_the_largest_size(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"x" * MAX_BYTES)
        assert len(attachment(tmp_path / "a").data) == MAX_ATTACHED

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (None, "No such file"),
            (b"", "is empty"),
            (b"\x7fELF\0", "is neither an image"),
            (b"x" * (MAX_BYTES + 1), "has more than 525,000 bytes"),
        ],
    )
    def test_that_cannot_be_attached_is_named(self, tmp_path: Path, content: bytes | None, says: str) -> None:
        if content is not None:
            (tmp_path / "a").write_bytes(content)
        with pytest.raises(InvalidRequest) as refused:
            attachment(tmp_path / "a")
        assert f"{tmp_path / 'a'}" in str(refused.value)
        assert says in str(refused.value)


def test_requests_take_what_is_read(tmp_path: Path) -> None:
    """As models, too, in a request that is a dictionary."""
    from steersman._client.run_start import checked  # noqa: PLC0415 - Temporal's client takes a while

    (tmp_path / "a").write_text("text")
    request = checked({**REQUEST, "attachments": [attachment(tmp_path / "a")]})
    assert base64.b64decode(request.attachments[0].data) == b"text"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequest, match="pipe is a pipe, and no file"):
        attachment(tmp_path / "pipe")
    with pytest.raises(InvalidRequest, match="cannot read a"):
        attachment("a\0b")
