"""One child process and how to wait for what it does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.waiting import PATIENCE_SECONDS

PORTS = range(11_000, 21_000)
"""Below those that the system gives to outgoing connections, which could be in the way; the
bus of a Redis Cluster listens 10,000 above."""

_given: set[int] = set()
_claims = (Path(tempfile.gettempdir()) / f"ratelimit-test-ports-{os.getuid()}").open("ab")
"""Each run of the tests locks a byte of it for each port that it has given, until it ends."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses, another each time.

    Other runs of the tests at the same time, which may not listen there yet, have others.
    """
    while True:
        port = random.choice(PORTS)
        if port in _given or listens(port):
            continue
        try:
            fcntl.lockf(_claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except BlockingIOError:
            continue
        _given.add(port)
        return port


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Waits for a condition; fails the test, naming what it waited for, if it never holds.

    It looks less often after a while: looking takes time from the process that is waited for.
    """
    deadline, pause = time.monotonic() + PATIENCE_SECONDS, 0.01
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE_SECONDS:g} s for {what}")
        time.sleep(pause)
        pause = min(1.2 * pause, 0.05)


def listens(port: int) -> bool:
    """Whether something accepts connections on a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have started."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *descendants(child)]
    return found


def running(module: str) -> list[int]:
    """The processes of ours that run a module of the package."""
    lines = {pid: Path(f"/proc/{pid}/cmdline") for pid in descendants(os.getpid())}
    return [pid for pid, line in lines.items() if f"from {module} import" in line.read_text()]


def has_ended(pid: int) -> bool:
    """Whether a child has ended, though nobody has asked for its exit code."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


_running: set[Process] = set()
_shared: set[Process] = set()


@contextlib.contextmanager
def none_outlives() -> Iterator[None]:
    """Ends what is spawned within and has not ended, but for what several tests share."""
    before = set(_running)
    try:
        yield
    finally:
        for process in _running - before - _shared:
            process.kill()


@contextlib.contextmanager
def for_several_tests() -> Iterator[None]:
    """What is spawned within is shared by several tests. It may start in the midst of one."""
    before = set(_running)
    yield
    _shared.update(_running - before)


class Process:
    """A child process with its log in a file."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        family: bool = False,
    ) -> None:
        """With `family` all that it has started is killed with it."""
        self._command = command
        self._log = log
        self._environment = environment
        self._family = family
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """Everything that the process has written so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def spawn(self) -> None:
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        _running.add(self)

    def wait_ready(self, ready: Callable[[], object]) -> None:
        """Waits until the process is ready; fails at once if it ends before."""

        def ready_or_ended() -> bool:
            return bool(self.child.poll() is not None or ready())

        wait_until(ready_or_ended, f"{self._command[0]} to be ready")
        assert self.child.poll() is None, f"{self._command[0]} ended:\n{self.log}"

    @property
    def child(self) -> subprocess.Popen[bytes]:
        assert self._child is not None, "the process was never started"
        return self._child

    def signal(self, number: signal.Signals) -> None:
        self.child.send_signal(number)

    def wait(self) -> int:
        """Waits for the end; returns the exit code."""
        return self.child.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """Ends the process at once, if it runs."""
        family = descendants(self._child.pid) if self._family and self._child else []
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait(PATIENCE_SECONDS)
        _running.discard(self)
