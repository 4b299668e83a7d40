"""Web pages against `steer dev`: another origin, and a foreign name for the same address (DNS rebinding)."""

import asyncio
import http.client
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from bench.browser import Browser
from steersman.cli.weborigin import BLOCKED_PORTS
from steersman.client import Steersman
from tests.hostile import webstage
from tests.hostile.webstage import FOREIGN, Dev
from tests.support.temporal import binary, connect, free_port

pytestmark = [pytest.mark.acceptance, pytest.mark.linux, pytest.mark.timeout(180)]

needs_browser = pytest.mark.skipif(not webstage.has_browser(), reason="no Chromium here: apt install chromium")
WAYS = ("plain", "json", "token")
START = "/api/v1/namespaces/default/workflows/hostile-http"


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with webstage.steer_dev(tmp_path_factory.mktemp("dev")) as running:
        yield running


@pytest.fixture
async def victim(dev: Dev, tmp_path: Path) -> AsyncIterator[str]:
    """A run at work."""
    client = await connect(dev.address)
    run = f"victim-{tmp_path.name}"
    request = {"agent": "process", "command": ["sleep", "600"], "workspace": {"path": str(tmp_path)}}
    handle = await client.start_workflow("AgentRun", request, id=run, task_queue="steersman")
    yield run
    await handle.terminate()


async def exists(client: Client, run: str) -> bool:
    try:
        await client.get_workflow_handle(run).describe()
    except RPCError:
        return False
    return True


async def nothing_came_of_it(dev: Dev, runs: list[str], victim: str, directory: Path) -> None:
    client = await connect(dev.address)
    assert [run for run in runs if await exists(client, run)] == []
    described = await client.get_workflow_handle(victim).describe()
    assert described.status == WorkflowExecutionStatus.RUNNING
    history = await client.get_workflow_handle(victim).fetch_history()
    cancel = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
    assert cancel not in {event.event_type for event in history.events}
    assert list(directory.glob("marker*")) == []


@needs_browser
async def test_a_page_of_another_origin_reaches_nothing(dev: Dev, victim: str, tmp_path: Path) -> None:
    ports = dev.ports()
    assert {dev.port, dev.ui_port} < set(ports)
    async with webstage.page() as page, webstage.foreign_site() as site:
        await page.visit(site, "prizes")
        for port in ports:
            body = webstage.start_body(tmp_path, f"marker-{port}")
            base = f"http://127.0.0.1:{port}"
            tried = await webstage.attack(page, base, f"cross-{port}", body, victim)
            assert [each for each in tried if each[1] not in {0, 403}] == [], port
    await nothing_came_of_it(dev, [f"cross-{port}-{way}" for port in ports for way in WAYS], victim, tmp_path)


@pytest.mark.exhaustive
@needs_browser
async def test_a_foreign_name_for_this_machine_reaches_nothing(dev: Dev, victim: str, tmp_path: Path) -> None:
    ports = dev.ports()
    async with webstage.page() as page:
        for port in ports:
            base = f"http://{FOREIGN}:{port}"
            await page.go(f"{base}/namespaces/default/workflows")
            assert "_csrf" not in str(await page.value("document.cookie")), port
            body = webstage.start_body(tmp_path, f"marker-{port}")
            tried = await webstage.attack(page, base, f"rebound-{port}", body, victim)
            # The server's own metrics page and its gRPC ports know no such path.
            assert [each for each in tried if each[1] not in {0, 403}] == [], port
    await nothing_came_of_it(dev, [f"rebound-{port}-{way}" for port in ports for way in WAYS], victim, tmp_path)


