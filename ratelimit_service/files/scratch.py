"""Files that no directory has: in memory, so that a root that is read-only does no harm."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import IO

__all__ = ["scratch"]


def scratch() -> IO[bytes]:
    """A new file for writing and reading, gone once it is closed.

    On Linux it is memory; elsewhere a temporary file without a name. Raises OSError.
    """
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("ratelimit"), "w+b")
    return tempfile.TemporaryFile()
