"""The payload codec that comes with Steersman: AES-256-GCM with keys from a file.

    STEERSMAN_CODEC=steersman.encryption:EncryptionCodec STEERSMAN_CODEC_KEYS=/path/to/keys

The byte format is part of the wire contract (docs/wire.md): other SDKs read and write it. Needs `steersman[codec]`;
no other module imports this one, it is loaded by name.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from steersman.errors import BadCodec, MissingKey, TamperedPayload
from steersman.keys import KEY_ID, Key, KeyFile

KEYS_VARIABLE: Final = "STEERSMAN_CODEC_KEYS"
ENCODING: Final = b"binary/encrypted"
CIPHER: Final = b"AES-256-GCM"
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
LONG_BYTES: Final = 256 * 1024
"""Payloads of this many bytes together, and more, are worked on in a thread, to keep the event loop free."""


class EncryptionCodec(PayloadCodec):
    """Encrypts whole payloads with their metadata. Payloads that are not encrypted are decoded unchanged."""

    def __init__(self, keys: Path | None = None) -> None:
        """`keys`: the file of the keys; default: what STEERSMAN_CODEC_KEYS names. Raises BadCodec."""
        named = str(keys or os.environ.get(KEYS_VARIABLE, ""))
        if not named:
            raise BadCodec(f"{KEYS_VARIABLE} is not set: it names the file of the codec's keys (`steer codec new-key`)")
        self._keys = KeyFile(Path(named).expanduser().absolute())

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Each payload, encrypted with the file's first key and a nonce of its own."""
        key = self._keys.keys[0]
        return await _apply(lambda payload: encrypt(payload, key), payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Each payload, decrypted. Raises MissingKey, TamperedPayload."""
        keys = {key.id: key for key in self._keys.keys}
        return await _apply(lambda payload: decrypt(payload, keys), payloads)


def encrypt(payload: Payload, key: Key) -> Payload:
    """The payload, encrypted: a random nonce, then the sealed bytes, with which the key's id is authenticated."""
    nonce, name = os.urandom(NONCE_BYTES), key.id.encode()
    sealed = AESGCM(key.secret).encrypt(nonce, payload.SerializeToString(), name)
    metadata = {"encoding": ENCODING, "encryption-cipher": CIPHER, "encryption-key-id": name}
    return Payload(metadata=metadata, data=nonce + sealed)


def decrypt(payload: Payload, keys: dict[str, Key]) -> Payload:
    """The payload, decrypted; unchanged if it is not encrypted. Raises as `EncryptionCodec.decode`."""
    if payload.metadata.get("encoding") != ENCODING:
        return payload
    name = payload.metadata.get("encryption-key-id", b"").decode("ascii", "replace")
    if not KEY_ID.fullmatch(name) or len(payload.data) < NONCE_BYTES + TAG_BYTES:
        raise TamperedPayload("an encrypted payload is damaged, or of another codec than Steersman's")
    key = keys.get(name)
    if key is None:
        raise MissingKey(f"a payload is encrypted with key {name}, which is not in {KEYS_VARIABLE}'s file here")
    nonce, sealed = payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:]
    try:
        return Payload.FromString(AESGCM(key.secret).decrypt(nonce, sealed, name.encode()))
    except (InvalidTag, DecodeError):
        raise TamperedPayload(f"a payload says key {name} and does not fit it: it was changed, or is forged") from None


async def _apply(work: Callable[[Payload], Payload], payloads: Sequence[Payload]) -> list[Payload]:
    if sum(len(payload.data) for payload in payloads) < LONG_BYTES:
        return [work(payload) for payload in payloads]
    return await asyncio.to_thread(lambda: [work(payload) for payload in payloads])
