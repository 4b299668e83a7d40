"""The codec server decrypts for whoever may ask it: this user's programs, and the Web UI's pages."""

import asyncio
import base64
import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio.api.common.v1 import Payload

from bench.browser import NAMES, browser
from steersman.client import Steersman
from steersman.codec import VARIABLE
from steersman.encryption import KEYS_VARIABLE, EncryptionCodec, encrypt
from steersman.keys import add_key, new_key, read_keys
from tests.acceptance.site import Site
from tests.cli.steer import Steer, line_with
from tests.support.temporal import binary, connect, free_port

CODEC = "steersman.encryption:EncryptionCodec"
UI = "http://127.0.0.1:8233"
PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"a secret prompt"')
WORDS = base64.b64encode(PLAIN.data).decode()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    add_key(path, new_key("first"))
    return path


class Served:
    """One `steer codec serve`, and asking it."""

    def __init__(self, port: int, keys: Path) -> None:
        self.port, self.keys = port, keys

    def ask(
        self, *payloads: Payload, path: str = "/decode", method: str = "POST", body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers and text of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        sent = {"Content-Type": "application/json", "X-Namespace": "default"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body=as_json(*payloads) if body is None else body, headers=sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text

    @property
    def secret(self) -> Payload:
        return encrypt(PLAIN, read_keys(self.keys)[0])


def as_json(*payloads: Payload) -> bytes:
    """Temporal's JSON of Payloads."""
    told = [
        {
            "metadata": {name: base64.b64encode(value).decode() for name, value in each.metadata.items()},
            "data": base64.b64encode(each.data).decode(),
        }
        for each in payloads
    ]
    return json.dumps({"payloads": told}).encode()


@asynccontextmanager
async def serving(keys: Path, tmp_path: Path, origin: str = UI) -> AsyncIterator[Served]:
    steer = Steer("127.0.0.1:1", tmp_path)
    port = free_port()
    words = ("codec", "serve", "--port", str(port), "--origin", origin)
    process = await steer.start(*words, **{VARIABLE: CODEC, KEYS_VARIABLE: str(keys)})
    try:
        await line_with(process, f"http://127.0.0.1:{port}")
        yield Served(port, keys)
        process.terminate()
        assert await process.wait() == 0
    finally:
        await steer.close()


@pytest.fixture
async def served(keys: Path, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(keys, tmp_path) as server:
        yield server


async def test_the_web_ui_decodes_and_encodes(served: Served) -> None:
    status, headers, text = served.ask(served.secret, PLAIN, Origin=UI)
    assert (status, headers["access-control-allow-origin"], headers["cache-control"]) == (200, UI, "no-store")
    assert [base64.b64decode(each["data"]) for each in json.loads(text)["payloads"]] == [PLAIN.data] * 2

    status, _, text = served.ask(PLAIN, path="/some/prefix/encode", Origin=UI)
    assert status == 200
    (sealed,) = json.loads(text)["payloads"]
    assert base64.b64decode(sealed["metadata"]["encoding"]) == b"binary/encrypted"
    assert WORDS in served.ask(body=text.encode(), Origin=UI)[2]

    asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "content-type,x-namespace"}
    status, headers, _ = served.ask(method="OPTIONS", body=b"", Origin=UI, **asked)
    assert (status, headers["access-control-allow-origin"]) == (204, UI)
    assert {"content-type", "x-namespace"} <= set(headers["access-control-allow-headers"].split(", "))


async def test_another_page_or_another_name_is_refused(served: Served) -> None:
    wrong: list[dict[str, str]] = [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8080"},
        {"Origin": f"{UI}.evil.example"},
        {"Host": "evil.example"},
        {"Host": "evil.example:8081", "Origin": UI},
        {"Host": "127.0.0.1.evil.example:8081"},
        {"Sec_Fetch_Site": "cross-site"},
    ]
    for headers in wrong:
        for method in ("POST", "OPTIONS"):
            status, told, text = served.ask(served.secret, method=method, **headers)
            assert (headers, status) == (headers, 403)
            assert "access-control-allow-origin" not in told
            assert WORDS not in text


async def test_what_is_no_payload_is_refused_in_words(served: Served) -> None:
    good = served.secret
    forged = Payload(metadata=dict(good.metadata), data=good.data[:-1] + bytes([good.data[-1] ^ 1]))
    status, _, text = served.ask(good, forged)
    assert (status, "changed, or is forged" in text, WORDS in text) == (
        400,
        True,
        False,
    )
    for body in (b"", b"{", b'{"payloads": 1}', b'{"payloads": ' + b"[" * 100_000, b"\xff"):
        assert (body[:20], served.ask(body=body)[0]) == (body[:20], 400)
    assert served.ask(good, Content_Type="text/plain")[0] == 415
    assert served.ask(body=b" " * (17 * 1024 * 1024))[0] == 413
    assert served.ask(good)[0] == 200


@pytest.mark.linux
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_of_the_machine_is_refused(served: Served, tmp_path: Path) -> None:
    program = """
import encodings.idna, http.client, os, sys
os.setuid(int(sys.argv[4]))
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request("POST", "/decode", sys.argv[2], {"Content-Type": "application/json", "Origin": sys.argv[3]})
print(connection.getresponse().status)
"""
    command = [sys.executable, "-I", "-S", "-c", program, str(served.port), as_json(served.secret).decode(), UI]
    for user, status in (("65534", "403"), ("0", "200")):
        done = subprocess.run([*command, user], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == status


@pytest.mark.exhaustive
async def test_the_temporal_cli_reads_histories_through_it(site: Site, keys: Path, tmp_path: Path) -> None:
    prompt = "find the canary"
    steersman = await site.steersman(EncryptionCodec(keys))
    request: dict[str, Any] = {"agent": "process", "workspace": {"path": "/"}, "command": ["true", prompt]}
    run = await steersman.start(request)

    def shown(*options: str) -> bytes:
        command = [binary("temporal"), "workflow", "show", "--workflow-id", run, "--output", "json", *options]
        command += ["--address", site.namespace.address, "--namespace", site.namespace.name]
        done = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL)
        started = json.loads(done.stdout)["events"][0]["workflowExecutionStartedEventAttributes"]
        return base64.b64decode(started["input"]["payloads"][0]["data"])

    assert prompt.encode() not in shown()
    async with serving(keys, tmp_path) as server:
        assert prompt.encode() in shown("--codec-endpoint", f"http://127.0.0.1:{server.port}")


@asynccontextmanager
async def web_ui(server: str, port: int, codec: str) -> AsyncIterator[None]:
    """A dev server with its Web UI on that port, which asks that codec server."""
    command = [binary("temporal"), "server", "start-dev", "--ip", "127.0.0.1", "--port", server.rpartition(":")[2]]
    command += ["--ui-port", str(port), "--ui-codec-endpoint", codec, "--log-level", "never"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


async def ui_ready(ui: str) -> None:
    """Until the Web UI has reached its server: a page that asks before shows an error, and asks no more."""
    async with httpx2.AsyncClient() as client:
        for _ in range(600):
            with contextlib.suppress(httpx2.TransportError):
                if (await client.get(f"{ui}/api/v1/cluster-info")).is_success:
                    return
            await asyncio.sleep(0.1)
    raise TimeoutError(f"{ui} did not reach its server within a minute")


ASKING = """
window.got = "";
fetch("%s/decode", {method: "POST", headers: {"content-type": "application/json"}, body: '{"payloads": []}'})
    .then(answer => window.got = "status " + answer.status, error => window.got = "" + error)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(not any(map(shutil.which, NAMES)), reason="no Chromium here: apt install chromium")
async def test_in_a_real_browser_the_web_ui_reads_and_another_page_does_not(keys: Path, tmp_path: Path) -> None:
    server, ui_port = f"127.0.0.1:{free_port()}", free_port()
    ui = f"http://127.0.0.1:{ui_port}"
    async with serving(keys, tmp_path, ui) as codec, browser(1400, 1000) as page:
        endpoint = f"http://127.0.0.1:{codec.port}"
        async with web_ui(server, ui_port, endpoint):
            await ui_ready(ui)
            await connect(server)
            steersman = await Steersman.connect(address=server, codec=EncryptionCodec(keys))
            request: dict[str, Any] = {"agent": "process", "workspace": {"path": "/"}, "command": ["find-the-canary"]}
            run = await steersman.start(request)
            await steersman.temporal.get_workflow_handle(run).terminate()
            runs = f"namespaces/default/workflows/{run}"
            await page.visit(f"{ui}/{runs}", "find-the-canary")
            await page.value(f"{ASKING % endpoint} && 0")
            await page.wait("window.got === 'status 200'", "the answer")
            await page.visit(f"{ui.replace('127.0.0.1', 'localhost')}/{runs}", "Event History")
            await page.value(f"{ASKING % endpoint} && 0")
            await page.wait("window.got.startsWith('TypeError')", "no answer")
            assert not await page.value("document.body.innerText.includes('find-the-canary')")


async def test_without_a_codec_there_is_no_server(tmp_path: Path) -> None:
    said = await Steer("127.0.0.1:1", tmp_path)("codec", "serve")
    assert (said.code, "STEERSMAN_CODEC is not set" in said.err) == (2, True)
