"""The process that writes the decision log: it makes lines of packets, and writes them.

It is the one writer for all that decide. What must not live here: where lines go (`sinks`), what
they say (`line`), and the way to this process (`process`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import select
import signal
from collections.abc import Sequence
from typing import Final, NamedTuple

from ratelimit_service.decision_log.key import hash_of
from ratelimit_service.decision_log.packets import PacketLines, decisions_in
from ratelimit_service.decision_log.sinks import sink_of
from ratelimit_service.processes.low_priority import NICENESS
from ratelimit_service.processes.pipes import Frames
from ratelimit_service.settings import Settings
from ratelimit_service.text.display import printable, reason

__all__ = ["DecisionWriter", "Progress", "main"]

_RETRY_SECONDS: Final = 1.0
"""After a failure the next lines are tried so much later."""

_GATHER_SECONDS: Final = 0.05
_GATHER_BYTES: Final = 1 << 16
"""Where less has come, more is gathered for so long: each write and each word of it has a price."""

_IN, _OUT = 0, 1


class Progress(NamedTuple):
    """What became of decisions: so many were `written`, or left out or lost by a failure.

    `fault` says why nothing can be written, "" if it can. `bug` is a fault of ours.
    """

    written: int = 0
    failed: int = 0
    fault: str = ""
    bug: str = ""


class DecisionWriter:
    """Writes packets, and waits as long as that takes."""

    def __init__(self, settings: Settings, key: bytes | None = None, stdout: int = -1) -> None:
        """`key` hashes values, and `stdout` is the descriptor of standard output."""
        self._lines = PacketLines(hash_of(key))
        self._sink = sink_of(settings, stdout)

    def open(self) -> Progress:
        """Makes ready to write, so that a fault is known before there is a line."""
        try:
            self._sink.open()
        except OSError as error:
            return Progress(fault=self._failed(error))
        return Progress()

    def write(self, packets: Sequence[bytes]) -> Progress:
        """Writes packets, one after the other."""
        written = failed = 0
        fault = bug = ""
        for packet in packets:
            count = left_out = decisions_in(packet)
            try:
                lines = self._lines.of(packet)
            except Exception as error:
                bug = f"{type(error).__name__}: {error}"
            else:
                fault = ""
                try:
                    left_out = self._sink.write(lines)
                except OSError as error:
                    fault = self._failed(error)
            written += count - left_out
            failed += left_out
        return Progress(written, failed, fault, bug)

    def _failed(self, error: OSError) -> str:
        with contextlib.suppress(OSError):
            self._sink.close()
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        return f"the decision log cannot be written: {printable(where)}{reason(error)}"


def main() -> None:
    """The process: it ends when its parent hangs up and all that has come is written."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are meant for its parent
    os.nice(NICENESS)  # decisions matter more than lines
    gc.disable()  # it makes no cycles
    frames = Frames(_IN)
    first, *packets = frames.take() or [b""]
    if not first:
        return
    writer = DecisionWriter(*pickle.loads(first))  # noqa: S301 -- our parent's
    _say(writer.open())
    while packets or (packets := frames.take()):
        done = writer.write(packets)
        _say(done)
        if done.fault:
            _wait(_RETRY_SECONDS)
        elif sum(map(len, packets)) < _GATHER_BYTES:
            _wait(_GATHER_SECONDS)
        packets = []


def _say(done: Progress) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent was killed: what has come is written
        os.write(_OUT, json.dumps(done).encode() + b"\n")


def _wait(seconds: float) -> None:
    """Waits for so long, or until the parent has hung up."""
    ready = select.poll()
    ready.register(_IN, 0)
    ready.poll(seconds * 1_000)
