"""A client of TLS 1.3 that makes its records by itself, also some that Python's ssl cannot."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
import ssl
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["TlsRecords"]

_HANDSHAKE, _DATA = 22, 23
_KEY_UPDATE = b"\x18\x00\x00\x01"
_AES_256_GCM_SHA384 = "TLS_AES_256_GCM_SHA384"
_READ_BYTES = 65_536


class TlsRecords:
    """The client's side of one connection, once both sides have agreed."""

    def __init__(self, end: socket.socket, secret: bytes) -> None:
        self.end = end
        self._secret = secret
        self._take_keys()

    @classmethod
    async def agreed(cls, end: socket.socket, authority: Path) -> Self:
        """Shakes hands over a socket that does not block."""
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context(cafile=str(authority))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(["h2"])
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with tempfile.NamedTemporaryFile("r") as keys:
            context.keylog_filename = keys.name
            tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            done = False
            while not done:
                with suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                    done = True
                await loop.sock_sendall(end, outgoing.read())
                if not done:
                    incoming.write(await loop.sock_recv(end, _READ_BYTES))
            lines = [line.split() for line in keys]
        assert tls.cipher() == (_AES_256_GCM_SHA384, "TLSv1.3", 256)
        (secret,) = (line[2] for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0")
        return cls(end, bytes.fromhex(secret))

    def data(self, content: bytes) -> bytes:
        """A record of application data."""
        return self._record(content, _DATA)

    def key_update(self, *, asks: bool = True) -> bytes:
        """A record that changes the keys; it may ask the server to change its own."""
        record = self._record(_KEY_UPDATE + bytes((asks,)), _HANDSHAKE)
        self._secret = self._expanded(b"traffic upd", 48)
        self._take_keys()
        return record

    def _take_keys(self) -> None:
        self._cipher = AESGCM(self._expanded(b"key", 32))
        self._first = int.from_bytes(self._expanded(b"iv", 12), "big")
        self._number = 0

    def _expanded(self, label: bytes, size: int) -> bytes:
        """HKDF-Expand-Label (RFC 8446 7.1), of as much as one hash has."""
        label = b"tls13 " + label
        info = size.to_bytes(2, "big") + bytes((len(label),)) + label + b"\0\1"
        return hmac.new(self._secret, info, hashlib.sha384).digest()[:size]

    def _record(self, content: bytes, kind: int) -> bytes:
        inner = content + bytes((kind,))
        head = b"\x17\x03\x03" + (len(inner) + 16).to_bytes(2, "big")
        nonce = (self._first ^ self._number).to_bytes(12, "big")
        self._number += 1
        return head + self._cipher.encrypt(nonce, inner, head)
