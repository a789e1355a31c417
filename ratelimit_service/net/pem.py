"""TLS out of PEM files: certificates and keys, as Python's ssl takes them.

ssl reads certificates from files only, and would wait for a pipe, or ask the terminal for a
password. What must not live here: which port or server a file is for.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ratelimit_service.files.scratch import scratch
from ratelimit_service.files.whole_file import read_whole

__all__ = ["client_context", "load_pair"]

_OPEN_FILES: Final = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
"""Where this process's open files have paths; containers may be without the second."""


def load_pair(context: ssl.SSLContext, cert: bytes, key: bytes | None) -> None:
    """Gives a context its certificate, with the chain, and its key; None if one file has both.

    Raises OSError or ValueError for what cannot be used.
    """
    with _as_file(cert) as cert_path:
        if key is None:
            context.load_cert_chain(cert_path, None, _no_password)
            return
        with _as_file(key) as key_path:
            context.load_cert_chain(cert_path, key_path, _no_password)


def client_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """What a client connects with, by the files as they are now; "" for a file that is not named.

    Without `ca` the system's authorities are trusted; without `key` it is in the file of `cert`.
    Raises OSError or ValueError for files that cannot be used.
    """
    if key and not cert:
        raise ValueError("a key needs its certificate")
    if ca:
        with _as_file(read_whole(ca)) as path:
            context = ssl.create_default_context(cafile=path)
    else:
        context = ssl.create_default_context()
    if cert:
        load_pair(context, read_whole(cert), read_whole(key) if key else None)
    return context


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path under which bytes can be read for a moment."""
    with scratch() as file:
        file.write(content)
        file.flush()
        yield f"{_OPEN_FILES}/{file.fileno()}"


def _no_password() -> str:
    """Asked for where a key is encrypted; without this OpenSSL would ask the terminal."""
    raise ValueError("the key is encrypted: give one without a password")
