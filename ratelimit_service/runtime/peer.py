"""Who is at the other end of a connection to this machine, as the system knows it.

A process may claim any pid as its own: one by its container's numbering, or a wrong one on purpose.
But it cannot hold another process' end of a connection.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from ratelimit_service.errors import RateLimitError

__all__ = ["check_peer"]

_Endpoint = tuple[IPv4Address | IPv6Address, int]

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def check_peer(connection: socket.socket | None, pid: int) -> None:
    """Raises RateLimitError unless a process of this pid holds the other end of the connection."""
    if not any(table.exists() for table in _TABLES):
        raise RateLimitError(
            "this system does not tell whose a connection is: "
            f"if process {pid} is the service, send it SIGUSR2 yourself (kill -USR2 {pid})"
        )
    inode = _other_end(connection) if connection is not None else None
    if inode is None:
        raise RateLimitError(
            "the service is not on this machine, or behind something that forwards to it, as a "
            "container's port: run this where it runs"
        )
    try:
        held = pid > 0 and inode in _sockets_of(pid)
    except FileNotFoundError:
        held = False
    except PermissionError as error:
        raise RateLimitError(f"process {pid} is another user's: run this as that user") from error
    if not held:
        raise RateLimitError(
            f"process {pid}, which the service says it is, is not the one that answers: run this "
            "where the service runs, and not through a proxy"
        )


def _other_end(connection: socket.socket) -> int | None:
    """The number of the socket at the other end, if it is on this machine."""
    ends = _endpoint(*connection.getpeername()[:2]), _endpoint(*connection.getsockname()[:2])
    for inode, *ends_there in _connections():
        if tuple(ends_there) == ends:
            return inode
    return None


def _connections() -> Iterator[tuple[int, _Endpoint, _Endpoint]]:
    """For each of this machine's TCP sockets its number, its own end and the other end."""
    for table in _TABLES:
        if table.exists():
            for line in table.read_text().splitlines()[1:]:
                words = line.split()
                yield int(words[9]), _parsed(words[1]), _parsed(words[2])


def _parsed(text: str) -> _Endpoint:
    """An end as the kernel writes it, with the address's words in the machine's byte order."""
    host, _, port = text.partition(":")
    words = struct.unpack(f">{len(host) // 8}I", bytes.fromhex(host))
    address = ip_address(struct.pack(f"={len(words)}I", *words))
    return _plain(address), int(port, 16)


def _endpoint(host: str, port: int) -> _Endpoint:
    return _plain(ip_address(host.partition("%")[0])), port


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An IPv4 address in its own form, also if a socket for both versions has it."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _sockets_of(pid: int) -> set[int]:
    """The numbers of the sockets that a process holds."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kind, _, number = str(link.readlink()).partition(":[")
        except FileNotFoundError:  # it was closed meanwhile
            continue
        if kind == "socket":
            inodes.add(int(number.rstrip("]")))
    return inodes
