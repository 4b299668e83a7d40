"""Headless Chromium by its debugging pipe: open a page, wait for a text, take its picture. No library, no port."""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 30.0
BECOME = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads commands from descriptor 3 and writes answers to 4."""


class NoBrowserError(Exception):
    """No Chromium is installed."""


class Browser:
    """One page. Made by `browser`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(1)
        self._page = ""

    async def open(self, width: int, height: int) -> None:
        """A page of that many pixels."""
        target = await self._ask("Target.createTarget", url="about:blank")
        attached = await self._ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._page = str(attached["sessionId"])
        await self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def go(self, address: str) -> str:
        """Open an address, and wait for what is shown: the page, or the browser's own word that there is none, which is
        returned (`net::ERR_...`).
        """
        answer = await self._ask("Page.navigate", url=address)
        await self.wait("document.readyState === 'complete'", address)
        return str(answer.get("errorText", ""))

    async def visit(self, address: str, *texts: str) -> None:
        """Open an address and wait until all these texts are on the page.

        Raises TimeoutError, with what is there instead, and ConnectionError (`net::ERR_...`) where there is no page.
        """
        answer = await self._ask("Page.navigate", url=address)
        if failed := answer.get("errorText"):
            raise ConnectionError(f"{address}: {failed}")
        for text in texts:
            await self.wait(f"document.body && document.body.innerText.includes({json.dumps(text)})", text)

    async def wait(self, condition: str, what: str) -> None:
        """Until a JavaScript expression is true. Raises TimeoutError."""
        for _ in range(int(PATIENCE_S / 0.1)):
            if await self.value(condition) is True:
                return
            await asyncio.sleep(0.1)
        there = await self.value("document.body ? document.body.innerText : ''")
        raise TimeoutError(f"the page did not show {what!r} within {PATIENCE_S:.0f} s, but {there!r}")

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression gives; of a promise, what it comes to."""
        answer = await self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    async def picture(self, file: Path, width: int, height: int) -> None:
        """A PNG of the upper left of what the window shows."""
        await asyncio.sleep(1)  # what fades in, or is drawn in a frame of its own, has no end to wait for
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        taken = await self._ask("Page.captureScreenshot", format="png", clip=clip)
        file.write_bytes(base64.b64decode(taken["data"]))

    async def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        page = {"sessionId": self._page} if self._page else {}
        self._writer.write(json.dumps({"id": number, "method": method, "params": parameters, **page}).encode() + b"\0")
        await self._writer.drain()
        while True:
            said = json.loads((await asyncio.wait_for(self._reader.readuntil(b"\0"), PATIENCE_S))[:-1])
            if said.get("id") != number:
                continue
            if "error" in said:
                raise RuntimeError(f"{method}: {said['error']}")
            result: dict[str, Any] = said["result"]
            return result


def program() -> str:
    """The Chromium of this machine. Raises NoBrowserError."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise NoBrowserError(
        "no Chromium found: install Debian's package `chromium` (apt install chromium), or one like it"
    )


@contextlib.asynccontextmanager
async def browser(width: int, height: int, *flags: str) -> AsyncIterator[Browser]:
    """A browser with an empty profile and further flags, gone afterwards. Raises NoBrowserError."""
    found = program()
    with tempfile.TemporaryDirectory(prefix="steersman-browser-", ignore_cleanup_errors=True) as profile:
        commands, to_browser = os.pipe()
        from_browser, answers = os.pipe()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", BECOME, str(commands), str(answers)),
            *(found, *FLAGS, *flags, f"--user-data-dir={profile}", "about:blank"),
            pass_fds=(commands, answers),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        try:
            page = Browser(*await _streams(from_browser, to_browser))
            await page.open(width, height)
            yield page
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _streams(source: int, sink: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb"))
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(sink, "wb"))
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)