@pytest.mark.exhaustive
@needs_browser
async def test_the_same_requests_from_the_ui_itself_work(dev: Dev, tmp_path: Path) -> None:
    client = await connect(dev.address)
    body = webstage.start_body(tmp_path, "marker-own", "sleep", "600")
    async with webstage.page() as page:
        await page.visit(f"{dev.ui}/namespaces/default/workflows", "Workflows")
        tried = await webstage.attack(page, dev.ui, "own", body)
        assert [status for what, status, _ in tried if what == "read"] == [200]
        assert await exists(client, "own-token"), tried
        async with asyncio.timeout(60):
            while not (tmp_path / "marker-own").exists():
                await asyncio.sleep(0.05)
        await page.visit(f"{dev.ui}/namespaces/default/workflows", "own-token")
        await page.visit(f"{dev.ui}/namespaces/default/workflows/own-token", "Request Cancellation", "AgentRun")
        asked = await page.value(post("own-token/query/state", {"query": {"queryType": "state"}}))
        assert asked[0] == 200, asked
        updated = await page.value(
            post("own-token/update/interrupt", {"request": {"input": {"name": "interrupt"}, "meta": {"updateId": "u"}}})
        )
        assert updated[0] in {200, 400}, updated  # the run's own answer, not the proxy's
        signalled = await page.value(post("own-token/signal/interrupt", {"signalName": "interrupt"}))
        assert signalled[0] == 200, signalled
        cancelled = await page.value(post("own-token/cancel", {}))
        assert cancelled[0] == 200, cancelled
    async with asyncio.timeout(60):
        while (await client.get_workflow_handle("own-token").describe()).status == WorkflowExecutionStatus.RUNNING:
            await asyncio.sleep(0.05)


async def refreshed(page: Browser, address: str, text: str) -> None:
    """Temporal's page gives up at the first of its questions that a busy server fails, and asks for a refresh."""
    for _ in range(5):
        await page.visit(address)
        await page.wait(f"document.body && /{text}|Try a refresh/.test(document.body.innerText)", text)
        if await page.value(f"document.body.innerText.includes({json.dumps(text)})"):
            return
    raise AssertionError(f"{address} does not show {text!r}")


@pytest.mark.exhaustive
@needs_browser
async def test_what_a_requester_wrote_is_text_in_the_web_ui(dev: Dev, tmp_path: Path) -> None:
    steersman = await Steersman.connect(address=dev.address, namespace="default")
    prompt = "[Approve](https://evil.test/) ![p](https://evil.test/p.png) <img src=x> `c` **b** www.evil.test \u202egnp"
    run = await steersman.start(
        {"agent": "process", "prompt": prompt, "command": ["cat"], "workspace": {"path": str(tmp_path)}}
    )
    await steersman.result(run)
    described = await steersman.temporal.get_workflow_handle(run).describe()
    frames = "[...document.querySelectorAll('iframe')].map(each => each.contentDocument.body)"
    async with webstage.page() as page:
        page_of_it = f"{dev.ui}/namespaces/default/workflows/{run}/{described.run_id}/user-metadata"
        await refreshed(page, page_of_it, "Current Details")
        shown = f"{frames}.filter(each => each.innerText.includes('Approve'))"
        await page.wait(f"{shown}.length === 3", "summary, details and current details")
        made = f"{shown}.map(each => each.querySelectorAll('a, img, code *, p strong').length)"
        assert await page.value(made) == [0, 0, 0]
        texts = await page.value(f"{shown}.map(each => each.innerText)")
    assert all("[Approve](https://evil.test/) ![p](" in each and "<202E>gnp" in each for each in texts), texts


def post(path: str, body: object) -> str:
    """JavaScript that posts as the UI does: [status, text]."""
    address = json.dumps(f"/api/v1/namespaces/default/workflows/{path}")
    return f"""(async () => {{
      const token = (document.cookie.match(/_csrf=([^;]+)/) || [])[1];
      const headers = {{'Content-Type': 'application/json', 'X-CSRF-TOKEN': token}};
      const answer = await fetch({address}, {{method: 'POST', headers, body: JSON.stringify({json.dumps(body)})}});
      return [answer.status, await answer.text()];
    }})()"""


