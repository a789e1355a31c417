"""Real servers for tests. What this machine lacks is named, and is a failure where CI is set."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import inspect
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from hypothesis import HealthCheck, settings

from ratelimit_service import compiled
from tests.servers.cluster import RedisCluster
from tests.servers.process import for_several_tests, none_outlives
from tests.servers.redis import RedisServer

# A machine that is busy breaks no law.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
settings.register_profile("unit", settings.get_profile("untimed"), max_examples=10)

_TOP = Path(__file__).parents[1]
_TOOLS = _TOP / ".tools"

_PROGRAMS = {"multiprocessing", "socket", "subprocess"}
_WHOLE = re.compile(r"tests\.servers\.|tests\.grpc\.(?!test_|taken_turns|places)")
"""Servers of all kinds, and what plays both ends of a gRPC connection."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unit", action="store_true", help="only what needs no server, no program")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """With --unit only tests are left that name nothing large, nor do their fixtures."""
    if config.getoption("--unit"):
        settings.load_profile("unit")
        others = {item for item in items if _large(item.function, *_fixtures(item))}
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]


def _fixtures(item: pytest.Function) -> Iterator[object]:
    found = item._fixtureinfo.name2fixturedefs
    return (each[-1].func for name, each in found.items() if name != _as_it_was.__name__)


@functools.cache
def _large(*functions: object) -> bool:
    """Whether they, or what they name of the tests' own, name a whole server or a program."""
    left, seen = list(functions), set[object]()
    while left:
        used = left.pop()
        home = str(used.__name__ if inspect.ismodule(used) else getattr(used, "__module__", ""))
        if home in _PROGRAMS or _WHOLE.match(home):
            return True
        if home.startswith("tests.") and isinstance(used, type | FunctionType) and used not in seen:
            seen.add(used)
            if isinstance(used, type):
                left += vars(used).values()
            else:
                left += map(used.__globals__.get, _names(used.__code__))
    return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def pytest_report_header() -> str:
    return f"the package is {'compiled' if compiled() else 'interpreted'}"


def need(program: str, how: str) -> None:
    """Skips a test that needs a program, or a directory, not here; fails it where CI is set.

    What is in .tools is got first, which can take some minutes.
    """
    if settings.get_current_profile_name() == "unit":
        pytest.skip(f"{program} is not asked for with --unit")
    if Path(program).is_relative_to(_TOOLS):
        _get(Path(program))
    if shutil.which(program) is None and not Path(program).is_dir():
        message = f"{program} is missing: {how}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


@functools.cache
def _get(tool: Path) -> None:
    """Has `make` get a tool if it is missing or old; waits for another run that gets one."""
    _TOOLS.mkdir(exist_ok=True)
    with (_TOOLS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "--silent", tool.relative_to(_TOP)], cwd=_TOP, check=False)


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """What a test has started ends with it, also if it fails halfway.

    No test lowers the priority of this process: all that follow would be starved on a busy machine.
    """
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    with none_outlives():
        yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == priority


def _redis(directory: Path, *, shared: bool = False) -> Iterator[RedisServer]:
    need("redis-server", "sudo apt install redis-server")
    server = RedisServer(directory)
    with for_several_tests() if shared else contextlib.nullcontext():
        server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis shared by all tests that leave it running; flush it before use."""
    yield from _redis(tmp_path_factory.mktemp("redis"), shared=True)


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """A Redis Cluster shared by all tests that leave it as it is; flush it before use."""
    need("redis-server", "sudo apt install redis-server")
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    with for_several_tests():
        cluster.start()
    yield cluster
    cluster.kill()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of the test's own, to be killed, hung and started again."""
    yield from _redis(tmp_path)
