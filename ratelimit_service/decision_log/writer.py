"""What writes the decision log: it makes lines of packets, and writes them part by part.

As a rule it is a process of its own, the one writer for all that decide; its `main` is here. What
must not live here: where lines go (`sinks`), what they say (`packet_lines`), and the way
from those that decide to the process (`scribe`).
"""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import select
import signal
from collections.abc import Sequence
from typing import Final, NamedTuple

from ratelimit_service.decision_log.key import hash_of
from ratelimit_service.decision_log.packet_lines import DecisionLines
from ratelimit_service.decision_log.packets import decisions_in
from ratelimit_service.decision_log.sinks import LogConfig, Sink, sink_of
from ratelimit_service.processes.low_priority import NICENESS
from ratelimit_service.processes.pipes import Frames, framed
from ratelimit_service.text.display import printable, reason

__all__ = ["RETRY_SECONDS", "DecisionWriter", "Progress", "main"]

_MOST_AT_ONCE: Final = 1 << 18
"""Bytes that are written at once; at least one packet's lines."""

RETRY_SECONDS: Final = 1.0
"""After a failure the next lines are tried so much later."""

_GATHER_SECONDS: Final = 0.05
_GATHER_BYTES: Final = 1 << 16
"""Where less has come, more is gathered for so long: each write and each word of it has a price."""


_IN, _OUT = 0, 1


class Progress(NamedTuple):
    """What became of the oldest packets.

    So many `packets` are done with. Of their lines so many were `written`, and so many left out or
    lost by a failure (`failed`). `fault` says why nothing can be written, "" if it can. `bug` is a
    fault of ours.
    """

    packets: int = 0
    written: int = 0
    failed: int = 0
    fault: str = ""
    bug: str = ""

    def packed(self) -> bytes:
        """The same for another process."""
        return marshal.dumps(tuple(self))

    @classmethod
    def unpacked(cls, data: bytes) -> Progress:
        """What another process has packed."""
        return cls(*marshal.loads(data))  # noqa: S302 -- our process's


class DecisionWriter:
    """Writes packets, and waits as long as that takes."""

    def __init__(self, config: LogConfig, sink: Sink | None = None) -> None:
        self._lines = DecisionLines(hash_of(config.key or None))
        self._sink = sink or sink_of(config)
        self._most = min(_MOST_AT_ONCE, config.most_bytes)

    def open(self) -> Progress:
        """Makes ready to write, so that a fault is known before there is a line."""
        try:
            self._sink.open()
        except (OSError, ValueError) as error:
            return Progress(fault=self._failed(error))
        return Progress()

    def close(self) -> None:
        """Lets go of the log, if others go on with it."""
        with contextlib.suppress(OSError):
            self._sink.close()

    def write(self, packets: Sequence[bytes]) -> Progress:
        """Writes as many packets as go at once, in their order."""
        made: list[bytes] = []
        count = size = lines = bad = 0
        bug = ""
        for packet in packets:
            decisions = decisions_in(packet)
            try:
                data = self._lines.of(packet)
            except Exception as error:
                bad += decisions
                bug = f"{type(error).__name__}: {error}"
            else:
                if made and size + len(data) > self._most:
                    break
                made.append(data)
                size += len(data)
                lines += decisions
            count += 1
        if not made:
            return Progress(count, failed=bad, bug=bug)
        try:
            left_out = self._sink.write(b"".join(made))
        except (OSError, ValueError) as error:
            return Progress(count, 0, bad + lines, self._failed(error), bug)
        return Progress(count, lines - left_out, bad + left_out, bug=bug)

    def _failed(self, error: Exception) -> str:
        self.close()
        file = error.filename if isinstance(error, OSError) else None
        where = f"{file}: " if isinstance(file, str) else ""
        return f"the decision log cannot be written: {printable(where)}{reason(error)}"


def main() -> None:
    """The process: it ends when its parent hangs up and all that has come is written."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # they are meant for its parent
    os.nice(NICENESS)  # decisions matter more than lines
    gc.disable()  # it makes no cycles
    frames = Frames(_IN)
    first, *packets = frames.take() or [b""]
    if not first:
        return
    writer = DecisionWriter(LogConfig(*marshal.loads(first)))  # noqa: S302 -- our parent's
    _say(writer.open())
    while packets or (packets := frames.take()):
        size = sum(map(len, packets))
        while packets:
            done = writer.write(packets)
            _say(done)
            del packets[: done.packets]
            if done.fault:
                _wait(RETRY_SECONDS)
        if size < _GATHER_BYTES:
            _wait(_GATHER_SECONDS)


def _say(done: Progress) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent was killed: what has come is written
        rest = memoryview(framed(done.packed()))
        while rest:
            rest = rest[os.write(_OUT, rest) :]


def _wait(seconds: float) -> None:
    """Waits for so long, or until the parent has hung up."""
    ready = select.poll()
    ready.register(_IN, 0)
    ready.poll(seconds * 1_000)
