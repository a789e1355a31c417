"""What is read from a client, and written to it, over a socket of ours: plain, or with TLS.

A channel reads when it is asked to. It writes at once what the system takes, and the rest when the
socket is writable again. TLS opens some records at a time: a step of a handshake takes up to a
millisecond, and a record of 27 bytes that changes the keys some 35 us, so that all of what is read
at once would take a third of a second. What must not live here: when to read, which files TLS
needs, and what is spoken.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import ssl
import struct
import termios
from typing import Final, Protocol

__all__ = ["Channel", "PlainChannel", "TlsChannel", "empty_records"]

READ_BYTES: Final = 65_536
"""So much is read at once. A read that brings less has emptied the socket."""

_LAST_READS: Final = 4
"""So often a socket is read before it is closed, if something has come."""

_RECORDS_AT_ONCE: Final = 32
"""So many records are opened in one read: a millisecond at most."""

_RECORDS_OF_STEP: Final = 4
"""So many are a step of a handshake: what a usual client says at once."""

_OPENED_BYTES: Final = 16_384
"""After so many bytes no further record is opened."""

_HEAD_BYTES: Final = 5
_MOST_RECORD_BYTES: Final = _HEAD_BYTES + 16_384 + 2_048
_KINDS: Final = range(20, 24)
"""How records begin (RFC 8446 5.1), and the most that one may have (of TLS 1.2)."""

_WRAP_BYTES: Final = 22
"""What a record of TLS 1.3 has beside its contents: head, kind and tag."""

_KEY_UPDATE_BYTES: Final = 5
"""The shortest contents of which nothing comes."""


class Channel(Protocol):
    """One client's socket. Whatever fails ends it: then `gone` is set, and nothing is raised."""

    @property
    def socket(self) -> socket.socket:
        """What the system knows it by."""

    more: bool
    """Whether a read may bring something; to be set when something has come."""

    empty: int
    """How many records the last read has opened of which nothing came."""

    @property
    def gone(self) -> bool:
        """Whether the other end has gone, or can be told nothing any more."""

    @property
    def agreed(self) -> bool:
        """Whether both sides have agreed on how to speak: with TLS, once there was a handshake."""

    @property
    def unsent(self) -> bool:
        """Whether something waits until the socket can be written to."""

    def end_comes(self) -> None:
        """Hears that the other end says no more; reads go on until they have found that."""

    def read(self) -> bytes:
        """What has come, at most some 64 KB; nothing if nothing has."""

    def left(self) -> int:
        """How many bytes are left to be read, as far as is known."""

    def write(self, data: bytes) -> None:
        """Sends this, behind all that waits."""

    def write_on(self) -> None:
        """Sends what waits, as far as the system takes it."""

    def end(self) -> None:
        """Says goodbye; nothing is to be written after that."""

    def close(self) -> None:
        """Drops the connection."""


class PlainChannel:
    """A socket without TLS."""

    __slots__ = (
        "_ended",
        "_recv",
        "_send",
        "_unsent",
        "agreed",
        "empty",
        "gone",
        "more",
        "socket",
        "unsent",
    )

    def __init__(self, its_socket: socket.socket) -> None:
        """From now on the socket does not block, and keeps no small answers back."""
        self.socket = its_socket
        its_socket.setblocking(False)
        if its_socket.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):  # the client has gone, as the first read finds out
                its_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._recv, self._send = its_socket.recv, its_socket.send
        self._unsent = b""
        self.more = self.gone = self.unsent = self._ended = False
        self.agreed, self.empty = True, 0

    def end_comes(self) -> None:
        """See `Channel`."""
        self._ended = True

    def read(self) -> bytes:
        """See `Channel`."""
        try:
            data = self._recv(READ_BYTES)
        except BlockingIOError:
            self.more = False
            return b""
        except OSError:
            data = b""
        if not data:
            self.gone, self.more = True, False
        else:  # of the end nothing more is told
            self.more = self._ended or len(data) == READ_BYTES
        return data

    def left(self) -> int:
        """See `Channel`."""
        try:
            size = fcntl.ioctl(self.socket, termios.FIONREAD, b"\0\0\0\0")
        except (OSError, ValueError):  # it may be closed already
            return 0
        return int(struct.unpack("i", size)[0])

    def write(self, data: bytes) -> None:
        """See `Channel`."""
        if self.unsent:
            self._unsent += data
            return
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.gone = True
            return
        if sent < len(data):
            self._unsent, self.unsent = data[sent:], True

    def write_on(self) -> None:
        """See `Channel`."""
        data, self._unsent, self.unsent = self._unsent, b"", False
        if data and not self.gone:
            self.write(data)

    def end(self) -> None:
        """See `Channel`: without TLS there is nothing to say."""

    def close(self) -> None:
        """See `Channel`.

        What was not read would make the system reset the connection, and the other end would drop
        what it was told last.
        """
        self._unsent = b""
        self.unsent = False
        with contextlib.suppress(OSError):
            for _ in range(_LAST_READS):
                if not self._recv(READ_BYTES):
                    break
        self.socket.close()


