"""A real redis-server without persistence."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

from tests.servers.process import Process, free_port, listens
from tests.waiting import PATIENCE_SECONDS


class SharedRedis:
    """One that other tests use, too: nothing here ends it; the fixture `own_redis` can."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def flush(self) -> None:
        # Before most tests, so without a client, which takes milliseconds to make.
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            assert connection.recv(100) == b"+OK\r\n"


class RedisServer(SharedRedis):
    """One server on one port, which it keeps when started again."""

    def __init__(self, directory: Path, *flags: str) -> None:
        """`flags` are further ones of redis-server."""
        super().__init__(free_port())
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(directory)]
        command += ["--repl-diskless-sync-delay", "0", *flags]  # replicas are wanted at once
        self._process = Process(command, directory / "redis.log")

    def start(self) -> None:
        self._process.spawn()
        self._process.wait_ready(lambda: listens(self.port))

    def kill(self) -> None:
        """As a crash: nothing is said to anybody, all is lost."""
        self._process.kill()

    def stop(self) -> None:
        """Hangs: connections stay open and nothing is answered."""
        self._process.signal(signal.SIGSTOP)

    def cont(self) -> None:
        self._process.signal(signal.SIGCONT)

    def has_input(self) -> bool:
        """Whether bytes have reached the server that it has not read, since it hangs."""
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return any(
            int(local.partition(":")[2], 16) == self.port and int(queues.partition(":")[2], 16) > 0
            for _, local, _, _, queues, *_ in rows
        )
