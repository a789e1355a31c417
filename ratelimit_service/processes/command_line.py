"""What is typed to start this program again, as it was started."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

__all__ = ["typed"]


def typed() -> list[str]:
    """The words of a shell command that works in the working directory, without arguments.

    A program below that directory is named relative to it; one that a shell finds by its name, by
    its name; any other by its whole path. A package is started by Python.
    """
    program = sys.argv[0]
    if Path(program).name == "__main__.py":
        return [_shortest(sys.executable), "-m", Path(program).parent.name]
    return [_shortest(program)]


def _shortest(program: str) -> str:
    relative = os.path.relpath(program)
    if not relative.startswith(".."):
        return relative
    name = Path(program).name
    in_path = shutil.which(name)
    return name if in_path and Path(in_path).absolute() == Path(program).absolute() else program
