"""Commands: each is answered, done once, and obeyed only from the newest controller."""

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from activities.shim.client import (
    AgentExited,
    Fenced,
    Input,
    InvalidCommand,
    NotController,
    ProtocolMismatch,
    ShimGone,
    ShimUnresponsive,
    StdinClosed,
    connect,
    records,
)
from activities.shim.client.dialing import dial
from activities.shim.client.errors import error_of
from tests.shim.agents import SLEEP, collect, output, python
from tests.shim.conftest import Shims
from tests.shim.wire import wire

pytestmark = [pytest.mark.integration, pytest.mark.linux]


async def test_a_write_is_done_once_for_each_id(every_shim: Shims) -> None:
    shim = await every_shim.start(["sh", "-c", "cat; exec sleep 600"], input=[Input("zero", "0\n")])
    async with shim.controller() as connection:
        first = await connection.write("1\n", id="one")
        assert (first.duplicate, (await connection.write("1\n", id="one")).duplicate) == (False, True)
    async with shim.controller() as connection:  # and through a reconnect
        again = await connection.write("1\n", id="one")
        assert (again.seq, again.duplicate) == (first.seq, True)
        assert (await connection.write("0\n", id="zero")).duplicate
        await connection.write("2\n")
        await connection.close_stdin()
        assert (await connection.write("1\n", id="one")).duplicate
        with pytest.raises(StdinClosed):
            await connection.write("3\n")
        await connection.close_stdin()
        await collect(records(shim.directory), until_line=b"2")
        await connection.stop(terminate_after=timedelta(0))
        assert (await connection.write("1\n", id="one")).duplicate
        with pytest.raises(AgentExited):
            await connection.write("3\n")
    found = await collect(records(shim.directory))
    assert output(found) == [b"0", b"1", b"2"]
    assert [record.seq for record in found if record.id == "one"] == [first.seq]


async def test_any_bytes_can_be_written(every_shim: Shims) -> None:
    shim = await every_shim.start(["cat"])
    data = bytes(range(256)).replace(b"\n", b"") + "é€😀".encode()
    async with shim.controller() as connection:
        await connection.write(data + b"\n")
        await connection.close_stdin()
    assert output(await collect(records(shim.directory))) == [data]


async def test_what_the_agent_does_not_read_yet_costs_no_memory_and_is_not_lost(shims: Shims) -> None:
    gate = shims.root / "gate"
    code = (
        f"import os, sys, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.005)\n"
        "print(len(sys.stdin.buffer.read()))"
    )
    shim = await shims.start(python(code))
    async with shim.controller() as connection:
        for _ in range(8):
            await connection.write("x" * 5_000_000)
        await connection.close_stdin()
        lines = Path(f"/proc/{shim.status.shim_pid}/status").read_text().splitlines()
        assert next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) < 40_000
        gate.touch()
        assert output(await collect(records(shim.directory)))[-1] == b"40000000"


async def test_what_a_big_command_took_is_given_back(shims: Shims) -> None:
    shim = await shims.start(["cat"])
    async with shim.controller() as connection:
        await connection.write("x" * 20_000_000)
        await connection.write("\n")
        await connection.close_stdin()
        await collect(records(shim.directory))
        lines = Path(f"/proc/{shim.status.shim_pid}/status").read_text().splitlines()
        assert next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) <= 14 * 1024


async def test_an_agent_that_closes_its_stdin_is_no_harm(shims: Shims) -> None:
    shim = await shims.start(python("import os, time; os.close(0); print('closed'); time.sleep(600)"))
    await collect(records(shim.directory), until_line=b"closed")
    async with shim.controller() as connection:
        await connection.write("lost\n")
        while (await connection.status()).stdin_open:
            await asyncio.sleep(0.005)
        with pytest.raises(StdinClosed):
            await connection.write("more\n")


async def test_an_observer_may_look_but_not_write(shims: Shims) -> None:
    shim = await shims.start(SLEEP)
    async with shim.observer() as connection:
        assert (await connection.status()).state == "running"
        for attempt in (connection.write("x"), connection.close_stdin(), connection.renew()):
            with pytest.raises(NotController):
                await attempt


