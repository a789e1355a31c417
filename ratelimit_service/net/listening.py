"""Listening sockets: opened here, served by whoever gets them.

They are opened apart from what serves them because a socket may outlive its server: it is
handed from a process to its successor.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ratelimit_service.errors import TransportError
from ratelimit_service.settings import split_address, unix_path

__all__ = ["BACKLOG", "check_free", "check_possible", "listen", "port_of", "unlink"]

BACKLOG = 1_024
"""Connections that may wait to be taken; the system's net.core.somaxconn may allow fewer."""


def check_free(address: str, kind: str) -> None:
    """Raises TransportError, as `listen` would, if the port cannot be opened now; opens none.

    So a start fails before anything is begun. Nobody is let in before there is somebody to
    serve, and a Unix socket that a dead process has left stays where it is.
    """
    path = unix_path(address)
    with _told(address, kind):
        if path is not None:
            _is_stale(path)
            return
        for each in _bound(*split_address(address)):
            each.close()


def check_possible(address: str, kind: str) -> None:
    """Raises TransportError, as `listen` would, if nobody could ever open the port.

    Whether it is free is not asked: a service that runs with the same address has it.
    """
    path = unix_path(address)
    if path is not None and not Path(path).parent.is_dir():
        with _told(address, kind):
            raise FileNotFoundError(errno.ENOENT, f"there is no directory {Path(path).parent}")


def listen(address: str, kind: str, *, private: bool = False) -> list[socket.socket]:
    """Opens `HOST:PORT`, all addresses of the host, or `unix:PATH`; port 0 takes a free one.

    `kind` is the word for the port, whose flag is the same in small letters. A Unix socket that is
    `private` is open to this user only, whatever the umask. Raises TransportError if the port
    cannot be opened.
    """
    path = unix_path(address)
    with _told(address, kind):
        if path is not None:
            return [_listen_unix(path, private=private)]
        return _listen_tcp(*split_address(address))


@contextmanager
def _told(address: str, kind: str) -> Iterator[None]:
    """Makes of the system's word one for the user."""
    try:
        yield
    except OSError as error:
        raise TransportError(
            f"cannot open the {kind} port {address}: {error.strerror or error}; "
            f"choose another with --{kind.lower()} HOST:PORT"
        ) from error


def port_of(sockets: list[socket.socket]) -> int:
    """The TCP port; 0 for a Unix socket."""
    first = sockets[0]
    return 0 if first.family == socket.AF_UNIX else int(first.getsockname()[1])


def unlink(sockets: Sequence[socket.socket]) -> None:
    """Removes the files of Unix sockets, before they are closed for good."""
    for each in sockets:
        if each.family == socket.AF_UNIX:
            Path(each.getsockname()).unlink(missing_ok=True)


def _listen_tcp(host: str, port: int) -> list[socket.socket]:
    opened = _bound(host, port)
    try:
        for each in opened:
            each.listen(BACKLOG)
    except OSError:
        for each in opened:
            each.close()
        raise
    return opened


def _bound(host: str, port: int) -> list[socket.socket]:
    """Sockets on all addresses of the host that do not listen yet."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in infos))
    opened: list[socket.socket] = []
    try:
        for family, address in addresses:
            opened.append(listener := socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # A socket for IPv6 takes IPv4 as well. Beside one for IPv4 it must not.
                only = len(addresses) > 1
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
            taken = opened[0].getsockname()[1] or port
            listener.bind((address[0], taken, *address[2:]))
            listener.setblocking(False)
    except OSError:
        for each in opened:
            each.close()
        raise
    return opened


def _listen_unix(path: str, *, private: bool) -> socket.socket:
    if _is_stale(path):
        Path(path).unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        if private:
            Path(path).chmod(0o600)  # nobody can connect before it listens
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _is_stale(path: str) -> bool:
    """Whether a dead process has left a socket there.

    Raises OSError if somebody listens there, or what is there is no socket.
    """
    file = Path(path)
    if not file.exists():
        return False
    if not file.is_socket():
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket")
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return True
    raise OSError(errno.EADDRINUSE, "somebody else listens there")
