"""The service itself, started as its user would, and asked over the wire."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.http_client import HTTPAnswer, http
from tests.servers.process import Process, free_port

COMMAND = str(Path(sys.executable).with_name("ratelimit"))


class ServiceProcess:
    """`ratelimit serve` on free ports of the loopback interface."""

    def __init__(
        self, directory: Path, *flags: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.grpc_port = free_port()
        self.http_port = free_port()
        self.admin_port = free_port()
        command = [COMMAND, "serve", "--grpc", f"127.0.0.1:{self.grpc_port}"]
        command += ["--http", f"127.0.0.1:{self.http_port}", "--store-timeout", "5s"]
        command += ["--admin", f"127.0.0.1:{self.admin_port}", *flags]
        # No test needs the system's authorities, and aiohttp would read all of them at each start.
        merged = {"SSL_CERT_FILE": os.devnull, **os.environ, **(environment or {})}
        self._process = Process(command, directory / f"service-{self.grpc_port}.log", merged)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def log(self) -> str:
        return self._process.log

    @property
    def pid(self) -> int:
        return self._process.child.pid

    @property
    def ended(self) -> bool:
        return self._process.child.poll() is not None

    def spawn(self) -> None:
        """Starts it, and waits for nothing."""
        self._process.spawn()

    def start(self) -> None:
        self.spawn()
        self._process.wait_ready(lambda: "make a decision" in self.log)

    def get(self, path: str) -> HTTPAnswer:
        return http(f"http://127.0.0.1:{self.http_port}{path}")

    def admin(self, path: str) -> HTTPAnswer:
        """What the admin listener says."""
        return http(f"http://127.0.0.1:{self.admin_port}{path}")

    def decide(self, domain: str, hits: int = 1, /, **entries: str) -> HTTPAnswer:
        """One decision over /json."""
        pairs = [{"key": key, "value": value} for key, value in entries.items()]
        return http(
            f"http://127.0.0.1:{self.http_port}/json",
            {"domain": domain, "descriptors": [{"entries": pairs}], "hitsAddend": hits},
        )

    def signal(self, number: signal.Signals) -> None:
        self._process.signal(number)

    def wait(self) -> int:
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
