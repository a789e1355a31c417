"""Real servers for tests. What this machine lacks is named, and is a failure where CI is set."""

from __future__ import annotations

import fcntl
import functools
import gc
import inspect
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from hypothesis import HealthCheck, settings

from ratelimit_service import compiled
from tests.nearby import reachable
from tests.servers.cluster import RedisCluster, SharedCluster
from tests.servers.process import for_several_tests, none_outlives
from tests.servers.redis import RedisServer, SharedRedis

# A machine that is busy breaks no law.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
settings.register_profile("unit", settings.get_profile("untimed"), max_examples=10)

_TOP = Path(__file__).parents[1]
_TOOLS = _TOP / ".tools"

_OPENS = re.compile(
    r"(subprocess|multiprocessing|grpc|http\.server|tests\.servers"
    r"|ratelimit_service\.(grpc\.(grpcio|server)|net\.listening|rules\.(child|watch)"
    r"|decision_log\.process|runtime\.(admin_port|worker_process)|stores\.redis\.store))(\.|$)"
)
"""Where ports and processes come from. What names it is no unit test."""
_OPENING = {"reload", "start_server", "open_connection"}
"""Methods that open them. Rules are built by another process when they are loaded again."""
_CALLING = {"bind", "connect", "create_connection", "create_server", "create_unix_server"}
"""What makes of a socket one that others can reach, or that reaches them: a pair does neither."""
_WHOLE = re.compile(r"tests\.servers\.(envoy|chromium|image)(\.|$)")
"""What stands around a service. What names it looks at the whole."""

_OPENED = {"socket.bind", "socket.connect", "subprocess.Popen", "os.fork", "os.posix_spawn"}
"""What Python says of itself when one of them is opened."""

UNIT, INTEGRATION, E2E = "unit", "integration", "e2e"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unit", action="store_true", help="only what needs no server, no program")


def pytest_configure(config: pytest.Config) -> None:
    """A unit test that opens a port or starts a process after all fails there."""
    if config.getoption("--unit"):
        settings.load_profile("unit")
        sys.addaudithook(_refuse)


def _refuse(event: str, _: object) -> None:
    if event in _OPENED and "PYTEST_CURRENT_TEST" in os.environ:
        raise AssertionError(
            f"{event} in a unit test: ask for the fixture `programs`, or use tests/servers"
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Says of which part each test is, by what it and its fixtures name; --unit leaves those."""
    parts = {item: _part(item.function, *_fixtures(item)) for item in items}
    for item, part in parts.items():
        item.user_properties.append(("part", part))
    if config.getoption("--unit"):
        config.hook.pytest_deselected(items=[item for item in items if parts[item] != UNIT])
        items[:] = [item for item in items if parts[item] == UNIT]


def pytest_collection_finish() -> None:
    """What is loaded by now is no garbage: no collection within a test looks at it again."""
    gc.collect()
    gc.freeze()


def _fixtures(item: pytest.Function) -> Iterator[object]:
    found = item._fixtureinfo.name2fixturedefs  # pytest shows nobody what a fixture is made by
    return (each[-1].func for name, each in found.items() if name != _as_it_was.__name__)


@functools.cache
def _part(*functions: object) -> str:
    """What they name, or what of the tests' own they name names; of classes only methods named."""
    left, named, part = list(functions), set[str](), UNIT
    seen, methods, with_socket = set[object](), dict[str, list[object]](), False
    while left:
        used = left.pop()
        if isinstance(used, Mapping):
            left += used.values()
            continue
        home = str(used.__name__ if inspect.ismodule(used) else getattr(used, "__module__", ""))
        if _WHOLE.match(home):
            return E2E
        if _OPENS.match(home):
            part = INTEGRATION
        with_socket |= home in ("socket", "_socket")
        own = isinstance(used, type | FunctionType) and home.startswith("tests.")
        if not own or used in seen or home == reachable.__module__:
            continue
        seen.add(used)
        if isinstance(used, FunctionType):
            names = set(_names(used.__code__))
            left += map(used.__globals__.get, names)
            left += itertools.chain.from_iterable(methods.pop(name, ()) for name in names)
            named |= names
        elif isinstance(used, type):
            left += used.__bases__
            for name, member in vars(used).items():
                at_once = name in named or name.startswith("__")
                into = left if at_once else methods.setdefault(name, [])
                into.append(getattr(member, "fget", None) or getattr(member, "__func__", member))
    if named & _OPENING or (with_socket and named & _CALLING):
        return INTEGRATION
    return part


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def pytest_report_header() -> str:
    return f"the package is {'compiled' if compiled() else 'interpreted'}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how much of each part there is, and how long its tests took, one after the other."""
    tests: dict[str, set[str]] = {UNIT: set(), INTEGRATION: set(), E2E: set()}
    seconds = dict.fromkeys(tests, 0.0)
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            part = str(dict(report.user_properties)["part"])
            seconds[part] += report.duration
            tests[part].add(report.nodeid)
    functions = {part: {name.partition("[")[0] for name in tests[part]} for part in tests}
    everything = sum(map(len, functions.values()))
    terminalreporter.section("parts")
    for part, found in functions.items():
        if found:
            terminalreporter.line(
                f"{part}: {seconds[part]:,.0f} s for {len(tests[part]):,} tests of {len(found):,} "
                f"functions, {100 * len(found) // everything} % of all"
            )


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
    with none_outlives(), reachable():
        yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == priority


@pytest.fixture
def programs() -> None:
    """A test asks for it whose calls start programs somewhere below: it is no unit test."""
    assert subprocess


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedRedis]:
    """A Redis for all tests that leave it running; flush it before use."""
    need("redis-server", "sudo apt install redis-server")
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    with for_several_tests():
        server.start()
    yield SharedRedis(server.port)
    server.kill()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    """A Redis Cluster for all tests that leave it as it is; flush it before use."""
    need("redis-server", "sudo apt install redis-server")
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    with for_several_tests():
        cluster.start()
    yield SharedCluster([SharedRedis(server.port) for server in cluster.servers])
    cluster.kill()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of the test's own, to be killed, hung and started again."""
    need("redis-server", "sudo apt install redis-server")
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()
