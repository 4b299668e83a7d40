"""What is wrong with the words of a command line is said at once, of the word, in words of our own."""

import asyncio
import socket
import subprocess
from pathlib import Path

import pytest

from steersman import connection
from steersman.errors import ServerUnreachable
from tests.cli.steer import Steer

pytestmark = pytest.mark.integration
PROCESS = ("run", "process")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("list", "--limit", "0"), "must be at least 1"),
        (("list", "--limit", "x"), "must be a whole number"),
        (("run", "claude", "x", "--mode", "foo"), "'foo' is not one of"),
        ((*PROCESS, "--max-cost", "nan", "--", "true"), "limits.cost_usd: must be a finite number"),
        ((*PROCESS, "--max-cost", "abc", "--", "true"), "must be a number"),
        ((*PROCESS, "-w", "", "--", "true"), "--workspace: must not be empty"),
        (("checkpoints", ""), "--workspace: must not be empty"),
        (("show", ""), "RUN: must not be empty"),
        (("stop", " "), "RUN: must not be empty"),
        (("loop", "status", ""), "LOOP: must not be empty"),
        (("trust", ""), "DIRECTORY: must not be empty"),
        (("run", "claude", "x", "--deny", ""), "permissions.deny.0: must not be empty"),
        ((*PROCESS, "@/dev/zero", "--", "cat"), "/dev/zero: longer than 16 MiB"),
        ((*PROCESS, "@alice: please look", "--", "cat"), "a text that begins with @ is read from stdin: -"),
        ((*PROCESS, "@", "--", "cat"), "cannot read @"),
        ((*PROCESS, "--option", "messages={", "--", "cat"), "--option messages: not JSON"),
        ((*PROCESS, "--ssh", "x y", "--", "cat"), "'x y' is no machine that ssh reaches"),
        (("run", "claude", "x", "--fallback", "codex:"), "--fallback: expected AGENT[:MODEL], not 'codex:'"),
        ((*PROCESS, "--webhook", "hooks.example.com", "--", "cat"), "--webhook: it has to begin with https:// or"),
        (("loop", "start", "x", "--webhook", "-"), "--webhook: it has to begin with https:// or http://"),
        (("--address", "foo:99999", "list"), "address 'foo:99999': expected HOST:PORT"),
        (
            (*PROCESS, "--kubernetes", "default", "--pod", "node_selector={", "--", "cat"),
            "--pod node_selector: not JSON",
        ),
    ],
)
async def test_a_wrong_word_is_named(steer: Steer, words: tuple[str, ...], told: str) -> None:
    said = await steer(*words, COLUMNS="400")
    assert (said.code, said.out) == (2, "")
    assert told in " ".join(said.err.split())
    for pydantics in ("Input should", "Value error", "String should", "Traceback"):
        assert pydantics not in said.err


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (("run",), "[AGENT] [PROMPT] [-- COMMAND ...]"),
        (("loop", "checkpoints"), "{LOOP} [ACTION] [N]..."),
        (("codec", "new-key"), "[FILE]"),
        (("replay",), "[RUN|FILE]"),
    ],
)
async def test_help_names_arguments_as_the_documentation_does(steer: Steer, words: tuple[str, ...], usage: str) -> None:
    shown = (await steer(*words, "-h", COLUMNS="400")).out.splitlines()
    assert f"Usage: steer {' '.join(words)} [OPTIONS] {usage}" in [line.strip() for line in shown]


async def test_a_server_without_tls_is_told_so(steer: Steer) -> None:
    said = await steer("list", TEMPORAL_API_KEY="key")
    assert said.code == 4
    assert "it speaks no TLS, which TEMPORAL_TLS, TEMPORAL_API_KEY or the profile asks for" in said.err


@pytest.mark.parametrize("tls", ["", "true"])
async def test_a_port_that_takes_connections_and_says_nothing_is_no_server(
    monkeypatch: pytest.MonkeyPatch, tls: str
) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 0.5)
    if tls:
        monkeypatch.setenv("TEMPORAL_TLS", tls)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ServerUnreachable, match="it did not answer in time"),
    ):
        await connection.connect(address=f"127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize(
    ("certificate", "key", "told"),
    [
        ("nothing", "one.key", "TLS_CLIENT_CERT_PATH, _DATA, or of the profile) has no certificate in PEM"),
        ("empty", "one.key", "TLS_CLIENT_CERT_PATH, _DATA, or of the profile) is none"),
        ("one", "nothing", "TLS_CLIENT_KEY_PATH, _DATA, or of the profile) has no private key in PEM"),
        ("one", "other.key", "do not belong together"),
        ("one", "", "are needed both"),
    ],
)
async def test_a_client_certificate_that_cannot_be_used(
    steer: Steer, tmp_path: Path, certificate: str, key: str, told: str
) -> None:
    certificate_of(tmp_path, "one")
    certificate_of(tmp_path, "other")
    (tmp_path / "nothing").write_text("nothing\n")
    (tmp_path / "empty").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    variables = {"TEMPORAL_TLS_CLIENT_CERT_PATH": str(tmp_path / certificate)}
    if key:
        variables["TEMPORAL_TLS_CLIENT_KEY_PATH"] = str(tmp_path / key)
    said = await steer("list", **variables)
    assert (said.code, said.out) == (2, "")
    assert told in said.err
    assert "tonic" not in said.err


async def test_why_a_server_with_tls_is_not_reached(steer: Steer, tmp_path: Path) -> None:
    served = certificate_of(tmp_path, "127.0.0.1")
    elsewhere = certificate_of(tmp_path, "elsewhere.example")
    for own, trusted, flags, told in (
        (served, elsewhere, (), "its certificate is not trusted"),
        (elsewhere, elsewhere, (), "its certificate is for another name"),
        # Which it asks for, or may want: its reason can be lost on the way.
        (served, served, ("-Verify", "1"), "a client certificate"),
    ):
        server = await asyncio.create_subprocess_exec(
            *("openssl", "s_server", "-accept", "127.0.0.1:0", "-alpn", "h2", "-cert", own, "-key", f"{own}.key"),
            *flags,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert server.stdout
        await server.stdout.readuntil(b"ACCEPT ")
        address = (await server.stdout.readline()).decode().strip()
        said = await steer("list", TEMPORAL_ADDRESS=address, TEMPORAL_TLS_SERVER_CA_CERT_PATH=str(trusted))
        server.kill()
        await server.wait()
        assert said.code == 4
        assert told in said.err
        assert "tonic" not in said.err


def certificate_of(directory: Path, name: str) -> Path:
    """A self-signed certificate for that name, with its key beside it."""
    file, kind = directory / name, "IP" if name[0].isdigit() else "DNS"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", f"{file}.key", "-out", str(file), "-subj", "/CN=steersman", "-days", "1"),
            *("-addext", f"subjectAltName={kind}:{name}", "-addext", "basicConstraints=critical,CA:FALSE"),
        ],
        check=True,
        capture_output=True,
    )
    return file


@pytest.mark.linux
async def test_the_file_that_cannot_be_written_is_named(steer: Steer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = await steer("trust", str(tmp_path), XDG_STATE_HOME="/proc/self")
    assert said.code == 1
    assert "cannot write /proc/self/steersman/trusted.json" in said.err
    said = await steer("codec", "new-key", str(tmp_path / "file" / "keys"))
    assert (said.code, f"cannot write {tmp_path}/file/keys" in said.err) == (1, True)
