"""What is wrong with the words of a command line is said at once, of the word, in words of our own."""

from pathlib import Path

import pytest

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


async def test_a_server_without_tls_is_told_so(steer: Steer) -> None:
    said = await steer("list", TEMPORAL_API_KEY="key")
    assert said.code == 4
    assert "it speaks no TLS, which TEMPORAL_TLS, TEMPORAL_API_KEY or the profile asks for" in said.err


@pytest.mark.linux
async def test_the_file_that_cannot_be_written_is_named(steer: Steer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = await steer("trust", str(tmp_path), XDG_STATE_HOME="/proc/self")
    assert said.code == 1
    assert "cannot write /proc/self/steersman/trusted.json" in said.err
    said = await steer("codec", "new-key", str(tmp_path / "file" / "keys"))
    assert (said.code, f"cannot write {tmp_path}/file/keys" in said.err) == (1, True)