class TlsChannel:
    """A socket with TLS: its handshake is a matter of reads, too."""

    __slots__ = ("_in", "_left", "_object", "_out", "_plain", "_sealed", "agreed", "empty")

    def __init__(self, its_socket: socket.socket, context: ssl.SSLContext) -> None:
        """From now on the socket does not block."""
        self._plain = PlainChannel(its_socket)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._in, self._out, server_side=True)
        self._sealed = b""
        """What was read and is not opened."""
        self._left = False
        """Whether the client has said goodbye: what it asked before is still answered."""
        self.agreed = False
        self.empty = 0

    @property
    def socket(self) -> socket.socket:
        """See `Channel`."""
        return self._plain.socket

    @property
    def gone(self) -> bool:
        """See `Channel`."""
        return self._plain.gone

    @property
    def unsent(self) -> bool:
        """See `Channel`."""
        return self._plain.unsent

    @property
    def more(self) -> bool:
        """See `Channel`."""
        return not self.gone and (self._left or self._plain.more or self._whole()[1] > 0)

    @more.setter
    def more(self, more: bool) -> None:
        self._plain.more = more

    def end_comes(self) -> None:
        """See `Channel`."""
        self._plain.end_comes()

    def read(self) -> bytes:
        """See `Channel`. Opens a few whole records; `empty` of them had nothing for us."""
        self.empty = 0
        plain = self._plain
        if self._left:
            plain.gone = True
            return b""
        records, size = self._whole()
        if not size:
            data = plain.read()
            if not data:
                return b""
            self._sealed += data
            records, size = self._whole()
        part, self._sealed = self._sealed[:size], self._sealed[size:]
        self._in.write(part)
        opened: list[bytes] = []
        try:
            if not self.agreed:
                self._object.do_handshake()
                self.agreed = True
            while data := self._object.read(READ_BYTES):
                opened.append(data)
            self._left = True  # the client has said goodbye
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLError, OSError):
            self._flush()  # the client is told why
            plain.gone = True
        self._flush()
        data = b"".join(opened)
        if self.agreed:
            self.empty = empty_records(self._object.version(), records, size, len(data))
        return data

    def left(self) -> int:
        """See `Channel`."""
        return len(self._sealed) + (self._plain.left() if self._plain.more else 0)

    def write(self, data: bytes) -> None:
        """See `Channel`."""
        try:
            self._object.write(data)
        except (ssl.SSLError, OSError):
            self._plain.gone = True
        self._flush()

    def write_on(self) -> None:
        """See `Channel`."""
        self._plain.write_on()

    def end(self) -> None:
        """See `Channel`. The client's own goodbye is not waited for."""
        with contextlib.suppress(ssl.SSLError, OSError, ValueError):
            self._object.unwrap()
        self._flush()

    def close(self) -> None:
        """See `Channel`."""
        self._sealed = b""
        self._plain.close()

    def _flush(self) -> None:
        if self._out.pending and not self._plain.gone:
            self._plain.write(self._out.read())

    def _whole(self) -> tuple[int, int]:
        """How many whole records are to be opened next, and how many bytes they have."""
        data, stop, records = self._sealed, 0, 0
        most = _RECORDS_AT_ONCE if self.agreed else _RECORDS_OF_STEP
        while records < most and stop < _OPENED_BYTES and stop + _HEAD_BYTES <= len(data):
            size = _HEAD_BYTES + (data[stop + 3] << 8 | data[stop + 4])
            if data[stop] not in _KINDS or size > _MOST_RECORD_BYTES:
                # TLS ends the connection for it, and must hear of it for that.
                return records + 1, min(len(data), stop + _MOST_RECORD_BYTES)
            if stop + size > len(data):
                break
            stop += size
            records += 1
        return records, stop


def empty_records(version: str | None, records: int, size: int, contents: int) -> int:
    """How many of these opened records had no contents.

    The records had `size` bytes, and `contents` of these were for us. Only TLS 1.3 has thousands of
    records without contents. There each record has a few bytes of its own.
    """
    if version != "TLSv1.3":
        return 0 if contents else records
    return min(records, max(0, size - contents - _WRAP_BYTES * records) // _KEY_UPDATE_BYTES)
