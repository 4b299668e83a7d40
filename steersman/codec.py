"""The payload codec of clients and workers, which STEERSMAN_CODEC=module:object names.

It is loaded once, where a program connects; workflow code knows nothing of it. steersman.encryption is one.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Self

from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, PayloadCodec, SerializationContext, WithSerializationContext

from steersman.converter import DATA_CONVERTER, EncodedFailureConverter, missing, unreadable
from steersman.errors import BadCodec, MissingKey, SteersmanError, TamperedPayload, UnreadablePayload

VARIABLE: Final = "STEERSMAN_CODEC"


def codec_of(environ: Mapping[str, str]) -> PayloadCodec | None:
    """The codec that STEERSMAN_CODEC names in `environ`; None where it names none. Raises BadCodec."""
    named = environ.get(VARIABLE, "").strip()
    return load(named) if named else None


def load(named: str) -> PayloadCodec:
    """The codec named `module:object`; the object is a PayloadCodec, or returns one when called. Raises BadCodec."""
    module, colon, attribute = named.partition(":")
    if not (module and colon and attribute):
        raise BadCodec(f"{VARIABLE}={named!r}: expected module:object, e.g. steersman.encryption:EncryptionCodec")
    try:
        found = getattr(importlib.import_module(module), attribute)
        made = found if isinstance(found, PayloadCodec) else found() if callable(found) else None
    except BadCodec:
        raise
    except Exception as error:
        hint = "; install steersman[codec]" if "cryptography" in str(error) else ""
        raise BadCodec(f"{VARIABLE}={named!r}: {type(error).__name__}: {error}{hint}") from error
    if not isinstance(made, PayloadCodec):
        raise BadCodec(f"{VARIABLE}={named!r} is no temporalio.converter.PayloadCodec, and makes none")
    return made


def name_of(codec: PayloadCodec | None) -> str | None:
    """The codec's class as `module:class`, for people; None without a codec."""
    codec = codec.codec if isinstance(codec, DeferredErrorCodec) else codec
    return f"{type(codec).__module__}:{type(codec).__qualname__}" if codec else None


def data_converter(codec: PayloadCodec | None) -> DataConverter:
    """Steersman's data converter with that codec, which also encodes messages and stack traces of failures."""
    if codec is None:
        return DATA_CONVERTER
    return replace(
        DATA_CONVERTER, payload_codec=DeferredErrorCodec(codec), failure_converter_class=EncodedFailureConverter
    )


class DeferredErrorCodec(PayloadCodec, WithSerializationContext):
    """Wraps a codec, and leaves its TamperedPayload and MissingKey to the converter, which refuses the one input.

    Raised by a codec, they fail the workflow task, which is retried for ever: one forged signal would hold up a run and
    its cancel. A codec does not know what its payloads are for; the converter is called for each where it is used.
    """

    def __init__(self, codec: PayloadCodec) -> None:
        self.codec = codec

    def with_context(self, context: SerializationContext) -> Self:
        """The wrapped codec with that context."""
        if not isinstance(self.codec, WithSerializationContext):
            return self
        return type(self)(self.codec.with_context(context))

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """As the wrapped codec."""
        return await self.codec.encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """As the wrapped codec; a payload that was tampered with, or has no key here, is replaced by the reason.

        Raises UnreadablePayload for any other exception of the codec.
        """
        try:
            return await self.codec.decode(payloads)
        except TamperedPayload as error:
            if len(payloads) == 1:
                return [unreadable(str(error))]
        except MissingKey as error:
            if len(payloads) == 1:
                return [missing(str(error))]
        except SteersmanError:
            raise
        except Exception as error:
            raise UnreadablePayload(f"{name_of(self)}: {type(error).__name__}: {error}") from error
        return [each for payload in payloads for each in await self.decode([payload])]
