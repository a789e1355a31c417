"""A terminal that shows a page again and again, and hears keys."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from ratelimit_service.cli.say import Colour, painted
from ratelimit_service.text.display import printable

__all__ = ["Screen", "Terminal", "is_terminal", "terminal"]

_ENTER = "\x1b[?1049h\x1b[?25l"
"""Takes the alternate screen, and hides the cursor."""

_LEAVE = "\x1b[?25h\x1b[?1049l"
_BEGIN = "\x1b[H"
_REST_OF_LINE, _REST_OF_SCREEN = "\x1b[K", "\x1b[J"


class Screen(Protocol):
    """What shows pages."""

    def show(self, lines: Sequence[str]) -> None:
        """Shows lines in the place of those before; what does not fit is left out."""

    def key(self, seconds: float) -> str:
        """The key that is pressed within this time; empty if none is."""


class Terminal:
    """Standard input and output, if both are a terminal."""

    def __init__(self, colour: Colour | None = None) -> None:
        self._colour = colour

    def show(self, lines: Sequence[str]) -> None:
        """As `Screen`. Nothing that others have written acts on the terminal."""
        width, height = shutil.get_terminal_size()
        fitting = [
            painted(printable(line)[: width - 1], self._colour) for line in lines[: height - 1]
        ]
        text = "".join(f"{line}{_REST_OF_LINE}\n" for line in fitting)
        sys.stdout.write(f"{_BEGIN}{text}{_REST_OF_SCREEN}")
        sys.stdout.flush()

    def key(self, seconds: float) -> str:
        """As `Screen`. A terminal that has gone is as if `q` had been pressed."""
        stdin = sys.stdin.fileno()
        ready, _, _ = select.select([stdin], [], [], seconds)
        return (os.read(stdin, 1).decode("ascii", "replace") or "q") if ready else ""


def is_terminal() -> bool:
    """Whether somebody sits in front of it."""
    dumb = os.environ.get("TERM", "dumb") == "dumb"  # noqa: TID251 -- the terminal's, not ours
    return sys.stdin.isatty() and sys.stdout.isatty() and not dumb


@contextmanager
def terminal(colour: Colour | None = None) -> Iterator[Terminal]:
    """The terminal, which is afterwards as it was before."""
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    try:
        tty.setcbreak(stdin)
        sys.stdout.write(_ENTER)
        yield Terminal(colour)
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
