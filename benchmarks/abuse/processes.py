"""What takes part: the service that is attacked and watched, its clients, the machine itself.

What must not live here: what attackers do, and what bounds hold.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

import trustme

from benchmarks.abuse.attack import TLS, Attack
from benchmarks.run import COMPILED, RATELIMIT, SERVER_CORE, free_port, resident_bytes, wait_for

AHEAD = ["nice", "-n", "-19"] if os.geteuid() == 0 else []
ATTACKING = ["nice", "-n", "-9"] if os.geteuid() == 0 else ["nice", "-n", "10"]
"""What else the machine does must not make answers late, nor may the attacker take from the honest
client what the service is to be blamed for."""


class Program(NamedTuple):
    """What is attacked."""

    name: str
    command: str
    redis: bool


def programs() -> list[Program]:
    builds = {"interpreted": RATELIMIT}
    if COMPILED.exists():
        builds["compiled"] = str(COMPILED)
    return [
        Program(f"{build}, {store}", command, store != "memory")
        for build, command in builds.items()
        for store in ("memory", "Redis with two workers")
        if store == "memory" or shutil.which("redis-server")
    ]


class Service:
    """A service that is watched: its processes, their memory, their long turns, its log."""

    def __init__(self, program: Program, attack: Attack, redis_port: int, home: Path) -> None:
        self.grpc_port, self.http_port = free_port(), free_port()
        self.turns, self._log = home / "turns", home / "log"
        self.authority: str | None = None
        command = [program.command, "serve", "--rules", str(Path(__file__).with_name("rules.yaml"))]
        command += ["--grpc", f"127.0.0.1:{self.grpc_port}"]
        command += ["--http", f"127.0.0.1:{self.http_port}", "--log-level", "info"]
        if program.redis:
            command += ["--store", f"redis://127.0.0.1:{redis_port}/0", "--workers", "2"]
            command += ["--store-timeout", "1s"]
        self._command, self._restarted = program.command, 0
        self._workers = 2 if program.redis else 1
        self.deciding = self._workers
        """The processes that decide."""
        if attack.flags == TLS:
            command += self._certificates(home)
        environment = {
            **os.environ,
            "ABUSE_RECORD": str(self.turns),
            "PYTHONPATH": str(Path(__file__).with_name("site")),
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*AHEAD, "taskset", "-c", SERVER_CORE, *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=home,
            )
        self.pids: list[int] = []

    def __enter__(self) -> Self:
        """Waits until it serves."""
        try:
            wait_for(self.grpc_port)
            wait_for(self.http_port)
            self.pids = self.processes()
            for _ in range(200):
                if len(self.pids) == self._workers + 1:
                    break
                time.sleep(0.05)
                self.pids = self.processes()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()

    def _certificates(self, home: Path) -> list[str]:
        authority = trustme.CA()
        made = authority.issue_cert("localhost")
        cert, key, trusted = home / "cert.pem", home / "key.pem", home / "ca.pem"
        made.private_key_pem.write_to_path(str(key))
        cert.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
        authority.cert_pem.write_to_path(str(trusted))
        self.authority = str(trusted)
        return ["--tls-cert", str(cert), "--tls-key", str(key)]

    def processes(self) -> list[int]:
        """The pids of what serves; of what is attacked this cannot be asked in time."""
        url = f"http://127.0.0.1:{self.http_port}/processes"
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            found = json.load(answer)["workers"]
            return [
                self.process.pid,
                *(each["pid"] for each in found if each["state"] == "serving"),
            ]
        return []

    def resident(self) -> int:
        found = 0
        for pid in self.pids:
            with suppress(OSError, IndexError):  # gone: others see to that
                found += resident_bytes(pid)
        return found

    @property
    def log_bytes(self) -> int:
        return self._log.stat().st_size

    def lives(self, restarts: int = 0) -> bool:
        """Whether the processes are those of the start, or of so many restarts."""
        if self.process.poll() is not None:
            return False
        if not restarts:
            return self.processes() == self.pids
        return self._restarted == restarts and len(self.processes()) == self._workers + 1

    def restart(self, times: int) -> None:
        """Tells it to restart so often, one restart after the other."""
        command = [self._command, "restart", "--http", f"127.0.0.1:{self.http_port}"]
        for _ in range(times):
            done = subprocess.run(command, capture_output=True, check=False)
            self._restarted += done.returncode == 0
            self.pids = self.processes() or self.pids

    def stop(self) -> float:
        """Ends it; returns how long that took."""
        began = time.perf_counter()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return time.perf_counter() - began


def stolen_seconds() -> float:
    """What was ever taken from all cores of this machine, if it is a virtual one."""
    with suppress(OSError):
        cores = Path("/proc/stat").read_text().splitlines()[0].split()
        return int(cores[8]) / os.sysconf("SC_CLK_TCK")
    return 0.0


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is ready to be told when to begin."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", command
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str], begins: float, ends: float) -> None:
    """Tells it when."""
    assert process.stdin is not None
    process.stdin.write(f"{begins} {ends}\n")
    process.stdin.flush()


@contextmanager
def ahead() -> Iterator[None]:
    """Lets what runs here come first where the kernel shares out time by autogroups.

    Priorities of processes say nothing to those of another autogroup then. Whatever else is in this
    one, such as a shell, has its own priority again afterwards.
    """
    group = Path("/proc/self/autogroup")
    if not (AHEAD and group.exists()):
        yield
        return
    before = group.read_text().split()[-1]
    group.write_text("-19")
    try:
        yield
    finally:
        group.write_text(before)
