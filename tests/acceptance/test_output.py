"""Whatever an agent prints becomes events, whole and in order, and costs the history next to nothing."""

import hashlib

import pytest

from steersman.client import Steersman
from steersman.contracts.events import MAX_TEXT
from tests.acceptance.programs import python
from tests.acceptance.site import Site, following, in_order
from tests.scripted_model import ScriptedModel, say

MANY = "for number in range(10_000): print('line', number)"
HUGE = "import sys; sys.stdout.write('x' * 5_000_000 + '\\nand on\\n')"
STRANGE = r"""
import sys
out = sys.stdout.buffer
out.write(b"nul \0 nul\n")
out.write(b"wrong \xff\xfe utf-8 \xc3\n")
out.write(b"\x1b[31mred\x1b[0m \x07 bell\n")
out.write("naïve 🚢 \u2028 separator\n".encode())
out.write(b'{"type": "done", "seq": 1}\n')
out.write(b"\n")
out.write(b"no newline at the end")
"""
SPACED = r"""
import sys, time
print("3 of 7 done\n\n   ", flush=True)
print("", file=sys.stderr, flush=True)
time.sleep(600)
"""
LOUD_STDERR = "import sys; sys.stderr.write('e' * 400_000 + '\\n' + 'last words\\n'); print('out')"


async def history_length(steersman: Steersman, run: str) -> int:
    return (await steersman.temporal.get_workflow_handle(run).describe()).history_length


async def test_ten_thousand_lines(shared: Site, steersman: Steersman) -> None:
    run = await steersman.start(shared.process(*python(MANY)))
    async with following(steersman, run) as attached:
        result = await steersman.result(run)
        live = await attached.end()

    events = await steersman.events(run)
    assert [event.text for event in events if event.type == "message"] == [f"line {n}" for n in range(10_000)]
    assert in_order(events)
    assert live == events
    assert result.text.endswith("line 9999")
    assert await history_length(steersman, run) <= 100
    async with following(steersman, run, after=9_990) as attached:
        assert await attached.end() == events[9_990:]


@pytest.mark.exhaustive
async def test_a_model_that_says_ten_thousand_things(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    words = " ".join(f"word{number}" for number in range(10_000))
    script = model.script("many", say(words, chunks=10_000))
    run = await steersman.start(shared.claude(script))
    result = await steersman.result(run)

    events = await steersman.events(run)
    assert in_order(events)
    assert result.text == words
    assert "".join(event.text for event in events if event.type == "message" and event.delta) == words
    assert await history_length(steersman, run) <= 100


async def test_a_line_of_five_megabytes(shared: Site, steersman: Steersman) -> None:
    run = await steersman.start(shared.process(*python(HUGE)))
    result = await steersman.result(run)

    events = await steersman.events(run)
    said = [event for event in events if event.type == "message"]
    assert [(len(event.text), event.truncated) for event in said] == [(MAX_TEXT, True), (6, False)]
    assert in_order(events)
    assert result.text.endswith("x\nand on")


async def test_bytes_that_are_no_text(shared: Site, steersman: Steersman) -> None:
    run = await steersman.start(shared.process(*python(STRANGE)))
    await steersman.result(run)

    events = await steersman.events(run)
    assert [event.text for event in events if event.type == "message"] == [
        "nul \0 nul",
        "wrong \ufffd\ufffd utf-8 \ufffd",
        "\x1b[31mred\x1b[0m \x07 bell",
        "naïve 🚢 \u2028 separator",
        '{"type": "done", "seq": 1}',
        "",
        "no newline at the end",
    ]
    assert in_order(events)
    assert events[-1].type == "done"


async def test_stderr_is_drained_and_none_of_the_answer(shared: Site, steersman: Steersman) -> None:
    result = await steersman.run(shared.process(*python(LOUD_STDERR)))

    assert result.text == "out"


async def test_the_prompt_is_the_programs_input(shared: Site, steersman: Steersman) -> None:
    prompt = "one\ntwo 🚢\n" + "x" * 300_000

    result = await steersman.run(shared.process("sha256sum", prompt=prompt))

    assert result.text.split()[0] == hashlib.sha256(prompt.encode()).hexdigest()


async def test_an_empty_line_does_not_hide_what_a_program_has_said(shared: Site, steersman: Steersman) -> None:
    run = await steersman.start(shared.process(*python(SPACED)))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message" and e.text == "   ")
        await attached.until(lambda e: e.type == "progress" and e.text == "")
        await steersman.stop(run)
    last = (await steersman.state(run)).last_event
    assert last is not None
    assert (last.type, last.summary) == ("message", "3 of 7 done")
