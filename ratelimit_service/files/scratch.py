"""Files that no directory has: in memory, so that a root that is read-only does no harm."""

from __future__ import annotations

import os
import sys
from typing import IO

__all__ = ["scratch"]


def scratch() -> IO[bytes]:
    """A new file for writing and reading, gone once it is closed.

    On Linux it is memory; elsewhere a temporary file without a name. Raises OSError.
    """
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("ratelimit"), "w+b")
    import tempfile  # noqa: PLC0415 -- it takes half a megabyte, which Linux can do without

    return tempfile.TemporaryFile()
