"""The codec that comes along: its keys' file, its bytes, and how it is named."""

import base64
import os
import resource
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.common import RawValue
from temporalio.converter import PayloadCodec
from temporalio.exceptions import ApplicationError

from steersman.codec import DeferredErrorCodec, codec_of, data_converter, load, name_of
from steersman.contracts.errors import AgentFailed
from steersman.encryption import KEYS_VARIABLE, EncryptionCodec
from steersman.errors import BadCodec, MissingKey, TamperedPayload, UnreadablePayload
from steersman.keys import Key, KeyFile, add_key, new_key, read_keys

PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"hello"')
NAMED = "steersman.encryption:EncryptionCodec"
KEY = base64.b64encode(bytes(32)).decode()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    add_key(path, new_key("first"))
    return path


async def test_the_bytes_are_those_of_the_wire(keys: Path) -> None:
    """docs/wire.md says how to read them in any language; this is that recipe."""
    (sealed,) = await EncryptionCodec(keys).encode([PLAIN])
    assert dict(sealed.metadata) == {
        "encoding": b"binary/encrypted",
        "encryption-cipher": b"AES-256-GCM",
        "encryption-key-id": b"first",
    }
    name, secret = keys.read_text().splitlines()[-1].split()
    opened = AESGCM(base64.b64decode(secret)).decrypt(sealed.data[:12], sealed.data[12:], name.encode())
    assert Payload.FromString(opened) == PLAIN


async def test_each_payload_has_a_nonce_of_its_own_and_long_ones_come_back(keys: Path) -> None:
    codec = EncryptionCodec(keys)
    long = Payload(metadata={"encoding": b"binary/plain"}, data=os.urandom(2_000_000))
    sealed = await codec.encode([PLAIN, PLAIN, long])
    assert len({each.data[:12] for each in sealed}) == 3
    assert len(sealed[2].data) - len(long.data) < 256
    assert await codec.decode([*sealed, PLAIN]) == [PLAIN, PLAIN, long, PLAIN]


async def test_a_key_in_front_rotates_without_a_restart(keys: Path) -> None:
    codec, other = EncryptionCodec(keys), EncryptionCodec(keys)
    (old,) = await codec.encode([PLAIN])
    add_key(keys, new_key("next"), last=True)
    assert (await codec.encode([PLAIN]))[0].metadata["encryption-key-id"] == b"first"
    add_key(keys, new_key("newest"))
    (new,) = await codec.encode([PLAIN])
    assert new.metadata["encryption-key-id"] == b"newest"
    assert await other.decode([old, new]) == [PLAIN, PLAIN]
    # What is wrong in the meantime changes nothing.
    keys.write_text("half a li")
    assert await other.decode([old, new]) == [PLAIN, PLAIN]
    keys.unlink()
    assert await other.decode([old, new]) == [PLAIN, PLAIN]


async def test_what_is_not_whole_is_never_decoded(keys: Path) -> None:
    codec = EncryptionCodec(keys)
    (good,) = await codec.encode([PLAIN])
    for data in (b"", good.data[:27], good.data[:-1], good.data + b"x", bytes(len(good.data))):
        with pytest.raises(TamperedPayload):
            await codec.decode([good, Payload(metadata=dict(good.metadata), data=data)])
    for place in range(len(good.data)):
        data = good.data[:place] + bytes([good.data[place] ^ 1]) + good.data[place + 1 :]
        with pytest.raises(TamperedPayload):
            await codec.decode([Payload(metadata=dict(good.metadata), data=data)])


async def test_the_keys_name_is_authenticated(keys: Path) -> None:
    (good,) = await EncryptionCodec(keys).encode([PLAIN])
    (secret,) = read_keys(keys)
    add_key(keys, Key("alias", secret.secret))
    renamed = Payload(metadata={**good.metadata, "encryption-key-id": b"alias"}, data=good.data)
    with pytest.raises(TamperedPayload):
        await EncryptionCodec(keys).decode([renamed])


async def test_forged_is_refused_as_input_and_a_missing_key_is_waited_for(keys: Path, tmp_path: Path) -> None:
    codec = DeferredErrorCodec(EncryptionCodec(keys))
    converter = data_converter(EncryptionCodec(keys))
    (good,) = await codec.encode([PLAIN])
    forged = Payload(metadata=dict(good.metadata), data=good.data[:-1])
    kept, told = await codec.decode([good, forged])
    assert kept == PLAIN
    with pytest.raises(ApplicationError, match="changed, or is forged") as refused:
        converter.payload_converter.from_payloads([told], [str])
    assert (refused.value.type, refused.value.non_retryable) == ("InvalidRequest", True)
    add_key(tmp_path / "other", new_key("other"))
    (foreign,) = await EncryptionCodec(tmp_path / "other").encode([PLAIN])
    kept, told = await codec.decode([good, foreign])
    assert kept == PLAIN
    # No failure of the workflow, which would be for good: its task is retried.
    with pytest.raises(MissingKey, match="key other, which is not in"):
        converter.payload_converter.from_payloads([told], [RawValue])


