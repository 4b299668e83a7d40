"""Images small enough to be read by eye in a hex dump, and real enough for programs that decode them."""

import base64
import struct
import zlib


def png(red: int = 200, green: int = 30, blue: int = 30, size: int = 16) -> bytes:
    """A square of one color."""
    row = b"\0" + bytes((red, green, blue)) * size
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(row * size)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def attached(content: bytes, name: str) -> dict[str, str]:
    """As a request or a message has it."""
    return {"name": name, "data": base64.b64encode(content).decode()}
