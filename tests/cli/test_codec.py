"""Keys are made by `steer`, and a codec that cannot be used is told before anything else is tried."""

import stat
from pathlib import Path

import pytest

from steersman.keys import add_key, new_key, read_keys
from tests.cli.steer import ROOT, Steer

CODEC = "steersman.encryption:EncryptionCodec"
NOWHERE = "127.0.0.1:1"


async def test_a_new_key_is_shown_to_nobody_who_did_not_ask(tmp_path: Path) -> None:
    steer, path = Steer(NOWHERE, tmp_path), tmp_path / "no" / "such" / "keys"
    said = await steer("codec", "new-key", "--id", "first", STEERSMAN_CODEC_KEYS=str(path))
    (first,) = read_keys(path)
    assert (said.code, said.out, first.id, stat.S_IMODE(path.stat().st_mode)) == (0, "", "first", 0o600)
    assert first.line.split()[1] not in said.err
    asked = await steer("codec", "new-key", str(path), "--last", "--print")
    assert asked.out == read_keys(path)[1].line
    again = await steer("codec", "new-key", str(path), "--id", "first")
    assert (again.code, "already" in again.err) == (2, True)


async def test_a_recorded_history_replays_with_a_codec_and_without(tmp_path: Path) -> None:
    steer, path = Steer(NOWHERE, tmp_path), tmp_path / "keys"
    add_key(path, new_key())
    history = next((ROOT / "tests/histories").rglob("*.json"))
    said = await steer("replay", str(history), STEERSMAN_CODEC=CODEC, STEERSMAN_CODEC_KEYS=str(path))
    assert (said.code, said.err) == (0, "")


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", [("list",), ("dev", "--headless"), ("worker", "check"), ("doctor",)])
async def test_a_wrong_codec_is_told_at_once(tmp_path: Path, words: tuple[str, ...]) -> None:
    steer = Steer(NOWHERE, tmp_path)
    said = await steer(*words, STEERSMAN_CODEC=CODEC, STEERSMAN_CODEC_KEYS=str(tmp_path / "none"))
    code = 1 if words == ("doctor",) else 2
    assert (said.code, "cannot read the codec's keys" in said.err + said.out) == (code, True), said
    assert "Traceback" not in said.err