@pytest.mark.exhaustive
@needs_browser
async def test_without_our_settings_the_attack_is_one(tmp_path: Path) -> None:
    """Else the tests above would pass on a broken script."""
    port, http_port, ui_port = free_port(), free_port(), free_port()
    words = ["server", "start-dev", "--ip", "127.0.0.1", "--port", str(port), "--log-level", "never"]
    words += ["--http-port", str(http_port), "--ui-port", str(ui_port)]
    process = subprocess.Popen([binary("temporal"), *words])
    try:
        client = await connect(f"127.0.0.1:{port}")
        async with webstage.page() as page, webstage.foreign_site() as site:
            await page.visit(site, "prizes")
            body = webstage.start_body(tmp_path, "marker")
            await webstage.attack(page, f"http://127.0.0.1:{http_port}", "bare", body)
            rebound = f"http://{FOREIGN}:{ui_port}"
            await page.go(rebound)
            await webstage.attack(page, rebound, "bare-ui", body | {"requestId": "another"})
        assert await exists(client, "bare-plain")
        assert await exists(client, "bare-ui-token")
    finally:
        process.kill()
        process.wait()


# Without a browser: what any client gets.


def ask(port: int, method: str, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, b"{}" if method == "POST" else None, headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"Host": "evil.test"}),
        ("GET", {"Host": "evil.test:8233", "Origin": "http://evil.test:8233"}),
        ("GET", {"Host": "localhost.evil.test"}),
        ("GET", {"Host": "127.0.0.1.evil.test"}),
        ("GET", {"Host": "localhost."}),
        ("GET", {"Host": "127.0.0.1@evil.test"}),
        ("GET", {"Host": "127.0.0.1, evil.test"}),
        ("GET", {"Host": ""}),
        ("GET", {"Host": "2130706433"}),
        ("GET", {"Host": "0.0.0.0"}),
        ("GET", {"Origin": "http://evil.test"}),
        ("GET", {"Origin": "null"}),
        ("GET", {"Sec-Fetch-Site": "cross-site"}),
        ("GET", {"Sec-Fetch-Site": "same-site"}),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}),
        ("OPTIONS", {"Origin": "http://evil.test", "Access-Control-Request-Method": "POST"}),
        ("POST", {}),
        ("POST", {"Sec-Fetch-Site": "none"}),
        ("POST", {"Origin": "http://evil.test"}),
        ("POST", {"Origin": "http://127.0.0.1"}),
        ("POST", {"Origin": "http://localhost:1"}),
        ("POST", {"Origin": "null", "Sec-Fetch-Site": "same-origin"}),
        ("POST", {"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}),
    ],
)
def test_the_proxy_refuses(dev: Dev, method: str, headers: dict[str, str]) -> None:
    assert ask(dev.ui_port, method, START, headers) == 403


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (START, {}),
        (START, {"Sec-Fetch-Site": "same-origin"}),
        ("/namespaces/default/workflows", {"Host": "localhost:9000"}),
        (
            "/namespaces/default/workflows",
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        ),
    ],
)
def test_the_proxy_passes(dev: Dev, path: str, headers: dict[str, str]) -> None:
    assert ask(dev.ui_port, "GET", path, headers) in {200, 404}


def test_two_hosts_or_a_whole_url_are_not_passed(dev: Dev) -> None:
    for head in (
        f"GET {START} HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.test\r\n",
        f"GET http://evil.test{START} HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        f"GET {START} HTTP/1.0\r\n",
    ):
        with socket.create_connection(("127.0.0.1", dev.ui_port), timeout=10) as raw:
            raw.sendall(f"{head}Connection: close\r\n\r\n".encode())
            assert raw.recv(64).split()[1] in {b"400", b"403", b"404"}, head


@needs_browser
async def test_a_browser_connects_to_none_of_the_blocked_ports() -> None:
    async with webstage.page() as page:
        for port in BLOCKED_PORTS:
            assert await page.go(f"http://{FOREIGN}:{port}/") == "net::ERR_UNSAFE_PORT", port


def test_every_other_port_is_out_of_a_browsers_reach_or_answers_nobody(dev: Dev) -> None:
    """Ports that speak HTTP are blocked by browsers, refuse every Host, or are the proxy's."""
    for port in set(dev.ports()) - {dev.ui_port} - set(BLOCKED_PORTS):
        for host in (FOREIGN, "localhost", "nobody", f"127.0.0.1:{port}"):
            try:
                assert ask(port, "POST", START, {"Host": host}) in {403, 404}, port
            except (http.client.HTTPException, OSError):
                continue  # gRPC
