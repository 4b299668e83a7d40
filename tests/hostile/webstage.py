"""A `steer dev` with its Web UI, seen as a web page sees it, and the requests of a page that means harm."""

import asyncio
import base64
import contextlib
import json
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.browser import Browser, NoBrowserError, browser, program
from tests.cli.steer import STEER, Steer
from tests.support.temporal import free_port

FOREIGN = "evil.test"
FLAGS = (
    f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1",
    # Chromium's own guard would hide whether ours holds; other browsers have none.
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
)
VERBS = ("cancel", "terminate", "signal/interrupt")

ATTACK = """
(async ({base, id, victim, verbs, body}) => {
  const token = (document.cookie.match(/_csrf=([^;]+)/) || [])[1];
  const seen = [];
  const path = base + '/api/v1/namespaces/default/workflows/';
  const send = async (name, url, options) => {
    try {
      const answer = await fetch(url, {credentials: 'include', signal: AbortSignal.timeout(4000), ...options});
      seen.push([name, answer.status, (await answer.text()).slice(0, 80)]);
    } catch (error) { seen.push([name, 0, String(error)]); }
  };
  const ways = {
    plain: {mode: 'no-cors', headers: {'Content-Type': 'text/plain'}},
    json: {headers: {'Content-Type': 'application/json'}},
    token: {headers: {'Content-Type': 'application/json', 'X-CSRF-TOKEN': token || 'none'}},
  };
  await send('read', path.slice(0, -1), {});
  for (const [way, options] of Object.entries(ways)) {
    await send('start', path + id + '-' + way, {method: 'POST', body: JSON.stringify(body), ...options});
    for (const verb of victim ? verbs : [])
      await send(verb, path + victim + '/' + verb, {method: 'POST', body: '{}', ...options});
  }
  return seen;
})
"""


def start_body(directory: Path, marker: str, *command: str) -> dict[str, Any]:
    """What starts a run that leaves a file, in the HTTP API's JSON."""
    shell = ["sh", "-c", f"touch {directory / marker}; {' '.join(command)}"]
    # An attack starts two of them.
    request = {
        "agent": "process",
        "command": shell,
        "workspace": {"path": str(directory), "on_overlap": "queue"},
    }
    payload = {
        "metadata": {"encoding": base64.b64encode(b"json/plain").decode()},
        "data": base64.b64encode(json.dumps(request).encode()).decode(),
    }
    return {
        "workflowType": {"name": "AgentRun"},
        "taskQueue": {"name": "steersman"},
        "input": {"payloads": [payload]},
        "requestId": marker,
    }


@dataclass(frozen=True)
class Dev:
    """A running `steer dev`."""

    pid: int
    port: int
    ui_port: int
    home: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def ui(self) -> str:
        return f"http://127.0.0.1:{self.ui_port}"

    def ports(self) -> list[int]:
        """Every TCP port on which one of its processes listens."""
        return sorted({port for pid in family(self.pid) for port in listening(pid)})


@contextlib.contextmanager
def steer_dev(home: Path) -> Iterator[Dev]:
    """`steer dev` with the Web UI, ready; ended afterwards."""
    port, ui_port = free_port(), free_port()
    env = Steer(f"127.0.0.1:{port}", home).env
    words = ["dev", "--port", str(port), "--ui-port", str(ui_port)]
    process = subprocess.Popen([*STEER, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if line.startswith("Ctrl-C"):
                break
        assert said[-1].startswith("Ctrl-C"), "".join(said)
        yield Dev(process.pid, port, ui_port, home)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += family(int(child))
    return found


def listening(pid: int) -> set[int]:
    """TCP ports on which a process listens, IPv4 and IPv6; none of one that has ended."""
    sockets: set[str] = set()
    ports: set[int] = set()
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
        tables = [Path(f"/proc/{pid}/net/{table}").read_text() for table in ("tcp", "tcp6")]
    except OSError:
        return ports
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            sockets.update(re.findall(r"socket:\[(\d+)\]", str(descriptor.readlink())))
    for table in tables:
        for row in table.splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and fields[9] in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


@contextlib.asynccontextmanager
async def page() -> AsyncIterator[Browser]:
    """A browser in which `evil.test` is this machine."""
    async with browser(1200, 900, *FLAGS) as opened:
        yield opened


def has_browser() -> bool:
    with contextlib.suppress(NoBrowserError):
        return bool(program())
    return False


@contextlib.asynccontextmanager
async def foreign_site() -> AsyncIterator[str]:
    """The address of a page of somebody else's."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        text = b"<!doctype html><title>prizes</title><p>prizes"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n" + text)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://{FOREIGN}:{server.sockets[0].getsockname()[1]}"


async def attack(browser_page: Browser, base: str, run: str, body: dict[str, Any], victim: str = "") -> list[list[Any]]:
    """What the open page gets when it tries to read, start, cancel, terminate and signal: [what, status, text] each."""
    said = json.dumps({"base": base, "id": run, "victim": victim, "verbs": VERBS, "body": body})
    tried: list[list[Any]] = await browser_page.value(f"{ATTACK}({said})")
    return tried
