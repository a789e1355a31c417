"""How much there is to hold in mind: functions of one call, statements, and numbers.

    .venv/bin/python -m benchmarks.size [--names]

Functions: our own that run for one call that comes alone to a warm service over the memory store,
by folder; run it interpreted. Statements: `ast.stmt` without docstrings, of what moves bytes and
shares out time. Numbers: module constants there that are plain numbers. `--names` lists the
functions in their order.
"""

from __future__ import annotations

import ast
import asyncio
import socket
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType
from types import FrameType as PythonFrame

import uvloop

import ratelimit_service
from benchmarks.load import SHAPES
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import (
    ACK,
    DEFAULT_WINDOW,
    MAX_WINDOW,
    PREFACE,
    FrameType,
    SettingId,
)
from ratelimit_service.grpc.server import H2Server
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.load import Rules
from ratelimit_service.service import Service
from ratelimit_service.settings import Settings
from ratelimit_service.stores.memory import MemoryStore

HERE = Path(ratelimit_service.__file__).parent
SCHEDULING = ("grpc", "eventloop", "net")
MOVES_BYTES = [
    *(HERE / folder for folder in SCHEDULING),
    HERE / "service" / "patience.py",
]
WARM = 2_000
RULES = Path(__file__).with_name("rules.yaml")
TRAILERS = b"grpc-status"


class Served:
    """A service on a loop in a thread of its own."""

    def __init__(self) -> None:
        self.names: list[CodeType] | None = None
        self.port = 0
        self.ready = threading.Event()
        self.over = threading.Event()
        self.thread = threading.Thread(target=uvloop.run, args=(self.serve(),), daemon=True)
        self.thread.start()
        self.ready.wait()

    async def serve(self) -> None:
        stats, health = Stats(), Health()
        rules = Rules(RULES, stats=stats, health=health)
        rules.load()
        store = MemoryStore(100_000, stats, health)
        service = Service(lambda: rules.snapshot, store, Settings(), stats)
        server = H2Server("127.0.0.1:0", service, health, stats=stats)
        self.port = await server.start()
        sys.setprofile(self.called)
        self.ready.set()
        await asyncio.to_thread(self.over.wait)
        sys.setprofile(None)
        await server.stop(0)

    def called(self, frame: PythonFrame, event: str, _: object) -> None:
        if event == "call" and self.names is not None:
            code = frame.f_code
            if code.co_filename.startswith(str(HERE)):
                self.names.append(code)


class Client:
    """A client that says no more than it must, as Envoy does."""

    def __init__(self, port: int) -> None:
        self.stream_id = 1
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(10)
        window = frames.settings({SettingId.INITIAL_WINDOW_SIZE: MAX_WINDOW})
        acknowledged = frames.frame(FrameType.SETTINGS, ACK, 0, b"")
        wider = frames.window_update(0, MAX_WINDOW - DEFAULT_WINDOW)
        self.socket.sendall(PREFACE + window + acknowledged + wider)
        self.calls = SHAPES["hot"]()
        self.call()
        self.socket.sendall(acknowledged)

    def call(self) -> None:
        """Makes one call, and waits for its answer."""
        head, middle, message = next(self.calls)
        stream_id = self.stream_id.to_bytes(4, "big")
        self.stream_id += 2
        self.socket.sendall(b"".join([head, stream_id, middle, stream_id, message]))
        answer = b""
        while TRAILERS not in answer:
            answer += self.socket.recv(4_096)


def functions() -> list[CodeType]:
    """What runs for one call that comes alone: of several, those with the usual number."""
    served = Served()
    client = Client(served.port)
    for _ in range(WARM):
        client.call()
    found: list[list[CodeType]] = []
    for _ in range(99):
        served.names = []
        client.call()
        threading.Event().wait(0.01)  # what comes after the answer is of this call, too
        found.append(served.names)
        served.names = None
    client.socket.close()
    served.over.set()
    served.thread.join()
    return sorted(found, key=len)[len(found) // 2]


def statements(path: Path) -> int:
    """How many statements a module or a folder has, without docstrings."""
    if path.is_dir():
        return sum(map(statements, path.rglob("*.py")))
    if not path.exists():
        return 0
    return sum(
        isinstance(node, ast.stmt)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in ast.walk(ast.parse(path.read_text()))
    )


def numbers(path: Path) -> int:
    """How many module constants of a folder are worked out of plain numbers alone."""
    if path.is_dir():
        return sum(map(numbers, path.rglob("*.py")))
    count = 0
    for node in ast.parse(path.read_text()).body if path.exists() else []:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        inner = list(ast.walk(value)) if value is not None else []
        plain = any(isinstance(each, ast.Constant) for each in inner) and all(
            isinstance(each, ast.BinOp | ast.Name | ast.operator | ast.expr_context)
            or (isinstance(each, ast.Constant) and isinstance(each.value, int | float))
            for each in inner
        )
        count += plain
    return count


def main() -> None:
    called = functions()
    by_folder: Counter[str] = Counter()
    files = set()
    for code in called:
        where = Path(code.co_filename).relative_to(HERE)
        files.add(where)
        by_folder[where.parts[0]] += 1
        if "--names" in sys.argv:
            print(f"    {where}: {code.co_qualname}")
    shared = sum(by_folder[folder] for folder in SCHEDULING)
    told = ", ".join(f"{folder} {count}" for folder, count in by_folder.most_common())
    print(f"functions of one call: {len(called)} in {len(files)} files ({told})")
    print(f"of these transport and scheduling: {shared}")
    print(f"statements there: {sum(map(statements, MOVES_BYTES))}, of {statements(HERE)} in all")
    print(f"numbers there: {sum(map(numbers, MOVES_BYTES))}")


if __name__ == "__main__":
    main()
