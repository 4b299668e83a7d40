"""What the agent says: every byte is kept, whatever it is, in order, and the shim stays small."""

import asyncio
import hashlib
import json
import resource
from pathlib import Path

import pytest

from activities.shim.client import JournalFull, LineJoiner, StopReport, is_alive, records
from activities.shim.client.dialing import ask, dial
from tests.shim.agents import collect, output, python, until
from tests.shim.conftest import Running, Shims

pytestmark = [pytest.mark.integration, pytest.mark.linux]


def peak_memory(shim: Running) -> int:
    """The most that the shim has ever used, in KiB."""
    lines = Path(f"/proc/{shim.status.shim_pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


async def test_a_line_of_50_mb_comes_whole(shims: Shims) -> None:
    code = "import sys\nfor n in range(50): sys.stdout.write(chr(65 + n % 26) * 1_000_000)\nprint(); print('after')"
    shim = await shims.start(python(code))
    joiner = LineJoiner()
    found = await collect(records(shim.directory))
    assert max(len(record.data) for record in found) <= 256 * 1024
    lines = [line for record in found if (line := joiner.push(record)) is not None]
    assert [len(line.data) for line in lines] == [50_000_000, 5]
    expected = b"".join(bytes([65 + n % 26]) * 1_000_000 for n in range(50))
    assert hashlib.sha256(lines[0].data).digest() == hashlib.sha256(expected).digest()
    assert (lines[0].truncated, lines[0].first_seq, lines[1].data) == (False, 1, b"after")
    assert peak_memory(shim) < 20_000


async def test_bytes_that_are_no_text_survive(every_shim: Shims) -> None:
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000 + b'\\n\\n\\r\\n' + b'\\xff')"
    shim = await every_shim.start(python(code))
    found = output(await collect(records(shim.directory)))
    assert b"\n".join(found) == bytes(range(256)) * 1000 + b"\n\n\r\n\xff"


async def test_lines_of_every_awkward_length_come_whole(shims: Shims) -> None:
    sizes = [size + more for size in (0, 4096, 32768, 65536, 229376, 262144) for more in (-1, 0, 1) if size + more >= 0]
    shim = await shims.start(python(f"import sys\nfor n in {sizes}: sys.stdout.write('x' * n + '\\n')"))
    joiner = LineJoiner()
    lines = [line for record in await collect(records(shim.directory)) if (line := joiner.push(record))]
    assert [len(line.data) for line in lines] == sizes


async def test_300_kb_of_stderr_that_nobody_reads_block_nothing(shims: Shims) -> None:
    code = "import sys\nsys.stderr.write(('e' * 99 + '\\n') * 3000)\nprint('done')"
    shim = await shims.start(python(code))
    found = await collect(records(shim.directory))
    assert output(found) == [b"done"]
    assert output(found, "err") == [b"e" * 99] * 3000


async def test_a_last_line_without_newline_is_kept(every_shim: Shims) -> None:
    shim = await every_shim.start(["sh", "-c", "printf 'one\\ntwo'; printf 'three' >&2"])
    found = await collect(records(shim.directory))
    assert (output(found), output(found, "err")) == ([b"one", b"two"], [b"three"])


async def test_a_long_line_that_the_agent_never_ends_is_closed_at_its_end(shims: Shims) -> None:
    shim = await shims.start(python("import sys; sys.stdout.write('x' * 3_000_000)"))
    joiner = LineJoiner()
    lines = [line for record in await collect(records(shim.directory)) if (line := joiner.push(record))]
    assert [len(line.data) for line in lines] == [3_000_000]


@pytest.mark.exhaustive
async def test_tiny_lines_in_a_flood_are_all_there_and_cost_little_memory(shims: Shims) -> None:
    shim = await shims.start(python("import sys; sys.stdout.write('y\\n' * 300_000)"))
    found = await collect(records(shim.directory))
    assert output(found) == [b"y"] * 300_000
    assert [record.seq for record in found] == list(range(1, 300_003))
    assert peak_memory(shim) < 20_000


async def test_a_full_disk_holds_the_agent_back_and_loses_nothing(shims: Shims) -> None:
    gate = shims.root / "gate"
    code = f"""
import os, sys, time
print("ready")
while not os.path.exists({str(gate)!r}): time.sleep(0.005)
for number in range(20000): sys.stdout.write("line %d\\n" % number)
"""
    shim = await shims.start(python(code))
    await collect(records(shim.directory), until_line=b"ready")
    following = asyncio.create_task(collect(records(shim.directory)))
    journal = shim.directory / "journal"
    old = resource.prlimit(shim.status.shim_pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    gate.touch()
    await until(lambda: "cannot be written" in (shim.directory / "shim.log").read_text())
    assert journal.stat().st_size <= 100_000
    async with shim.controller() as connection:
        with pytest.raises(JournalFull):
            await connection.write("x")
    resource.prlimit(shim.status.shim_pid, resource.RLIMIT_FSIZE, old)
    found = await following
    assert output(found) == [b"ready", *(b"line %d" % number for number in range(20000))]
    assert [record.seq for record in found] == list(range(1, len(found) + 1))


async def test_a_full_disk_does_not_stand_in_the_way_of_a_stop(shims: Shims) -> None:
    shim = await shims.start(python("import sys\nwhile True: sys.stdout.write('flood\\n' * 1000)"))
    old = resource.prlimit(shim.status.shim_pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    await until(lambda: "cannot be written" in (shim.directory / "shim.log").read_text())
    report = await shim.stopped()
    assert isinstance(report, StopReport)
    assert report.outcome == "stopped"
    async with shim.observer() as connection:
        assert (await connection.stop()).outcome == "already_finished"
    resource.prlimit(shim.status.shim_pid, resource.RLIMIT_FSIZE, old)
    found = await collect(records(shim.directory))
    assert json.loads(found[-1].data)["stop"]["outcome"] == "stopped"
    assert set(output(found)[:-1]) == {b"flood"}
    await shim.release()
    assert not is_alive(shim.directory)


async def test_a_flood_is_held_back_while_its_controller_cannot_keep_up(shims: Shims) -> None:
    shim = await shims.start(python("import sys\nwhile True: sys.stdout.write('x' * 65535 + '\\n')"))
    reader, writer, _ = await dial(shim.directory, 1)
    await ask(reader, writer, {"op": "attach", "after": 0})  # and never read from
    journal = shim.directory / "journal"
    await until(lambda: journal.stat().st_size > 64 * 2**20, 60)
    before, held = -1, 0
    while held > before:
        await asyncio.sleep(0.3)
        before, held = held, journal.stat().st_size
    assert 64 * 2**20 < held < 80 * 2**20
    received = 0
    while received < 32 * 2**20:
        received += len(await reader.read(2**20))
    await until(lambda: journal.stat().st_size > held)
    writer.close()
