"""Work that gives way to all others on this machine: in a thread of its own, which is nice.

A program that starts works for half a second without a pause, and the system lets it do so for ten
milliseconds and more at a time. On a core on which others decide that is what makes them late. A
process cannot take its niceness back without privileges. But on Linux a thread can have one of its
own, which ends with it, and which programs that it starts have as well. What must not live here:
what is done so.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Final, TypeVar

__all__ = ["NICENESS", "aside", "imported"]

NICENESS: Final = 10
"""How nice threads and processes are whose work decisions must not wait for."""

T = TypeVar("T")


def aside(do: Callable[[], T]) -> T:
    """Does something while this thread waits; returns or raises what it does."""
    done: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            _give_way()
            done.append(do())
        except BaseException as error:  # it is raised where it is waited for
            failed.append(error)

    thread = threading.Thread(target=work, name="aside")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def imported(name: str) -> ModuleType:
    """Imports a module and all that it needs."""
    return aside(lambda: import_module(name))


def _give_way() -> None:
    """Makes this thread nice, but only on Linux: elsewhere only processes can be nice."""
    if sys.platform == "linux":
        with suppress(OSError):
            niceness = os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
