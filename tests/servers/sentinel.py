"""A master, its replica, and a Sentinel that may replace the one by the other."""

from __future__ import annotations

from pathlib import Path

import redis

from tests.servers.process import Process, free_port, listens, wait_until
from tests.servers.redis import RedisServer

NAME = "main"

_STALL_MS = 120_000
"""Longer than a machine stalls: Sentinel replaces no master that only stands still."""


class Watched:
    """The servers by `servers`, the master of the start first; `url` is of the store."""

    def __init__(self, directory: Path) -> None:
        self.servers: list[RedisServer] = []
        for number in range(2):
            place = directory / str(number)
            place.mkdir()
            flags = ("--replicaof", "127.0.0.1", str(self.servers[0].port)) if number else ()
            self.servers.append(RedisServer(place, *flags))
        self.port = free_port()
        config = directory / "sentinel.conf"
        config.write_text(
            f"port {self.port}\ndir {directory}\n"
            f"sentinel monitor {NAME} 127.0.0.1 {self.servers[0].port} 1\n"
            f"sentinel down-after-milliseconds {NAME} {_STALL_MS}\n"
            f"sentinel failover-timeout {NAME} 2000\n"
        )
        command = ["redis-server", str(config), "--sentinel"]
        self._sentinel = Process(command, directory / "sentinel.log")
        self.url = f"redis+sentinel://127.0.0.1:{self.port}/{NAME}"

    def start(self) -> None:
        for server in self.servers:
            server.start()
        self._sentinel.spawn()
        self._sentinel.wait_ready(lambda: listens(self.port))
        wait_until(lambda: self._asked().sentinel_slaves(NAME), "the replica to be known")

    def lose_master(self, seen_after_ms: int = 500) -> None:
        """Lets the master of the start die; Sentinel replaces it after so long a silence."""
        words = ("SENTINEL SET", NAME, "down-after-milliseconds", seen_after_ms)
        self._asked().execute_command(*words)  # type: ignore[no-untyped-call]
        self.servers[0].kill()

    def fail_over(self) -> None:
        """Asks Sentinel to; the old master lives on as a replica."""
        before = self.master
        wait_until(self._accepted, "a replica that is good enough")
        wait_until(lambda: self.master != before, "the failover")

    def _accepted(self) -> bool:
        try:
            self._asked().execute_command("SENTINEL FAILOVER", NAME)  # type: ignore[no-untyped-call]
        except redis.ResponseError:
            return False
        return True

    @property
    def master(self) -> int:
        """The master's port."""
        found = self._asked().sentinel_get_master_addr_by_name(NAME)
        assert isinstance(found, tuple)
        return int(found[1])

    def kill(self) -> None:
        self._sentinel.kill()
        for server in self.servers:
            server.kill()

    def _asked(self) -> redis.Redis:
        return redis.Redis(port=self.port)