async def test_a_newer_controller_fences_the_older_one(every_shim: Shims) -> None:
    shim = await every_shim.start(["cat"])
    following = asyncio.create_task(collect(records(shim.directory, epoch=1)))
    watching = asyncio.create_task(collect(records(shim.directory)))
    async with shim.controller(1) as old:
        await old.write("from the old one\n")
        async with shim.controller(1) as same:
            await same.write("from the same one\n")
            await old.renew()
        async with shim.controller(2) as new:
            for attempt in (old.write("x"), old.renew(), old.close_stdin(), old.status(), old.stop()):
                with pytest.raises(Fenced):
                    await attempt
            with pytest.raises(Fenced):
                await following
            with pytest.raises(Fenced):
                await connect(shim.directory, epoch=1)
            assert (await new.status()).epoch == 2
            await new.write("from the new one\n")
            await new.close_stdin()
    assert output(await watching) == [b"from the old one", b"from the same one", b"from the new one"]


async def test_the_fenced_stream_ends_at_once(shims: Shims) -> None:
    shim = await shims.start(SLEEP)
    async with wire(shim.directory) as old, wire(shim.directory) as new:
        await old.hello(1)
        assert (await old.ask(op="attach", after=0))["ok"]
        await new.hello(2)
        async with asyncio.timeout(10):
            assert await old.reader.read() == b""


async def test_nonsense_gets_an_answer(shims: Shims) -> None:
    shim = await shims.start(["cat"])
    async with wire(shim.directory) as peer:
        assert (await peer.ask(op="status"))["error"] == "invalid"
        assert (await peer.hello())["ok"]
        lines = [b"{", b"[]", b"\xff\xfe", b'"x"', b"{}", b'{"op":["x"]}', b'{"op":"fly","id":7}', b"[" * 200_000]
        lines += [b'{"op":"hello","protocol":1,"epoch":1}', b'{"op":"write","data":"x"}']
        lines += [b'{"op":"write","id":"a b","data":"x"}', b'{"op":"write","id":"a","data":7}']
        lines += [b'{"op":"write","id":"a","data":"\\ud800"}', b'{"op":"attach","after":-1}']
        lines += [b'{"op":"attach","after":true}', b'{"op":"stop","kill_after_s":NaN}']
        lines += [
            b'{"op":"stop","kill_after_s":-1}',
            b'{"op":"stop","reason":7}',
            b'{"op":"x","id":' + b"9" * 9999 + b"}",
        ]
        for line in lines:
            await peer.send(line + b"\n")
            reply = await peer.reply()
            assert (reply["ok"], reply["error"]) == (False, "invalid"), line[:40]
            assert reply["message"]
        await peer.send(b'\n\n{"op":"status","id":"s"}\n')
        reply = await peer.reply()
        assert (reply["id"], reply["ok"]) == ("s", True)


async def test_a_command_without_end_gets_an_answer(shims: Shims) -> None:
    shim = await shims.start(["cat"])
    async with wire(shim.directory) as peer:
        await peer.hello()
        for _ in range(66):
            await peer.send(b"x" * (1 << 20))
        assert (await peer.reply())["error"] == "too_long"
        await peer.send(b"still the same line\n")
        assert (await peer.ask(op="status", id=1))["ok"]


async def test_many_commands_in_one_packet_are_answered_in_order(shims: Shims) -> None:
    shim = await shims.start(SLEEP)
    async with wire(shim.directory) as peer:
        await peer.hello()
        await peer.send(b"".join(b'{"op":"status","id":%d}\n' % number for number in range(1000)))
        assert [(await peer.reply())["id"] for _ in range(1000)] == list(range(1000))


async def test_a_reply_reaches_a_peer_that_has_nothing_more_to_say(shims: Shims) -> None:
    shim = await shims.start(["cat"])
    async with wire(shim.directory) as peer:
        await peer.send(b'{"op":"hello","protocol":1,"epoch":null}\n{"op":"stop","id":"s"}\n')
        peer.writer.write_eof()
        assert (await peer.reply())["ok"]
        assert (await peer.reply())["outcome"] == "stopped"
        assert await peer.reader.read() == b""


