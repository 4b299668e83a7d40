"""Commands in containers: streams, ends, half-closed stdin, and connections that break."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest

from tests.kubernetes_server.kube import NAMESPACE, Kube, drain, no_websocket
from tests.support.kubernetes import OLD, BackgroundServer, Settings
from tests.support.kubernetes.faults import ExecCut
from tests.support.processes import lives, marked, until

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"


def address(cluster: BackgroundServer, *command: str, stdin: bool = False) -> str:
    query = [*(("command", each) for each in command), ("stdout", "true"), ("stderr", "true"), ("stdin", str(stdin))]
    return f"{cluster.server.url}/api/v1/namespaces/{NAMESPACE}/pods/p/exec?{urlencode(query)}"


def talk(opened: Any) -> None:
    """A byte after another, until the connection breaks."""
    while opened.is_open():
        opened.write_stdin(b"x")
        opened.update(timeout=0.05)


async def frames(cluster: BackgroundServer, protocols: Sequence[str], *command: str) -> tuple[str | None, list[bytes]]:
    """What is spoken, and all that comes."""
    headers = {"Authorization": f"Bearer {cluster.server.access.admin}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.ws_connect(address(cluster, *command), protocols=protocols) as socket,
    ):
        return socket.protocol, [bytes(each.data) async for each in socket]


async def test_output_comes_apart_and_the_exit_code_at_the_end(kube: Kube) -> None:
    kube.pod(container={"workingDir": "/srv"})
    await kube.phase("p", "Running")
    done = kube.exec("p", "sh", "-c", "pwd; echo wrong >&2; exit 7")
    assert (done.stdout, done.stderr, done.code) == (b"/srv\n", b"wrong\n", 7)
    assert done.status == {
        "metadata": {},
        "status": "Failure",
        "message": "command terminated with non-zero exit code: command terminated with exit code 7",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
    }
    assert kube.exec("p", "true").status == {"metadata": {}, "status": "Success"}
    assert kube.exec("p", "sh", "-c", "kill -KILL $$").code == 137


async def test_a_closed_stdin_is_the_end_of_a_file(kube: Kube) -> None:
    kube.pod()
    await kube.phase("p", "Running")
    data = bytes(range(256)) * 4096
    done = kube.exec("p", "cat", stdin=data)
    assert (done.stdout, done.code) == (data, 0)


async def test_many_megabytes_come_whole(kube: Kube) -> None:
    kube.pod()
    await kube.phase("p", "Running")
    assert len(kube.exec("p", "head", "-c", "8000000", "/dev/zero").stdout) == 8_000_000


async def test_the_newest_protocol_that_both_know_is_spoken(kube: Kube, cluster: BackgroundServer) -> None:
    kube.pod()
    await kube.phase("p", "Running")
    protocol, got = await frames(cluster, [V4, V5], "echo", "x")
    assert protocol == V5
    assert got == [b"\x01x\n", b'\x03{"metadata": {}, "status": "Success"}']
    protocol, got = await frames(cluster, [V4], "echo", "x")
    assert protocol == V4
    assert got[0] == b"\x01"  # the kubelet says first that it is there


@pytest.mark.parametrize("settings", [Settings(release=OLD)])
async def test_an_old_cluster_cannot_half_close(kube: Kube, cluster: BackgroundServer) -> None:
    kube.pod()
    await kube.phase("p", "Running")
    assert (await frames(cluster, [V5, V4], "true"))[0] == V4
    with pytest.raises(aiohttp.WSServerHandshakeError) as raised:
        await frames(cluster, [V5], "true")
    assert raised.value.status == 403
    headers = {"Authorization": f"Bearer {cluster.server.access.admin}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.ws_connect(address(cluster, "cat", stdin=True), protocols=[V4]) as socket,
    ):
        assert (await socket.receive()).data == b"\x01"
        for word in (b"x\n", b"y\n"):
            await socket.send_bytes(b"\x00" + word)
            await socket.send_bytes(b"\xff\x00")
            assert (await socket.receive()).data == b"\x01" + word


async def test_what_cannot_be_run_is_said_in_the_status(kube: Kube) -> None:
    kube.pod()
    await kube.phase("p", "Running")
    status = kube.exec("p", "no-such-program").status
    assert (status["code"], status["reason"]) == (500, "InternalError")
    assert 'exec: "no-such-program": executable file not found in $PATH' in status["message"]


async def test_a_container_that_does_not_run_has_no_commands(kube: Kube, cluster: BackgroundServer) -> None:
    kube.pod(command=("true",))
    await kube.phase("p", "Succeeded")
    status = kube.exec("p", "true").status
    assert status["message"] == 'Internal error occurred: unable to upgrade connection: container not found ("main")'
    with pytest.raises(aiohttp.WSServerHandshakeError) as raised:
        await frames(cluster, [V4], "true")
    assert raised.value.status == 500
    with no_websocket(400, "container other is not valid for pod p"):
        kube.exec("p", "true", container="other")
    with no_websocket(404, "not found"):
        kube.exec("another", "true")


async def test_a_pod_without_a_node_has_no_commands(kube: Kube, cluster: BackgroundServer) -> None:
    cluster.server.settings.schedules_pods = False
    kube.pod()
    with no_websocket(400, "pod p does not have a host assigned"):
        kube.exec("p", "true")


async def test_a_command_outlives_its_connection_but_its_stdin_ends(kube: Kube, cluster: BackgroundServer) -> None:
    kube.pod()
    await kube.phase("p", "Running")
    opened = kube.open("p", "sh", "-c", "cat > /dev/null; touch /tmp/ended; exec sleep 61.5", stdin=True)
    opened.write_stdin(b"x")
    await until(lambda: marked("cat > /dev/null; touch"))
    cluster.call(cluster.server.sessions.cut)
    opened.sock.shutdown()
    await until(lambda: kube.exec("p", "test", "-e", "/tmp/ended").code == 0)
    assert any(lives(pid) for pid in marked("61.5"))


async def test_a_command_ends_with_its_container(kube: Kube) -> None:
    kube.pod()
    await kube.phase("p", "Running")
    opened = kube.open("p", "sleep", "60")
    kube.core.delete_namespaced_pod("p", NAMESPACE, grace_period_seconds=1)
    assert drain(opened).code == 137


async def test_a_connection_is_cut_after_so_many_bytes(kube: Kube, cluster: BackgroundServer) -> None:
    kube.pod()
    await kube.phase("p", "Running")
    cluster.server.faults.exec_cuts = [ExecCut(sent=100_000), ExecCut(received=10)]
    for command in (("head", "-c", "8000000", "/dev/zero"), ("cat",)):
        opened = kube.open("p", *command, stdin=True)
        with pytest.raises(Exception, match=r"lost|closed|reset|Broken pipe"):
            talk(opened)
        opened.sock.shutdown()
    assert kube.exec("p", "true").code == 0


async def test_a_status_can_be_lost(kube: Kube, cluster: BackgroundServer) -> None:
    kube.pod()
    await kube.phase("p", "Running")
    cluster.server.faults.dropped_statuses = 1
    headers = {"Authorization": f"Bearer {cluster.server.access.admin}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.ws_connect(address(cluster, "echo", "x"), protocols=[V5]) as socket,
    ):
        got = [each async for each in socket]
    assert [bytes(each.data) for each in got if each.type is aiohttp.WSMsgType.BINARY] == [b"\x01x\n"]
    assert socket.close_code in {None, aiohttp.WSCloseCode.ABNORMAL_CLOSURE}
