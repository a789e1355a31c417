"""What a gRPC server must know of a request: from header fields to a `Head`.

What must not live here: how fields are coded (`fields`), and which blocks are known (`headers`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ratelimit_service.grpc.h2.fields import WANTED
from ratelimit_service.model.request import LEAST_TIMEOUT_US

__all__ = ["ENCODINGS", "TIMEOUT", "Head", "interned", "judged", "timeout_us_of"]

ENCODINGS: Final = frozenset({b"", b"identity", b"gzip"})
"""What `grpc-encoding` may say."""

TIMEOUT: Final = b"grpc-timeout"
_TIMEOUT_BITS: Final = 5
"""So many bits of what is left until a deadline are looked at."""

_MAX_HEADS: Final = 1_024

_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_REQUIRED: Final = frozenset({b":method", b":scheme", b":path"})
_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_NAME_CHARACTERS: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_TIMEOUT_UNITS_US: Final = {
    b"H": 3_600_000_000,
    b"M": 60_000_000,
    b"S": 1_000_000,
    b"m": 1_000,
    b"u": 1,
    b"n": 0,
}


@dataclass(frozen=True, slots=True)
class Head:
    """The headers of a request, as far as they matter.

    `malformed` tells why the request breaks HTTP/2's rules, "" if it does not. `trailers` marks
    a block without pseudo-headers.
    """

    path: bytes = b""
    method: bytes = b""
    content_type: bytes = b""
    content_length: int | None = None
    timeout_us: int | None = None
    encoding: bytes = b""
    trailers: bool = False
    malformed: str = ""
    oversized: bool = False
    """Whether the list is above the announced size; then nothing else is known of the headers."""
    plain: bool = False
    """Whether it is a gRPC call with nothing unusual, so that its message follows."""


_heads: Final[dict[Head, Head]] = {}


def judged(fields: Iterable[tuple[bytes, bytes]]) -> Head:
    """The head that the fields make, checked by RFC 9113, sections 8.2 and 8.3."""
    values: dict[bytes, bytes] = {}
    pseudo: set[bytes] = set()
    malformed = ""
    regular = False
    for name, value in fields:
        if name[:1] == b":":
            if regular:
                malformed = "a pseudo-header after a header"
            elif name not in _PSEUDO or name in pseudo:
                malformed = "a pseudo-header that is unknown or there twice"
            pseudo.add(name)
        else:
            regular = True
            if not name or not _NAME_CHARACTERS.issuperset(name):
                malformed = "a header name that is no lower-case token"
            elif name in _CONNECTION or (name == b"te" and value != b"trailers"):
                malformed = "a header of connections"
        if name in WANTED:
            values[name] = value
    if pseudo and (not pseudo >= _REQUIRED or not values[b":path"]):
        malformed = malformed or "a pseudo-header is missing"
    length = values.get(b"content-length")
    method, content_type = values.get(b":method", b""), values.get(b"content-type", b"")
    encoding = values.get(b"grpc-encoding", b"")
    return Head(
        values.get(b":path", b""),
        method,
        content_type,
        int(length) if length and length.isdigit() and len(length) < 12 else None,
        timeout_us_of(values.get(TIMEOUT, b"")),
        encoding,
        trailers=not pseudo,
        malformed=malformed,
        plain=method == b"POST"
        and content_type.startswith(b"application/grpc")
        and encoding in ENCODINGS
        and length is None
        and bool(pseudo)
        and not malformed,
    )


def interned(head: Head) -> Head:
    """One head for all that are equal: calls with the same head are decided together."""
    if len(_heads) >= _MAX_HEADS:
        _heads.clear()
    return _heads.setdefault(head, head)


def timeout_us_of(text: bytes) -> int | None:
    """A grpc-timeout in microseconds; None if it cannot be read, or is too short to be one.

    Clients that count in microseconds, or less, say what is left until a deadline, which differs
    from call to call. It is rounded down by a sixteenth at most, so that such calls are alike.
    """
    number, unit = text[:-1], _TIMEOUT_UNITS_US.get(text[-1:])
    if unit is None or not number.isdigit() or len(number) > 8:
        return None
    us = int(number) * unit if unit else int(number) // 1_000
    if us <= LEAST_TIMEOUT_US:
        return None
    low_bits = max(0, us.bit_length() - _TIMEOUT_BITS) if unit <= 1 else 0
    return us >> low_bits << low_bits