@pytest.mark.parametrize(
    ("spoken", "answer"),
    [
        ({"protocol": 1}, 1),
        ({"protocol": 7, "min_protocol": 1}, 1),  # a newer worker that still speaks this shim's version
        ({"protocol": 7}, None),
        ({"protocol": 7, "min_protocol": 2}, None),
        ({"protocol": 0}, None),
    ],
)
async def test_versions_are_negotiated(shims: Shims, spoken: dict[str, int], answer: int | None) -> None:
    shim = await shims.start(SLEEP)
    async with wire(shim.directory) as peer:
        reply = await peer.ask(op="hello", epoch=5, **spoken)
        if answer is None:
            assert (reply["error"], reply["protocol"], reply["min_protocol"]) == ("protocol", 1, 1)
            error = error_of(reply)
            assert isinstance(error, ProtocolMismatch)
            assert "left at work" in str(error)
        else:
            assert (reply["ok"], reply["protocol"]) == (True, answer)
    async with shim.observer() as connection:
        status = await connection.status()
        assert (status.state, status.epoch) == ("running", 5 if answer else None)


async def test_a_shim_that_is_not_there_is_told_from_one_that_does_not_answer(shims: Shims) -> None:
    with pytest.raises(ShimGone):
        await connect(shims.directory("nowhere"), epoch=1)
    shim = await shims.start(["cat"])
    async with shim.controller() as connection:
        await shim.kill_shim()
        with pytest.raises(ShimGone):
            await connection.write("x")
    with pytest.raises(ShimGone):
        await connect(shim.directory, epoch=1)


async def test_a_frozen_shim_is_unresponsive(shims: Shims) -> None:
    shim = await shims.start(SLEEP)
    os.kill(shim.status.shim_pid, signal.SIGSTOP)
    try:
        with pytest.raises(ShimUnresponsive):
            await dial(shim.directory, 1, timedelta(seconds=0.2))
    finally:
        os.kill(shim.status.shim_pid, signal.SIGCONT)


async def test_an_invalid_id_is_refused(shims: Shims) -> None:
    shim = await shims.start(["cat"])
    async with shim.controller() as connection:
        for ident in ("two words", "-", "é", "x" * 201, "new\nline"):
            with pytest.raises(InvalidCommand):
                await connection.write("x", id=ident)


async def test_many_peers_are_served_and_too_many_are_turned_away(shims: Shims) -> None:
    shim = await shims.start(SLEEP)
    peers = [await connect(shim.directory, epoch=None) for _ in range(256)]
    with pytest.raises(ShimUnresponsive):
        await dial(shim.directory, None, timedelta(seconds=0.2))
    for peer in peers:
        await peer.aclose()
    async with shim.observer() as connection:
        assert (await connection.status()).state == "running"


async def test_readers_that_went_while_the_agent_was_silent_keep_nobody_out(shims: Shims) -> None:
    """A worker whose way there is cut connects anew, again and again, for as long as an agent waits for a person."""
    shim = await shims.start(SLEEP)
    async with wire(shim.directory) as staying:
        await staying.hello()
        await staying.ask(op="attach")
        staying.writer.write_eof()  # as one that has nothing more to say
        for _ in range(300):
            async with wire(shim.directory) as reader:
                assert (await reader.hello())["ok"]
                await reader.ask(op="attach")
        async with shim.observer() as connection:
            assert (await connection.status()).state == "running"
        await shim.stopped()
        assert b"exit" in await staying.reader.read()


async def test_letting_go_of_a_frozen_shim_waits_for_nobody(shims: Shims) -> None:
    shim = await shims.start(SLEEP)
    async with asyncio.timeout(10):
        connection = await connect(shim.directory, epoch=1)
        writing = asyncio.create_task(connection.write("x" * 5_000_000, id="big"))
        os.kill(shim.status.shim_pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(0)
            await connection.aclose()
        finally:
            os.kill(shim.status.shim_pid, signal.SIGCONT)
        await asyncio.gather(writing, return_exceptions=True)
