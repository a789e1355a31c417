"""gRPC's messages in the bytes of a stream (PROTOCOL-HTTP2.md): where they end, how they unpack.

No state. What must not live here: frames.
"""

from __future__ import annotations

import zlib
from typing import Final

from ratelimit_service.errors import BadRequestError, StatusCode
from ratelimit_service.grpc.h2.limits import MAX_MESSAGE_BYTES

__all__ = ["PACKED", "PREFIX_BYTES", "first_message", "only_message"]

PREFIX_BYTES: Final = 5
"""The bytes before a message: whether it is compressed, and its size."""

PACKED: Final = b"\1"
"""A compressed message has this before its size."""

_GZIP: Final = 31
"""zlib's word for a gzip header and trailer around deflated bytes."""


def only_message(body: bytearray, encoding: bytes) -> bytes:
    """The one message of a unary call. Raises BadRequestError if there is none, or more."""
    size = len(body) - PREFIX_BYTES
    if size < 0 or int.from_bytes(body[1:PREFIX_BYTES], "big") != size:
        raise BadRequestError(
            "framing", "a unary call has exactly one message", StatusCode.INTERNAL
        )
    return (
        _unpacked(bytes(body[PREFIX_BYTES:]), encoding) if body[0] else bytes(body[PREFIX_BYTES:])
    )


def first_message(body: bytearray, encoding: bytes) -> bytes | None:
    """Takes the first message from a body; None if a part of it is still to come.

    Raises BadRequestError if it is too large, or compressed in a way that we cannot read.
    """
    if len(body) < PREFIX_BYTES:
        return None
    size = int.from_bytes(body[1:PREFIX_BYTES], "big")
    if size > MAX_MESSAGE_BYTES:
        text = f"a message has at most {MAX_MESSAGE_BYTES} bytes"
        raise BadRequestError("too_large", text, StatusCode.RESOURCE_EXHAUSTED)
    stop = PREFIX_BYTES + size
    if len(body) < stop:
        return None
    packed, message = body[0], bytes(body[PREFIX_BYTES:stop])
    del body[:stop]
    return _unpacked(message, encoding) if packed else message


def _unpacked(message: bytes, encoding: bytes) -> bytes:
    """A compressed message's content: one whole gzip member, and nothing else."""
    problem = ""
    if encoding != b"gzip":
        problem = "a compressed message needs grpc-encoding gzip"
    else:
        unzipping = zlib.decompressobj(_GZIP)
        try:
            # One byte more than allowed is enough: whoever decides refuses the message.
            unpacked = unzipping.decompress(message, MAX_MESSAGE_BYTES + 1)
        except zlib.error as error:
            problem = f"the message is no gzip: {error}"
        else:
            if len(unpacked) > MAX_MESSAGE_BYTES or (unzipping.eof and not unzipping.unused_data):
                return unpacked
            problem = (
                "the message has bytes after its gzip"
                if unzipping.eof
                else "the message's gzip is cut short"
            )
    raise BadRequestError("framing", problem, StatusCode.INTERNAL)
