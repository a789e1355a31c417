"""What it costs to watch and to steer: the time of a call with it, and without.

    .venv/bin/python -m benchmarks.beside [words of the rows]

Both run in one process, in turns of twenty reads of fifty calls of two descriptors, through the
connection, the service and the memory store, without sockets. A row has the medians of many turns,
and how much longer those with it take, with the 95 % interval of the median of the pairs. The
decision log's turns last until all decisions are handed on. Rows `served`
ask two servers in turns, of which one writes the log: the time is that of all of a server's
processes, so also of the one that makes and writes lines. Rows `serving` are of the same turns
without that one, and rows `waited for` have how long callers waited for an answer, with a hundred
calls at a time. Run it interpreted: nothing can be taken out of compiled code.
docs/benchmarks.md has the rows.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import os
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from types import MethodType
from typing import NamedTuple

import uvloop

from benchmarks.cpu import GaveUpError, Load, Spent, processes, say, turn
from benchmarks.load import BLOCK, SHAPES, Call, body, call
from benchmarks.profile import RULES, Process
from benchmarks.run import LOAD_CORE, RATELIMIT, SERVER_CORE, free_port, running
from ratelimit_service import compiled
from ratelimit_service.decision_log.queue import DecisionQueue
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.connection import Calls
from ratelimit_service.model import Entry, Override, OverrideKind
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.load import Rules
from ratelimit_service.service import Answer, CallbackBatch, Service
from ratelimit_service.service import service as service_module
from ratelimit_service.settings import Settings
from ratelimit_service.stores.memory import MemoryStore

PAIRS, READS, CALLS = 60, 20, 50
"""So many pairs of turns; reads of a turn, and calls of a read."""

CALLERS_PAIRS = 300
"""For differences of one percent."""

TAKEN_SECONDS = 5.0
"""What was noted of callers is taken after so much time in turns with it."""

SERVED_PAIRS, SERVED_LOAD = 30, Load(4_000, 4, 25, rest_seconds=0.2)
"""Of servers; lines are written within the time that is waited for them."""

Switch = Callable[[bool], None]
"""Has the thing done, or not, in the next turn."""


class Row(NamedTuple):
    """Calls of a shape, all of which come to the same, with and without something."""

    what: str
    calls: str
    shape: str
    limit: int = 200_000_000
    near: float = 0.8
    overrides: int = 0
    pairs: int = PAIRS


NAMES = {
    "hot": "one caller",
    "thousand": "a thousand callers",
    "traced": "one caller that traces",
    "uniform": "a million callers",
}
"""Of the shapes of logged calls."""

LISTENING = ("self.events.listeners", "origins is not None")
"""What is asked for those that listen."""

WITHIN, NEAR, OVER = ("within", 200_000_000, 0.8), ("near", 200_000_000, 1e-9), ("over", 0, 0.8)
ROWS = [
    *[
        Row("callers", f"{name}, {whose}", shape, limit, near, pairs=CALLERS_PAIRS)
        for name, limit, near in (WITHIN, NEAR, OVER)
        for whose, shape in (("one caller", "hot"), ("a million callers", "uniform"))
    ],
    *[
        Row("all of it", f"{name}, {whose}", shape, limit, near, pairs=CALLERS_PAIRS)
        for name, limit, near in (WITHIN, NEAR, OVER)
        for whose, shape in (("one caller", "hot"), ("a million callers", "uniform"))
    ],
    Row("nobody listens", "within, one caller", "hot"),
    Row("nobody listens", "over, one caller", "hot", 0),
    Row("no override", "within, one caller", "hot"),
    Row("1 override of others", "within, one caller", "hot", overrides=1),
    Row("1 override of others", "within, a million callers", "uniform", overrides=1),
    Row("10,000 overrides of others", "within, one caller", "hot", overrides=10_000),
    Row("10,000 overrides of others", "within, a million callers", "uniform", overrides=10_000),
    *[Row("decision log, a worker", f"over, {whose}", shape, 0) for shape, whose in NAMES.items()],
]


def thousand() -> Iterator[Call]:
    """A thousand callers, one after the other."""
    return cycle([call(BLOCK, body(number, number)) for number in range(1_000)])


SHAPES["thousand"] = thousand


class Beside:
    """A connection with its service, and what is switched on and off beside it."""

    def __init__(self, row: Row, directory: Path) -> None:
        rules = directory / "rules.yaml"
        rules.write_text(RULES.read_text().replace("200000000", str(row.limit)))
        self.process = process = Process(row.shape, rules)
        process.connection.callers.peer = "10.1.2.3"
        stats, health = Stats(), Health()
        loaded = Rules(rules, stats=stats, health=health)
        loaded.load()
        store = MemoryStore(3_000_000, stats, health)
        settings = Settings(
            near_limit_ratio=row.near,
            decision_log=str(directory / "decisions.jsonl"),
            decision_log_max_bytes=1 << 26,
            decision_log_sample="denied=1,allowed=0",
        )
        self.service = Service(lambda: loaded.snapshot, store, settings, stats)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        self.queue = DecisionQueue(settings, stats, lambda packet: os.write(nowhere, packet) > 0)
        self._callers = self.service.callers
        self._noted_seconds = 0.0

    def callers(self, on: bool) -> None:
        self.service.callers = self._callers if on else None

    def log(self, on: bool) -> None:
        self.service.events.listeners = (self.queue,) if on else ()

    def question(self, *words: str) -> Switch:
        """Switches off by asking no more, so that even the question costs nothing."""
        asking = (Service.submit, Service._plan, Service._settled)  # noqa: SLF001
        functions = [made for each in asking if (made := without(each, words))]
        if not functions:
            raise SystemExit(f"beside.py: the service asks for none of {words}")

        def switch(on: bool) -> None:
            for function in functions:
                if on:
                    vars(self.service).pop(function.__name__, None)
                else:
                    bound = MethodType(function, self.service)
                    setattr(self.service, function.__name__, bound)

        return switch

    async def turn(self) -> float:
        """Microseconds of a call in one turn."""
        reads = [self.process.frames(CALLS) for _ in range(READS)]
        connection = self.process.connection
        started = time.process_time()
        for data in reads:
            self._read(data)
            connection.receive(frames.window_update(0, len(data)))
            await asyncio.sleep(0)  # a server's loop has a turn between reads, too
        self.queue.flush()
        spent = time.process_time() - started
        self._noted_seconds += spent
        if self._noted_seconds > TAKEN_SECONDS and self._callers is not None:
            self._callers.clear()
            self._noted_seconds = 0.0
        return spent / READS / CALLS * 1e6

    def _read(self, data: bytes) -> None:
        connection, service = self.process.connection, self.service
        connection.callers.wanted = service.events.wants_origins
        for event in connection.receive(data):
            assert isinstance(event, Calls)

            def answered(answers: list[Answer], stream_ids: list[int] = event.stream_ids) -> None:
                for stream_id, answer in zip(stream_ids, answers, strict=True):
                    assert isinstance(answer, bytes)
                    connection.sender.answer(stream_id, answer)

            service.submit(CallbackBatch(event.messages, answered, origins=event.origins))
        connection.take_output()


def override(number: int) -> Override:
    """One of a caller that never asks."""
    entries = (Entry("route", "checkout"), Entry("user", f"nobody-{number}"))
    return Override(f"o{number}", OverrideKind.BAN, "bench", entries, 0)


def without(
    function: Callable[..., object], words: tuple[str, ...]
) -> Callable[..., object] | None:
    """The same function without its statements `if` that ask for one of these words, if any do."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found: list[str] = []

    class Without(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> object:
            self.generic_visit(node)
            asked = ast.unparse(node.test)
            if not any(word in asked for word in words):
                return node
            found.append(asked)
            return node.orelse or None

    changed = ast.fix_missing_locations(Without().visit(tree))
    made: dict[str, Callable[..., object]] = {}
    exec(compile(changed, __file__, "exec"), vars(service_module), made)
    return made[function.__name__] if found else None


def switch_of(row: Row, beside: Beside) -> Switch:
    if row.what == "callers":
        return beside.callers
    if row.what == "decision log, a worker":
        return beside.log
    if row.what == "nobody listens":
        return beside.question(*LISTENING)
    if row.what == "no override":
        return beside.question("self.overrides.active", "self.events.listeners")
    if row.what == "all of it":
        asking = beside.question("self.overrides.active", *LISTENING)

        def switch(on: bool) -> None:
            asking(on)
            beside.callers(on)

        return switch
    raise SystemExit(f"beside.py: {row.what} cannot be switched")


async def in_turns(row: Row, directory: Path) -> tuple[list[float], list[float]]:
    """Turns with it, and without."""
    beside = other = Beside(row, directory)
    if row.overrides:  # what is remembered of them is to stay from turn to turn
        other = Beside(row, directory)
        beside.service.overrides.add([override(number) for number in range(row.overrides)])
    else:
        switch = switch_of(row, beside)
    found: tuple[list[float], list[float]] = [], []
    gc.collect()
    gc.freeze()
    gc.disable()
    for number in range(row.pairs):
        for at in (0, 1) if number % 2 else (1, 0):
            if not row.overrides:
                switch(at == 0)
            found[at].append(await (other if at else beside).turn())
    gc.enable()
    gc.unfreeze()
    return found


async def served(shapes: list[str], directory: Path) -> None:
    """Rows of denied calls of two servers, with the log and without."""
    rules = directory / "rules.yaml"
    rules.write_text(RULES.read_text().replace("200000000", "0"))
    logging = ["--decision-log", str(directory / "log"), "--decision-log-max-bytes", str(1 << 26)]
    logging += ["--decision-log-sample", "denied=1,allowed=0"]
    servers: list[tuple[int, list[int]]] = []
    with ExitStack() as stack:
        for more in (logging, []):
            port = free_port()
            command = [RATELIMIT, "serve", "--rules", str(rules), "--log-level", "error"]
            command += ["--grpc", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{free_port()}"]
            command += ["--max-counters", "3000000", *more]
            server = stack.enter_context(running(SERVER_CORE, command, port))
            while len(processes(server.pid)) < (3 if more else 2):  # the log has a writer
                await asyncio.sleep(0.01)
            servers.append((port, processes(server.pid)))
        for shape in shapes:
            calls = SHAPES[shape]()
            found: tuple[list[float], list[float]] = [], []
            serving: tuple[list[float], list[float]] = [], []
            waited: tuple[list[float], list[float]] = [], []
            for number in range(SERVED_PAIRS):
                spent: dict[int, Spent] = {}
                try:
                    for at in (0, 1) if number % 2 else (1, 0):
                        spent[at] = await turn(*servers[at], calls, SERVED_LOAD)
                except GaveUpError:
                    continue  # the machine stood still: this pair tells nothing
                for at in (0, 1):
                    found[at].append(sum(spent[at].each))
                    serving[at].append(max(spent[at].each))  # the worker's
                    waited[at].append(spent[at].waited)
            if len(found[0]) < SERVED_PAIRS // 2:
                raise SystemExit(f"beside.py: most pairs of {shape} were refused calls")
            say("decision log, served", f"over, {NAMES[shape]}", found)
            say("decision log, serving", f"over, {NAMES[shape]}", serving)
            say("decision log, waited for", f"over, {NAMES[shape]}", waited)


def chosen(name: str) -> bool:
    return not sys.argv[1:] or any(word in name for word in sys.argv[1:])


def main() -> None:
    if compiled():
        sys.exit("beside.py: the package is compiled, and nothing can be taken out of it")
    print("| what | calls | µs with it | µs without it | longer |")
    print("|---|---|---|---|---|", flush=True)
    for row in ROWS:
        if chosen(f"{row.what}, {row.calls}"):
            with tempfile.TemporaryDirectory() as directory:
                say(row.what, row.calls, asyncio.run(in_turns(row, Path(directory))))
    shapes = [shape for shape, whose in NAMES.items() if chosen(f"served, over, {whose}")]
    if shapes:
        os.sched_setaffinity(0, {int(LOAD_CORE)})
        with tempfile.TemporaryDirectory() as directory:
            uvloop.run(served(shapes, Path(directory)))


if __name__ == "__main__":
    main()
