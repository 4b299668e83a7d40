"""The connection to the Temporal server, by the profiles and environment variables of the Temporal CLI."""

import os
from datetime import timedelta
from typing import Final

from temporalio.client import Client
from temporalio.converter import PayloadCodec
from temporalio.envconfig import ClientConfig

from steersman.codec import codec_of, data_converter
from steersman.errors import BadProfile, ServerUnreachable

DEFAULT_ADDRESS: Final = "127.0.0.1:7233"
CONNECT_TIMEOUT: Final = timedelta(seconds=5)


async def connect(
    profile: str | None = None,
    address: str | None = None,
    namespace: str | None = None,
    codec: PayloadCodec | None = None,
) -> Client:
    """A connected Temporal client with the data converter that Steersman's models need.

    What is not given comes from the profile (TEMPORAL_PROFILE, else "default"), TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE,
    TEMPORAL_API_KEY and TEMPORAL_TLS_*; without any of them it is namespace "default" at 127.0.0.1:7233. `codec`
    encrypts payloads; default: what STEERSMAN_CODEC names, else none.

    Raises:
        BadProfile: the configuration file cannot be read, or has no such profile; the address is none.
        BadCodec: STEERSMAN_CODEC, or its file of keys, cannot be used.
        ServerUnreachable: no server answers within 5 s.
    """
    converter = data_converter(codec or codec_of(os.environ))
    try:
        config = ClientConfig.load_client_connect_config(profile)
    except Exception as error:
        raise BadProfile(f"cannot load the connection's profile: {error}") from error
    config["target_host"] = address or config.get("target_host") or DEFAULT_ADDRESS
    config["namespace"] = namespace or config.get("namespace") or "default"
    target = config["target_host"]
    try:
        return await Client.connect(**config, data_converter=converter, connect_timeout=CONNECT_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        if "invalid target URL" in str(error):
            raise BadProfile(f"address {target!r}: expected HOST:PORT ({error})") from error
        hint = "; `steer dev` starts a local one, --address or a profile names another"
        raise ServerUnreachable(f"no Temporal server at {target}: {_reason(error)}{hint}", target) from error


def _reason(error: Exception) -> str:
    text = str(error)
    for known, plain in (
        ("Connection refused", "connection refused"),
        ("failed to lookup address", "unknown host name"),
        ("UnknownIssuer", "its certificate is not trusted"),
        ("InvalidContentType", "it speaks no TLS, which TEMPORAL_TLS, TEMPORAL_API_KEY or the profile asks for"),
    ):
        if known in text:
            return plain
    return "it did not answer in time" if "time" in text.lower() and "out" in text.lower() else text
