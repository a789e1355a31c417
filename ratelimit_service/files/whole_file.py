"""Files that somebody names, read whole: regular ones of a bounded size, and nothing else.

And lines that are written whole to a file that is open, or not at all.

Who opens a pipe waits until somebody writes to it, a device may have no end, and a large file takes
the memory. Whatever the service is told to read is read here, so that no name can hold it up. What
must not live here: what files say.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

__all__ = ["MOST_BYTES", "append_whole", "read_whole"]

MOST_BYTES: Final = 1 << 24
"""The largest file: 16 MiB, some hundred thousand rules."""

_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}


def read_whole(path: str | Path) -> bytes:
    """All that is in a file, through links. Never waits for what is no regular file.

    Raises OSError, whose `strerror` says in words what is wrong with the file and what to do.
    """
    name = str(path)
    _check(os.stat(name), name)  # noqa: PTH116 -- before it is open: opening can do something
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(os.fstat(descriptor), name)  # it may have been swapped meanwhile
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MOST_BYTES:  # it grows, or has not told its size
        raise _too_large(name)
    return data


def append_whole(file: int, data: bytes) -> None:
    """Writes all of this to the end of an open file; what a full disk has taken is taken back.

    Of a pipe nothing can be taken back. Raises OSError.
    """
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
    except OSError:
        if taken := len(data) - len(rest):
            with contextlib.suppress(OSError):
                _take_back(file, taken)
        raise


def _take_back(file: int, size: int) -> None:
    """Cuts off the last bytes that we wrote, unless others have written behind them."""
    end = os.lseek(file, 0, os.SEEK_CUR)
    if os.fstat(file).st_size == end:
        os.ftruncate(file, end - size)


def _check(status: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        why = f"it is no regular file but {kind}: put a regular file there, or name another"
        raise OSError(errno.EINVAL, why, name)
    if status.st_size > MOST_BYTES:
        raise _too_large(name)


def _too_large(name: str) -> OSError:
    return OSError(
        errno.EFBIG, f"it has more than {MOST_BYTES >> 20} MiB: shorten or split it", name
    )
