"""Following: every record once, in order, from any number on, whether the shim lives, ends, or is killed."""

import asyncio
import time
from pathlib import Path

import pytest

from activities.shim.client import JournalCorrupt, Record, ShimGone, is_alive, records
from tests.shim.agents import SLEEP, collect, lives, output, python, until
from tests.shim.conftest import Shims
from tests.shim.wire import wire

pytestmark = [pytest.mark.integration, pytest.mark.linux]
COUNT = "for number in range(200): print(number)"


async def test_a_reader_can_begin_after_any_record(every_shim: Shims) -> None:
    shim = await every_shim.start(python(COUNT))
    everything = await collect(records(shim.directory))
    assert len(everything) == 202
    for after in (0, 1, 100, 199, 200, 201):
        assert await collect(records(shim.directory, after=after)) == everything[after:]
    await shim.release()
    for after in (0, 1, 100, 201):
        stream = records(shim.directory, after=after)
        assert (await collect(stream), stream.ending) == (everything[after:], "exit")


@pytest.mark.exhaustive
async def test_a_big_journal_can_be_entered_anywhere(shims: Shims) -> None:
    shim = await shims.start(python("for n in range(60_000): print('%06d' % n + 'x' * 100)"))
    everything = await collect(records(shim.directory))
    for after in (1, 12_345, 59_999, 60_001):
        found = await collect(records(shim.directory, after=after))
        assert (found[0].seq, len(found)) == (after + 1, len(everything) - after)


async def test_lines_arrive_while_the_agent_works(shims: Shims) -> None:
    shim = await shims.start(["cat"])
    stream = records(shim.directory)
    async with shim.controller() as connection, asyncio.timeout(60):
        for number in range(20):
            written = await connection.write(f"{number}\n")
            seen: list[Record] = []
            while not output(seen):
                seen.append(await anext(stream))
            assert (seen[0].seq, seen[0].stream) == (written.seq, "in")
            assert output(seen) == [b"%d" % number]
            assert abs(seen[0].time_ms / 1000 - time.time()) < 30
    await stream.aclose()


async def test_the_stream_goes_over_to_the_file_without_gap_or_repeat(every_shim: Shims) -> None:
    code = "import time\nfor n in range(100_000):\n    print(n)\n    if n > 1000: time.sleep(0.0005)"
    shim = await every_shim.start(python(code))
    stream = records(shim.directory)
    found = [await anext(stream) for _ in range(500)]
    await shim.kill_shim()
    async with asyncio.timeout(30):
        found += [record async for record in stream]
    assert stream.ending == "crash"
    assert [record.seq for record in found] == list(range(1, len(found) + 1))
    assert output(found) == [b"%d" % number for number in range(len(found))]


async def test_a_crash_is_told_from_an_exit_and_a_torn_record_is_ignored(shims: Shims) -> None:
    shim = await shims.start(python("print('one'); print('two'); import time; time.sleep(600)"))
    await collect(records(shim.directory), until_line=b"two")
    await shim.kill_shim()
    await until(lambda: not lives(shim.status.pid))
    journal = shim.directory / "journal"
    whole = journal.read_bytes()
    for cut in (0, 1, 2, 3, 10, 25):
        journal.write_bytes(whole[: len(whole) - cut])
        stream = records(shim.directory)
        assert output(await collect(stream)) == ([b"one", b"two"] if cut == 0 else [b"one"])
        assert stream.ending == "crash"


async def test_a_reader_outlives_the_release(shims: Shims) -> None:
    shim = await shims.start(python("for n in range(100_000): print(n)"))
    stream = records(shim.directory)
    found = [await anext(stream)]
    async with shim.observer() as connection:
        while (await connection.status()).state != "exited":
            await asyncio.sleep(0.005)
        await connection.release()
    found += await collect(stream)
    assert len(found) == 100_002
    assert stream.ending == "exit"
    await until(lambda: not is_alive(shim.directory))


async def test_an_attached_reader_has_everything_before_the_shim_leaves(shims: Shims) -> None:
    shim = await shims.start(python("import sys\nfor n in range(50): sys.stdout.write('x' * 99_999 + '\\n')"))
    await collect(records(shim.directory))
    async with wire(shim.directory) as slow, wire(shim.directory) as operator:
        await slow.hello(None)
        assert (await slow.ask(op="attach", after=0))["ok"]
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await operator.hello(None)
        assert (await operator.ask(op="release"))["ok"]
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            assert await slow.reader.read(-1) == (shim.directory / "journal").read_bytes()


async def test_a_reader_that_does_not_read_costs_nothing(shims: Shims) -> None:
    shim = await shims.start(python("import sys\nfor n in range(300): sys.stdout.write('x' * 99_999 + '\\n')"))
    async with wire(shim.directory) as slow:
        await slow.hello(None)
        assert (await slow.ask(op="attach", after=0))["ok"]
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        assert len(await collect(records(shim.directory))) == 302
        lines = Path(f"/proc/{shim.status.shim_pid}/status").read_text().splitlines()
        assert next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) < 16_000
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            while await slow.reader.read(1 << 20):
                pass


@pytest.mark.exhaustive
async def test_many_small_records_are_read_fast_and_do_not_block_the_loop(shims: Shims) -> None:
    shim = await shims.start(
        python("import sys; sys.stdout.write('a line of usual length, more or less\\n' * 100_000)")
    )
    assert len(await collect(records(shim.directory))) == 100_002
    await shim.release()
    turns, ended = 0, asyncio.Event()

    async def watch() -> None:
        nonlocal turns
        while not ended.is_set():
            turns += 1
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    began = time.process_time()
    stream, count = records(shim.directory), 0
    while batch := await stream.batch():
        count += len(batch)
    took = time.process_time() - began
    ended.set()
    await watching
    assert count == 100_002
    assert took < 5
    assert turns >= 20


async def test_there_is_nothing_to_read_where_nothing_was(shims: Shims) -> None:
    with pytest.raises(ShimGone):
        await collect(records(shims.directory("nowhere")))


async def test_a_file_that_no_shim_wrote_is_an_error(shims: Shims) -> None:
    shim = await shims.start(["true"])
    await collect(records(shim.directory))
    await shim.release()
    (shim.directory / "journal").write_bytes(b"no journal at all\n" * 10)
    with pytest.raises(JournalCorrupt):
        await collect(records(shim.directory))


async def test_a_stream_can_be_left_early(shims: Shims) -> None:
    shim = await shims.start(["sh", "-c", "echo one; exec sleep 600"])
    stream = records(shim.directory)
    assert (await anext(stream)).data == b"one"
    await stream.aclose()
    assert stream.ending is None
    fds = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        stream = records(shim.directory)
        await anext(stream)
        await stream.aclose()
    await until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= fds)


async def test_a_cancelled_reader_leaves_the_agent_alone(shims: Shims) -> None:
    shim = await shims.start(SLEEP)
    reading = asyncio.create_task(collect(records(shim.directory)))
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    async with shim.observer() as connection:
        assert (await connection.status()).state == "running"
