"""What a supervisor leaves to the next image of its program: open descriptors and counts.

It is written as JSON, because the next image may be of another version. It lies in memory that has
a descriptor, and an environment variable names that descriptor.
"""

from __future__ import annotations

import json
import os
import sys
from typing import NotRequired, TypedDict

from ratelimit_service.errors import RateLimitError
from ratelimit_service.files.scratch import scratch
from ratelimit_service.runtime.worker_process import Inherited
from ratelimit_service.runtime.workers import Counts
from ratelimit_service.settings.environment import HANDOVER

__all__ = ["Handover", "become_successor", "successor_command", "take_over"]


class Handover(TypedDict):
    """All that outlives the image. Sockets are descriptors."""

    grpc: list[int]
    http: list[int]
    workers: list[Inherited]
    counts: Counts
    pages: NotRequired[dict[str, list[int]]]
    """Those of other ports, by the address that was asked for. Older versions leave none."""
    admin: NotRequired[list[int]]
    """That of the admin listener. Older versions leave none."""
    rules: NotRequired[dict[str, str] | None]
    """The last good rules of a source that sends rules, by name; None if they are read again."""
    restarts: int
    ended: bool
    """Whether the service was told to end before this was written."""
    noted: NotRequired[int]
    """What has come of signals since (`signals.hold_signals`). Older versions leave none."""


def successor_command() -> list[str]:
    """The command by which this process was started, with what is installed now."""
    return [sys.executable, *sys.orig_argv[1:]]


def become_successor(handover: Handover) -> None:
    """Replaces the program that this process runs; does not return. Raises RateLimitError.

    Signals must be held before, or one might come when nobody handles it.
    """
    pages = [page for ports in handover.get("pages", {}).values() for page in ports]
    pages += handover.get("admin", [])
    noted = [handover["noted"]] if "noted" in handover else []
    for descriptor in (*handover["grpc"], *handover["http"], *pages, *noted):
        os.set_inheritable(descriptor, True)
    memory = _memory()
    with os.fdopen(memory, "wb", closefd=False) as file:
        file.write(json.dumps(handover).encode())
    os.set_inheritable(memory, True)
    environment = {**os.environ, HANDOVER: str(memory)}  # noqa: TID251 -- handed on, not read
    sys.stdout.flush()
    command = successor_command()
    try:
        os.execve(command[0], command, environment)  # noqa: S606 -- this very command
    except OSError as error:
        raise RateLimitError(f"{command[0]} cannot be started: {error.strerror}") from error


def take_over(descriptor: int) -> Handover:
    """What the former image has left."""
    os.set_inheritable(descriptor, False)
    with os.fdopen(descriptor, "rb") as memory:
        memory.seek(0)
        handover: Handover = json.load(memory)
    return handover


def _memory() -> int:
    """A file that no directory has."""
    with scratch() as file:
        return os.dup(file.fileno())
