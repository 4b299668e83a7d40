"""The connection to the Temporal server, by the profiles and environment variables of the Temporal CLI."""

import os
import re
from datetime import timedelta
from typing import Final

from temporalio.client import Client
from temporalio.converter import PayloadCodec
from temporalio.envconfig import ClientConfig

from steersman import timeouts
from steersman.codec import codec_of, data_converter
from steersman.errors import BadProfile, ServerUnreachable

DEFAULT_ADDRESS: Final = "127.0.0.1:7233"
CONNECT_TIMEOUT: Final = timedelta(seconds=5)
ANSWER_S: Final = 10.0
"""A server that is busy may take this many seconds to say what it is."""

_CERTIFICATE: Final = "TEMPORAL_TLS_CLIENT_CERT_PATH, _DATA, or of the profile"
_KEY: Final = "TEMPORAL_TLS_CLIENT_KEY_PATH, _DATA, or of the profile"
# What is in the errors of the SDK's core, which have no type of their own, and what it means.
_WRONG_PAIR: Final = {
    "NoCertificatesPresented": f"the client certificate ({_CERTIFICATE}) has no certificate in PEM",
    "Error(Transport, InvalidCertificate": f"the client certificate ({_CERTIFICATE}) is none",
    "PrivateKeyParseError": f"the client's key ({_KEY}) has no private key in PEM",
    "InconsistentKeys": f"the client certificate ({_CERTIFICATE}) and its key ({_KEY}) do not belong together",
    "Must have both client cert": f"a client certificate ({_CERTIFICATE}) and its key ({_KEY}) are needed both",
}
_REASONS: Final = {
    "Connection refused": "connection refused",
    "Timeout expired": "it did not answer in time",
    "failed to lookup address": "unknown host name",
    "UnknownIssuer": "its certificate is not trusted",
    "InvalidCertificate(BadSignature": "its certificate is not trusted",  # of another issuer with that name
    "NotValidForName": "its certificate is for another name; TEMPORAL_TLS_SERVER_NAME says which one it has",
    "InvalidCertificate(Expired": "its certificate has expired",
    "InvalidCertificate(NotValidYet": "its certificate is not valid yet",
    "CertificateRequired": "it asks for a client certificate: TEMPORAL_TLS_CLIENT_CERT_PATH and _KEY_PATH",
    "InvalidContentType": "it speaks no TLS, which TEMPORAL_TLS, TEMPORAL_API_KEY or the profile asks for",
}
_INVALID: Final = re.compile(r"InvalidCertificate\((\w+)")
_ALERT: Final = re.compile(r"(?:fatal alert: |AlertReceived\()(\w+)")


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
        BadProfile: the configuration file cannot be read, or has no such profile; the address is none; the client
            certificate and its key cannot be used.
        BadCodec: STEERSMAN_CODEC, or its file of keys, cannot be used.
        ServerUnreachable: nothing listens there within 5 s, or answers within 10.
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
        # The SDK's own limit is one of the connection alone: by that a port that says nothing had half a minute.
        async with timeouts.timeout(ANSWER_S):
            return await Client.connect(**config, data_converter=converter, connect_timeout=CONNECT_TIMEOUT)
    except (RuntimeError, ValueError, TimeoutError) as error:
        text = str(error) or "Timeout expired"
        if "invalid target URL" in text:
            raise BadProfile(f"address {target!r}: expected HOST:PORT ({error})") from error
        for known, plain in _WRONG_PAIR.items():
            if known in text:
                raise BadProfile(plain) from error
        hint = "; `steer dev` starts a local one, --address or a profile names another"
        raise ServerUnreachable(f"no Temporal server at {target}: {_reason(text)}{hint}", target) from error


def _reason(text: str) -> str:
    """Why there is no connection, in plain words as far as the error of the SDK's core is known."""
    for known, plain in _REASONS.items():
        if known in text:
            return plain
    if alert := _ALERT.search(text):
        is_about_client = "Certificate" in alert[1] or alert[1] == "UnknownCA"
        return f"it {'refuses the client certificate' if is_about_client else 'ends the TLS handshake'} ({alert[1]})"
    if wrong := _INVALID.search(text):
        return f"its certificate is not accepted ({wrong[1]})"
    if "connection closed" in text:  # its reason is lost on the way
        return "it closes the connection: it may want TLS, or a client certificate (TEMPORAL_TLS_...)"
    if "tonic::" in text:  # the innermost sentence, or else the name of the error
        said = re.findall(r'"([^"]+)"', text) or re.findall(r"\(Transport, (.+)\)", text)
        return f"the connection failed: {said[-1]}" if said else "the connection failed"
    return "it did not answer in time" if "time" in text.lower() and "out" in text.lower() else text
