"""The examples of docs/regions.md are complete: run as they stand, they do what the page says.

Only where Redis is differs, and `timeout=180ms` holds: a busy machine may answer later than that,
by policy, and is asked again.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.process import free_port, listens
from tests.servers.redis import RedisServer
from tests.servers.service import ServiceProcess
from tests.waiting import PATIENCE_SECONDS

TOP = Path(__file__).parents[2]
PAGE = (TOP / "docs" / "regions.md").read_text()
ALLOWED, DENIED = 200, 429


class Example:
    """The files and the commands of one section of the page, in a directory."""

    def __init__(self, title: str, directory: Path) -> None:
        section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        self._directory = directory
        for name, text in re.findall(r"`(\w+\.yaml)`[^`]*```yaml\n(.*?)```", section, re.DOTALL):
            (directory / name).write_text(text)
        self._commands = re.findall(r"^    ratelimit serve (.*)$", section, re.MULTILINE)

    def service(self, number: int, redis: str) -> ServiceProcess:
        """What the command of that number starts, with Redis at another place."""
        flags = shlex.split(re.sub(r"redis\.\w+\.example:6379/0", redis, self._commands[number]))
        flags[flags.index("--rules") + 1] = str(self._directory / flags[flags.index("--rules") + 1])
        service = ServiceProcess(self._directory, *flags)
        service.start()
        return service


class FarWay:
    """A way to a port of this machine that takes 50 ms each way, in a process of its own."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "tests.servers.proxy", str(self.port), str(target)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=TOP)
        self.come_back()
        until(lambda: listens(self.port))

    def cut(self) -> None:
        self._say("hold")

    def come_back(self) -> None:
        self._say("clear")
        self._say("delay 50")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def far_way(target: int) -> Iterator[FarWay]:
    way = FarWay(target)
    try:
        yield way
    finally:
        way.close()


def until(condition: Callable[[], bool]) -> None:
    """Asks until it is so."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def asked(service: ServiceProcess, hits: int) -> int:
    return service.decide("world", hits, customer="acme").status


def test_a_part_in_each_region(tmp_path: Path, own_redis: RedisServer) -> None:
    """Each region admits its part, and no more, whatever the other does."""
    example = Example("A part in each region", tmp_path)
    europe = example.service(0, f"127.0.0.1:{own_redis.port}/0")
    america = example.service(1, f"127.0.0.1:{own_redis.port}/1")

    assert [asked(europe, hits) for hits in (600_000, 1)] == [ALLOWED, DENIED]
    assert [asked(america, hits) for hits in (300_000, 1)] == [ALLOWED, DENIED]


def test_one_store_exact(tmp_path: Path, own_redis: RedisServer) -> None:
    """All regions admit the limit together; one that is cut off denies, and the others go on."""
    example = Example("One store, exact", tmp_path)
    with far_way(own_redis.port) as way:
        near = example.service(0, f"127.0.0.1:{own_redis.port}/0")
        far = example.service(1, f"127.0.0.1:{way.port}/0")
        until(lambda: asked(far, 400_000) == ALLOWED)
        assert asked(near, 1) == ALLOWED

        way.cut()
        assert asked(far, 1) == DENIED
        assert asked(near, 1) == ALLOWED
        way.come_back()

        until(lambda: asked(far, 1) == ALLOWED)
        until(lambda: asked(near, 599_997) == ALLOWED)
        assert [asked(each, 1) for each in (near, far)] == [DENIED, DENIED]
