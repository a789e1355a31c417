"""Where a call's time goes inside the process, stage by stage, without sockets.

    .venv/bin/python -m benchmarks.profile

The same frames as `load.py` sends, 50 calls a read, through the connection, the service and
the memory store; the lower quartile of many reads, in microseconds a call.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load import SHAPES
from ratelimit_service.grpc.calls import METHODS
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.connection import Calls, Connection
from ratelimit_service.grpc.h2.frames import (
    ACK,
    MAX_WINDOW,
    PREFACE,
    FrameType,
    SettingId,
)
from ratelimit_service.model import Hit
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.load import Rules
from ratelimit_service.service import Answer, CallbackBatch, Service
from ratelimit_service.settings import Settings
from ratelimit_service.stores import NEVER, Done, Settled, Wanted, always
from ratelimit_service.stores.memory import MemoryStore

RULES = Path(__file__).with_name("rules.yaml")
READS, CALLS = 3_000, 50
STAGES = ("receive", "plan", "charge", "answer", "send")


class MarkedStore:
    """The memory store, with marks of when it was asked and when it was done."""

    waits = False

    def __init__(self, stats: Stats, health: Health) -> None:
        self._memory = MemoryStore(3_000_000, stats, health)
        self.marks: list[float] = []

    def wait_us(self, priority: int) -> int:  # noqa: ARG002 -- for all the same
        return 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        def marked(settled: list[Settled]) -> None:
            self.marks.append(time.perf_counter())
            done(settled)

        self.marks.append(time.perf_counter())
        self._memory.charge(requests, marked, wanted, deadline_us, priority)


class Process:
    """A connection with its service behind it."""

    def __init__(self, shape: str, path: Path = RULES) -> None:
        stats, health = Stats(), Health()
        rules = Rules(path, stats=stats, health=health)
        rules.load()
        self.store = MarkedStore(stats, health)
        self.service = Service(lambda: rules.snapshot, self.store, Settings(), stats)
        self.calls = SHAPES[shape]()
        self.stream_id = 1
        self.connection = Connection(METHODS)
        window = frames.settings({SettingId.INITIAL_WINDOW_SIZE: MAX_WINDOW})
        self.connection.receive(PREFACE + window + frames.frame(FrameType.SETTINGS, ACK, 0, b""))
        self.read(self.frames(1))
        self.connection.receive(frames.frame(FrameType.SETTINGS, ACK, 0, b""))

    def frames(self, calls: int) -> bytes:
        out = []
        for _ in range(calls):
            head, middle, message = next(self.calls)
            stream_id = self.stream_id.to_bytes(4, "big")
            out += [head, stream_id, middle, stream_id, message]
            self.stream_id += 2
        return b"".join(out)

    def read(self, data: bytes) -> list[float]:
        """Handles one read; the seconds of each stage."""
        marks = self.store.marks
        marks.clear()
        connection = self.connection
        started = time.perf_counter()
        for event in connection.receive(data):
            assert isinstance(event, Calls)
            marks.append(time.perf_counter())

            def answered(answers: list[Answer], stream_ids: list[int] = event.stream_ids) -> None:
                marks.append(time.perf_counter())
                done = connection.sender.answer_whole(stream_ids, answers)
                for stream_id, answer in zip(stream_ids[done:], answers[done:], strict=True):
                    assert isinstance(answer, bytes)
                    connection.sender.answer(stream_id, answer)

            self.service.submit(CallbackBatch(event.messages, answered))
        connection.take_output()
        ended = [*marks, time.perf_counter()]
        return [end - start for start, end in zip([started, *marks], ended, strict=True)]


def main() -> None:
    print("| µs a call |", " | ".join([*STAGES, "in all"]), "|")
    print("|---|" + "---|" * (len(STAGES) + 1))
    for shape in ("hot", "traced", "uniform", "zipf"):
        process = Process(shape)
        reads = [process.frames(CALLS) for _ in range(READS)]
        gc.collect()
        gc.freeze()
        gc.disable()
        found = []
        for data in reads:
            found.append(process.read(data))
            process.connection.receive(frames.window_update(0, len(data)))
        found.sort(key=sum)
        stages = found[len(found) // 4]
        cells = [f"{seconds / CALLS * 1e6:.1f}" for seconds in [*stages, sum(stages)]]
        print(f"| {shape} |", " | ".join(cells), "|")
        gc.enable()
        gc.unfreeze()


if __name__ == "__main__":
    main()