async def test_a_failures_words_travel_as_a_payload(keys: Path) -> None:
    failure = Failure()
    error = ApplicationError("the canary said", "a detail", type="AgentFailed")
    await data_converter(EncryptionCodec(keys)).encode_failure(error, failure)
    assert b"canary" not in failure.SerializeToString()
    assert b"a detail" not in failure.SerializeToString()
    assert failure.application_failure_info.type == AgentFailed.type
    back = await data_converter(EncryptionCodec(keys)).decode_failure(failure)
    assert isinstance(back, ApplicationError)
    assert (back.message, back.details) == ("the canary said", ("a detail",))


async def test_a_failures_words_wait_for_their_key(keys: Path, tmp_path: Path) -> None:
    failure = Failure()
    add_key(tmp_path / "other", new_key("other"))
    other = data_converter(EncryptionCodec(tmp_path / "other"))
    await other.encode_failure(ApplicationError("the canary said", type="AgentFailed"), failure)
    with pytest.raises(MissingKey, match="key other, which is not in"):
        await data_converter(EncryptionCodec(keys)).decode_failure(failure)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "holds no key"),
        ("# nothing\n\n", "holds no key"),
        ("first\n", "line 1"),
        (f"first {KEY} more\n", "line 1"),
        (f"first {KEY}\nfirst {KEY}\n", "line 2"),
        (f"-first {KEY}\n", "line 1"),
        ("first c2hvcnQ=\n", "32 bytes"),
        ("first !!!!\n", "32 bytes"),
        ("first \xff\n", "no file of keys"),
        ("#" * 70_000, "longer"),
    ],
)
def test_a_wrong_file_of_keys_is_refused_without_a_word_of_it(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content.encode("latin-1"))
    path.chmod(0o600)
    with pytest.raises(BadCodec, match=why) as refused:
        KeyFile(path)
    assert KEY not in str(refused.value)


def test_a_file_that_others_can_read_or_that_is_none_is_refused(keys: Path, tmp_path: Path) -> None:
    for mode in (0o640, 0o604, 0o620, 0o666):
        keys.chmod(mode)
        with pytest.raises(BadCodec, match="open to others"):
            KeyFile(keys)
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path, why in ((tmp_path / "fifo", "no file"), (tmp_path, "no file|directory"), (tmp_path / "none", "No such")):
        with pytest.raises(BadCodec, match=why):
            KeyFile(path)


def test_a_new_key_that_could_not_be_read_once_is_read_the_next_time(keys: Path) -> None:
    file = KeyFile(keys)
    before = [each.id for each in file.keys]
    add_key(keys, new_key("newest"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # there is no further one to be had
    try:
        meanwhile = [each.id for each in file.keys]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert meanwhile == before
    assert [each.id for each in file.keys] == ["newest", *before]


def test_new_keys_are_for_the_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "keys"
        add_key(path, new_key())
        add_key(path, new_key("second"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_keys(path)[0].id == "second"
    assert len({each.secret for each in read_keys(path)}) == 2
    assert "secret" not in repr(read_keys(path)[0])
    with pytest.raises(BadCodec, match="already"):
        add_key(path, new_key("second"))
    assert {each.name for each in tmp_path.iterdir()} == {"keys", ".keys.lock"}
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}


def test_a_directory_that_is_missing_is_made_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "config" / "steersman" / "keys"
    before = os.umask(0)
    try:
        add_key(path, new_key("first"))
    finally:
        os.umask(before)
    assert read_keys(path)[0].id == "first"
    assert {stat.S_IMODE(each.stat().st_mode) for each in (path.parent, path.parent.parent)} == {0o700}
    (tmp_path / "file").touch()
    with pytest.raises(BadCodec, match="cannot write"):
        add_key(tmp_path / "file" / "keys", new_key())


def test_of_keys_that_are_made_at_once_none_is_lost(tmp_path: Path) -> None:
    ids = [f"key-{number}" for number in range(24)]
    with ThreadPoolExecutor(len(ids)) as threads:
        list(threads.map(lambda each: add_key(tmp_path / "keys", new_key(each)), ids))
    assert {each.id for each in read_keys(tmp_path / "keys")} == set(ids)


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("steersman.encryption", "expected module:object"),
        (":x", "expected module:object"),
        ("no.such.module:Codec", "No module named"),
        ("steersman.encryption:Nothing", "no attribute"),
        ("steersman.encryption:CIPHER", "is no temporalio"),
        ("steersman.keys:new_key", "is no temporalio"),
        ("steersman.keys:read_keys", "missing 1 required"),
        (NAMED, "STEERSMAN_CODEC_KEYS is not set"),
    ],
)
def test_what_is_no_codec_is_refused_in_words(named: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)
    with pytest.raises(BadCodec, match=why):
        load(named)


class Broken(PayloadCodec):
    """Somebody else's, which raises what it will."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise ZeroDivisionError("oh")


async def test_another_codecs_errors_are_told_as_ours() -> None:
    with pytest.raises(UnreadablePayload, match=r"test_codec:Broken: ZeroDivisionError: oh"):
        await data_converter(Broken()).decode([PLAIN])


def test_the_environment_names_it(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, str(keys))
    codec = codec_of({"STEERSMAN_CODEC": NAMED})
    assert name_of(codec) == name_of(data_converter(codec).payload_codec) == NAMED
    assert codec_of({}) is None
    assert codec_of({"STEERSMAN_CODEC": " "}) is None
