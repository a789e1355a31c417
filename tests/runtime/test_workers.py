"""Workers and their supervisor: connections, deaths, restarts, counts."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import ratelimit_service
from ratelimit_service import __version__
from ratelimit_service.client import Client
from ratelimit_service.errors import SettingsError, TransportError
from ratelimit_service.model import Code
from ratelimit_service.runtime.app import workers
from ratelimit_service.settings import Settings
from ratelimit_service.transport.h2 import frames
from ratelimit_service.transport.h2.frames import ACK, PREFACE, FrameType
from tests.runtime.callers import Caller, ask, clients
from tests.runtime.conftest import RULES, Start
from tests.servers.process import (
    PATIENCE_SECONDS,
    Process,
    descendants,
    free_port,
    listens,
    wait_until,
)
from tests.servers.redis import RedisServer
from tests.servers.service import COMMAND, ServiceProcess, http

REDIS = "redis://localhost:6379/0"


def processes(service: ServiceProcess) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(service.get("/processes").text)
    return shown


def pids(service: ServiceProcess) -> list[int]:
    return [worker["pid"] for worker in processes(service)["workers"]]


def metric(service: ServiceProcess, name: str) -> float:
    page = service.get("/metrics").text
    (value,) = re.findall(rf"^{re.escape(name)} (.*)$", page, re.MULTILINE)
    return float(value)


def connections(service: ServiceProcess) -> list[int]:
    return sorted(worker["connections"] for worker in processes(service)["workers"])


def test_one_worker_for_each_core() -> None:
    """With Redis there is a worker for each core that the process may run on, else none."""
    everything = os.sched_getaffinity(0)
    (one, *_) = everything

    assert workers(Settings()) == 0
    assert workers(Settings(workers=1)) == 0
    assert workers(Settings(store=REDIS)) == len(everything)
    assert workers(Settings(store=REDIS, workers=7)) == 7
    assert workers(Settings(store=REDIS, transport="grpcio")) == 0
    os.sched_setaffinity(0, {one})
    try:
        assert workers(Settings(store=REDIS)) == 1
    finally:
        os.sched_setaffinity(0, everything)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(workers=2), "--workers 2 needs a --store in Redis: in memory each would count"),
        (Settings(workers=2, store=REDIS, transport="grpcio"), "--workers 2 needs --transport h2"),
    ],
)
def test_more_than_one_cannot_be(settings: Settings, message: str) -> None:
    """More than one worker is refused, with the reason, where each would count for itself."""
    with pytest.raises(SettingsError, match=message):
        workers(settings)


def test_connections_are_spread(two: ServiceProcess) -> None:
    """Each new connection goes to the worker with the fewest, also after some have gone."""
    with clients(two, 5):
        wait_until(lambda: connections(two) == [2, 3], "five connections")
        with clients(two, 3):
            wait_until(lambda: connections(two) == [4, 4], "eight connections")
    wait_until(lambda: connections(two) == [0, 0], "all connections to be gone")

    with clients(two, 2):
        wait_until(lambda: connections(two) == [1, 1], "two connections")


def test_what_workers_count_adds_up(two: ServiceProcess) -> None:
    """A scrape shows what all workers have counted until then, and so does the next."""
    with clients(two, 4) as found:
        codes = [ask(client) for client in found for _ in range(5)]

        assert codes == [Code.OVER_LIMIT] * 20
        for _ in range(2):
            assert metric(two, 'ratelimit_decisions_total{code="ok"}') == 2
            assert metric(two, 'ratelimit_decisions_total{code="over_limit"}') == 22
            name = 'ratelimit_rule_hits_total{domain="edge",rule="user",value=""}'
            assert metric(two, name) == 24
            assert metric(two, "ratelimit_decision_duration_seconds_count") == 24
    assert metric(two, "ratelimit_workers") == 2


def test_json_is_decided_by_a_worker(two: ServiceProcess) -> None:
    """/json counts with everybody else."""
    with clients(two, 1):
        answers = [two.decide("edge", user="bob").status for _ in range(2)]

    assert answers == [200, 429]
    assert two.decide("", user="bob").status == 400


def test_killed_worker(two: ServiceProcess) -> None:
    """A worker that is killed is started again; others' connections stay, and it is said."""
    with ExitStack() as stack:
        opened = []
        while not all(connections(two)):  # usually two are enough
            opened.append(stack.enter_context(greeted(two.grpc_port)))
            assert opened[-1].recv(100)
        held = {worker["pid"]: worker["connections"] for worker in processes(two)["workers"]}
        assert sum(held.values()) == len(opened)
        killed, spared = held

        os.kill(killed, signal.SIGKILL)

        wait_until(lambda: killed not in pids(two), "the worker to go")
        wait_until(lambda: len(pids(two)) == 2, "another worker")
        wait_until(lambda: two.get("/healthcheck").text == "OK", "it to serve")
        assert sum(map(is_open, opened)) == held[spared]
        shown = {worker["pid"]: worker["connections"] for worker in processes(two)["workers"]}
        assert shown.pop(spared) == held[spared]
        assert list(shown.values()) == [0]
    assert f"worker 1 (pid {killed}) was killed by SIGKILL: another is started" in two.log
    assert "degraded: workers: 1 of 2 workers are missing" in two.log
    assert metric(two, 'ratelimit_worker_ends_total{reason="died"}') == 1


def greeted(port: int) -> socket.socket:
    """A connection that has said what a client must say within ten seconds, and no more."""
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
    with suppress(ConnectionError):  # if it was refused, whoever reads from it is told
        connection.sendall(
            PREFACE + frames.settings({}) + frames.frame(FrameType.SETTINGS, ACK, 0, b"")
        )
    return connection


def is_open(connection: socket.socket) -> bool:
    """Whether the other end has not closed it; what it has said is read, and not looked at."""
    connection.setblocking(False)
    try:
        while connection.recv(100):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


def test_hung_worker(two: ServiceProcess) -> None:
    """A worker that says nothing for five seconds is killed, and another takes its place."""
    hung, well = pids(two)

    os.kill(hung, signal.SIGSTOP)

    wait_until(lambda: "hung and was killed: another is started" in two.log, "it to be seen")
    wait_until(lambda: len(set(pids(two)) - {hung}) == 2, "another worker")
    assert well in pids(two)
    assert metric(two, 'ratelimit_worker_ends_total{reason="hung"}') == 1


def test_worker_that_is_told_to_end(two: ServiceProcess) -> None:
    """SIGTERM for one worker, whoever sends it, loses no call: another takes its place."""
    with clients(two, 2) as found:
        told = pids(two)[0]

        os.kill(told, signal.SIGTERM)

        wait_until(lambda: told not in pids(two), "the worker to end")
        assert [ask(client) for client in found for _ in range(5)] == [Code.OVER_LIMIT] * 10
    wait_until(lambda: len(pids(two)) == 2, "another worker")
    assert f"(pid {told}) was told to end" in two.log


def test_only_worker_that_is_told_to_end(start: Start, own_redis: RedisServer) -> None:
    """Where there is one worker, connections wait for its successor, and none is dropped."""
    service = start("--store", own_redis.url, "--workers", "1")
    (told,) = pids(service)
    with ThreadPoolExecutor() as pool, clients(service, 1) as (client,):
        own_redis.stop()
        in_flight = pool.submit(ask, client)
        wait_until(own_redis.has_input, "the call to wait for Redis")
        os.kill(told, signal.SIGTERM)
        wait_until(lambda: "was told to end" in service.log, "it to be seen")

        with socket.create_connection(("127.0.0.1", service.grpc_port), 30) as connection:
            assert connection.recv(100)

        own_redis.cont()
        assert in_flight.result() is Code.OK
    wait_until(lambda: told not in pids(service), "it to end")
    assert metric(service, 'ratelimit_worker_ends_total{reason="replaced"}') == 1


class Sharded:
    """A service of one worker; without the file that lists its shards no other can start."""

    def __init__(self, start: Start, redis: RedisServer, directory: Path) -> None:
        self._shards = directory / "shards.yaml"
        self._shards.write_text(f"shards: [{{store: '{redis.url}'}}]")
        self.service = start("--store", f"file:{self._shards}", "--workers", "1")

    def lose_shards(self) -> None:
        self._shards.rename(self._shards.with_name("away"))

    def find_shards(self) -> None:
        self._shards.with_name("away").rename(self._shards)

    def failures(self) -> int:
        return self.service.log.count("worker 1 cannot start")


@pytest.fixture
def sharded(start: Start, own_redis: RedisServer, tmp_path: Path) -> Sharded:
    return Sharded(start, own_redis, tmp_path)


def test_worker_whose_successor_cannot_start(sharded: Sharded) -> None:
    """A worker that is told to end serves old and new clients until another does, however long."""
    service = sharded.service
    (told,) = pids(service)
    with Client(service.address) as client:
        ask(client)
        sharded.lose_shards()

        os.kill(told, signal.SIGTERM)

        wait_until(lambda: sharded.failures() == 3, "three attempts to start another")
        assert ask(client) is Code.OK
        with Client(service.address) as another:
            assert ask(another) is Code.OVER_LIMIT
        (shown,) = processes(service)["workers"]
        assert (shown["pid"], shown["state"]) == (told, "leaving")
        sharded.find_shards()
        wait_until(lambda: told not in pids(service), "the worker to end")
        assert ask(client) is Code.OVER_LIMIT
    assert metric(service, 'ratelimit_worker_ends_total{reason="replaced"}') == 1


def test_worker_that_is_told_to_end_twice(sharded: Sharded) -> None:
    """A second SIGTERM ends a worker without waiting for another."""
    (told,) = pids(sharded.service)
    sharded.lose_shards()
    os.kill(told, signal.SIGTERM)
    wait_until(lambda: sharded.failures() == 1, "an attempt to start another")

    os.kill(told, signal.SIGTERM)

    wait_until(lambda: not runs(told), "the worker to end")
    sharded.find_shards()
    wait_until(lambda: sharded.service.get("/healthcheck").text == "OK", "another worker")


def test_supervisor_that_is_killed(start: Start, own_redis: RedisServer) -> None:
    """Workers do not outlive their supervisor: they drain, and the port is free at once."""
    service = start("--store", own_redis.url, "--workers", "2")
    left = pids(service)

    service.kill()

    wait_until(lambda: not any(map(runs, left)), "the workers to end")
    assert not listens(service.grpc_port)


def runs(pid: int) -> bool:
    """Whether there is such a process that has not ended, even if nobody has asked for it yet."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_rules_reach_all_workers(two: ServiceProcess, tmp_path: Path) -> None:
    """Changed rules are read once, by the supervisor, and then hold in every worker."""
    with clients(two, 2) as found:
        (tmp_path / "rules" / "edge.yaml").write_text(RULES % 5)

        wait_until(lambda: "requests_per_unit=5" in two.get("/rlconfig").text, "the new rules")
        wait_until(lambda: ask(found[0]) is Code.OK, "the first worker to have them")
        wait_until(lambda: ask(found[1]) is Code.OK, "the second worker to have them")
    assert metric(two, 'ratelimit_rule_loads_total{result="success"}') == 2


def test_large_rules_reach_workers(start: Start, own_redis: RedisServer, tmp_path: Path) -> None:
    """Thousands of rules and several domains come to the workers as they were written."""
    lines = ["domain: wide", "descriptors:"]
    limit = "rate_limit: {unit: day, requests_per_unit: 1}"
    lines += [f"  - {{key: k, value: v{number}, {limit}}}" for number in range(3_000)]
    (tmp_path / "rules" / "wide.yaml").write_text("\n".join(lines))
    service = start("--store", own_redis.url, "--workers", "2")

    answers = [service.decide("wide", k="v2999").status for _ in range(2)]

    assert answers == [200, 429]
    assert service.decide("edge", user="bob").status == 200


def test_restart_beside_a_worker_that_hears_nothing(two: ServiceProcess, tmp_path: Path) -> None:
    """A worker that takes no rules any more does not hold a restart up: another takes its place."""
    first, second = pids(two)
    os.kill(first, signal.SIGSTOP)
    limit = "rate_limit: {unit: day, requests_per_unit: 1}"
    name = "v" * 500
    lines = [f"  - {{key: k, value: {name}{number}, {limit}}}" for number in range(1_500)]
    (tmp_path / "rules" / "wide.yaml").write_text("\n".join(["domain: w", "descriptors:", *lines]))
    wait_until(lambda: "rules reloaded: 1501 rules" in two.log, "the new rules")

    os.kill(two.pid, signal.SIGUSR2)

    wait_until(lambda: restarts(two) == 1, "the restart")
    assert not {first, second} & set(pids(two))
    assert two.decide("w", k=f"{name}7").status == 200


def restarts(service: ServiceProcess) -> int:
    """How many there were; 0 while nobody answers."""
    try:
        return int(processes(service)["restarts"])
    except OSError:
        return 0


class Load:
    """Calls without pause over a few connections, until it is left."""

    def __init__(self, service: ServiceProcess) -> None:
        self._address = service.address
        self._over = threading.Event()
        self.calls = 0
        self.failures: list[str] = []

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._ask) for _ in range(2)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        with Caller(self._address) as client:
            while not self._over.is_set():
                try:
                    ask(client)
                except TransportError as error:
                    self.failures.append(str(error))
                self.calls += 1


class Reader:
    """Reads pages without pause, until it is left."""

    def __init__(self, *urls: str) -> None:
        self._urls = urls
        self._over = threading.Event()
        self.pages = 0
        self.failures: list[str] = []

    def __enter__(self) -> Reader:
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._over.is_set():
            for url in self._urls:
                try:
                    status = http(url).status
                except OSError as error:
                    self.failures.append(f"{url}: {error}")
                else:
                    self.failures += [] if status == 200 else [f"{url}: {status}"]
                self.pages += 1


def restart(service: ServiceProcess) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, "restart", "--http", f"127.0.0.1:{service.http_port}"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


def test_rolling_restart(two: ServiceProcess) -> None:
    """All workers are replaced under load, no call fails, counts go on, the pid stays."""
    before = processes(two)
    assert before["pid"] == two.pid
    admin = f"http://127.0.0.1:{two.admin_port}/processes"
    with Load(two) as load, Reader(admin) as reader:
        wait_until(lambda: load.calls > 100 and reader.pages > 2, "calls")

        restarts = [restart(two) for _ in range(2)]

        after = processes(two)
    for each in restarts:
        assert (each.returncode, each.stderr) == (0, "")
        *replaced, last = each.stdout.splitlines()
        assert len(replaced) == 2
        assert last == f"restarted: version {__version__}"
    assert load.failures == []
    assert reader.failures == []
    told = json.loads(two.admin("/processes").text)["deciding"]
    assert sorted(each["pid"] for each in told) == sorted(pids(two))
    assert after["pid"] == before["pid"]
    assert after["restarts"] == 2
    assert not set(pids(two)) & {worker["pid"] for worker in before["workers"]}
    decided = [
        metric(two, f'ratelimit_decisions_total{{code="{code}"}}') for code in ("ok", "over_limit")
    ]
    assert decided == [2, load.calls - 2]
    assert metric(two, 'ratelimit_worker_ends_total{reason="replaced"}') == 4
    assert metric(two, 'ratelimit_restarts_total{result="success"}') == 2


def test_workers_have_no_more_than_their_own(two: ServiceProcess) -> None:
    """After a restart a worker has as many files open as before: it inherits no other's sockets."""
    before = [open_sockets(pid) for pid in pids(two)]

    assert restart(two).returncode == 0

    assert [open_sockets(pid) for pid in pids(two)] == before


def open_sockets(pid: int) -> int:
    links = Path(f"/proc/{pid}/fd").iterdir()
    return sum(str(link.readlink()).startswith("socket:") for link in links)


def test_restart_by_signal_over_a_unix_socket(
    start: Start, own_redis: RedisServer, tmp_path: Path
) -> None:
    """SIGUSR2 does the same; a Unix socket stays where it is until the service ends.

    The ports of metrics and of the debug pages are handed on, too: no page is missed.
    """
    path = tmp_path / "grpc.sock"
    ports = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    flags = ["--debug", ports[0], "--reference-metrics", ports[1], "--workers", "1"]
    service = start("--store", own_redis.url, "--grpc", f"unix:{path}", *flags)
    before = pids(service)
    pages = f"http://{ports[0]}/stats", f"http://{ports[1]}/metrics"
    with Client(f"unix:{path}") as client, Reader(*pages) as reader:
        ask(client)
        wait_until(lambda: reader.pages > 2, "pages")

        service.signal(signal.SIGUSR2)

        wait_until(lambda: "restarted: version" in service.log, "the restart")
        seen = reader.pages
        wait_until(lambda: reader.pages > seen + 2, "pages of the next program")
        assert ask(client) is Code.OK
    assert reader.failures == []
    assert not set(before) & set(pids(service))
    service.signal(signal.SIGTERM)
    assert service.wait() == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("said", "times"), [("asked to restart", 1), ("restarting\n", 1), (" serves\n", 3)]
)
def test_signals_while_restarting(
    start: Start, own_redis: RedisServer, said: str, times: int
) -> None:
    """A service that is told to end at any moment of a restart ends, with all its workers."""
    service = start("--store", own_redis.url, "--workers", "2")
    before = pids(service)
    service.signal(signal.SIGUSR2)
    wait_until(lambda: service.log.count(said) == times, "that moment of the restart")

    service.signal(signal.SIGHUP)
    service.signal(signal.SIGTERM)

    assert service.wait() == 0
    assert not any(map(runs, before))
    assert not listens(service.grpc_port)


def test_restart_that_cannot_be(two: ServiceProcess, tmp_path: Path) -> None:
    """What could not start is not restarted into: the reason is told, and all goes on."""
    before = pids(two)
    (tmp_path / "rules").rename(tmp_path / "elsewhere")

    refused = restart(two)

    (tmp_path / "elsewhere").rename(tmp_path / "rules")
    assert refused.returncode == 2
    message = f"not restarted: {tmp_path}/rules: there is no such file or directory"
    assert message in refused.stderr
    assert message in two.log
    assert pids(two) == before
    assert metric(two, 'ratelimit_restarts_total{result="error"}') == 1
    assert restart(two).returncode == 0


def test_nobody_to_restart(start: Start) -> None:
    """A service of one process says so, and goes on."""
    service = start()

    refused = restart(service)
    service.signal(signal.SIGUSR2)

    assert refused.returncode == 2
    assert "is one process, with its counters in memory" in refused.stderr
    wait_until(lambda: "cannot hand over to another" in service.log, "the signal to be seen")
    assert service.decide("edge", user="bob").status == 200


def test_restart_of_nothing() -> None:
    """Where no service is, the error says how to name one."""
    command = [COMMAND, "restart", "--http", "127.0.0.1:1"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )

    assert done.returncode == 2
    assert "no service answers at 127.0.0.1:1" in done.stderr
    assert "--http" in done.stderr


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A place with the package, for PYTHONPATH, whose version a test may change."""
    place = tmp_path / "installed"
    package = Path(ratelimit_service.__file__).parent
    shutil.copytree(package, place / "ratelimit_service")
    for library in package.parent.glob("*__mypyc.*.so"):
        shutil.copy(library, place)
    (place / "ratelimit_service-1.dist-info").mkdir()
    return place


def install(place: Path, version: str) -> None:
    metadata = f"Metadata-Version: 2.1\nName: ratelimit-service\nVersion: {version}\n"
    (place / "ratelimit_service-1.dist-info" / "METADATA").write_text(metadata)


def test_restart_into_another_version(
    start: Start, own_redis: RedisServer, installed: Path
) -> None:
    """A restart goes on as the version that is installed by then, supervisor and workers."""
    install(installed, "7.0")
    service = start("--store", own_redis.url, "--workers", "2", PYTHONPATH=str(installed))
    assert processes(service)["version"] == "7.0"
    install(installed, "7.1")

    with Load(service) as load:
        done = restart(service)

    assert done.stdout.splitlines()[-1] == "restarted: version 7.1"
    assert load.failures == []
    after = processes(service)
    assert {after["version"], *(worker["version"] for worker in after["workers"])} == {"7.1"}


def test_worker_of_another_version(start: Start, own_redis: RedisServer, installed: Path) -> None:
    """If a worker dies after an upgrade, the whole service goes on as the new version."""
    install(installed, "7.0")
    service = start("--store", own_redis.url, "--workers", "2", PYTHONPATH=str(installed))
    install(installed, "7.1")

    os.kill(pids(service)[0], signal.SIGKILL)

    wait_until(lambda: "restarted: version 7.1" in service.log, "the restart")
    assert {worker["version"] for worker in processes(service)["workers"]} == {"7.1"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--store", "redis://h:x/0"], "the store URL cannot be read: allowed are redis://"),
        (["--store", "memroy"], "store scheme 'memroy' is unknown: allowed are memory, redis://"),
        (["--store", "file:///nowhere"], "/nowhere"),
        (["--store", REDIS, "--second-store", "redis://h:x"], "the store URL cannot be read"),
    ],
)
def test_store_that_cannot_be(tmp_path: Path, flags: list[str], message: str) -> None:
    """A store that cannot be used is all that is said, before any worker's process is started."""
    (tmp_path / "edge.yaml").write_text(RULES % 2)
    started = tmp_path / "started"
    (tmp_path / "sitecustomize.py").write_text(f"open({str(started)!r}, 'a').write('1')")
    command = [COMMAND, "serve", "--rules", str(tmp_path / "edge.yaml"), "--workers", "2", *flags]
    command += ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]

    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        timeout=PATIENCE_SECONDS,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ratelimit: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert started.read_text() == "1"


@pytest.mark.parametrize("flag", ["--grpc", "--http"])
@pytest.mark.parametrize("transport", ["h2", "grpcio"])
def test_port_that_is_taken(
    own_redis: RedisServer, tmp_path: Path, flag: str, transport: str
) -> None:
    """A port that is taken is all that is said, before any worker serves; nothing is left."""
    (tmp_path / "edge.yaml").write_text(RULES % 2)
    taken = f"127.0.0.1:{own_redis.port}"
    command = [COMMAND, "serve", "--rules", str(tmp_path), "--store", own_redis.url]
    command += ["--transport", transport]
    for each in ("--grpc", "--http"):
        command += [each, taken if each == flag else "127.0.0.1:0"]

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )

    kind = {"--grpc": "gRPC", "--http": "HTTP"}[flag]
    assert done.returncode == 2
    assert done.stderr == (
        f"ratelimit: cannot open the {kind} port {taken}: Address already in use; "
        f"choose another with {flag} HOST:PORT\n"
    )


def test_unix_socket_that_is_taken(start: Start, own_redis: RedisServer, tmp_path: Path) -> None:
    """A second service on a Unix socket ends, and the first one keeps it."""
    address = f"unix:{tmp_path / 'grpc.sock'}"
    flags = ["--store", own_redis.url, "--workers", "1", "--grpc", address]
    start(*flags)
    command = [COMMAND, "serve", "--rules", str(tmp_path / "rules"), "--http", "127.0.0.1:0"]

    done = subprocess.run(
        [*command, *flags], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )

    assert done.returncode == 2
    assert done.stderr.startswith(f"ratelimit: cannot open the gRPC port {address}: ")
    assert done.stderr.count("\n") == 1
    with Client(address) as client:
        assert ask(client) is Code.OK


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR2])
def test_signals_to_all_while_workers_start(
    own_redis: RedisServer, tmp_path: Path, number: signal.Signals
) -> None:
    """What a terminal or a script sends to all processes is the supervisor's, from the start."""
    (tmp_path / "edge.yaml").write_text(RULES % 2)
    command = [COMMAND, "serve", "--rules", str(tmp_path / "edge.yaml"), "--store", own_redis.url]
    command += ["--workers", "2", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    service = Process(["setsid", *command], tmp_path / "log", family=True)
    service.spawn()
    wait_until(lambda: len(descendants(service.child.pid)) == 2, "the workers' processes")

    os.killpg(service.child.pid, number)

    if number != signal.SIGINT:
        service.signal(signal.SIGTERM)
    assert service.wait() == 0
    assert "Traceback" not in service.log
    assert "ended before" not in service.log


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--store", "redis://nowhere:1/0"], ""),
        (["--store", "redis://localhost:port/0"], "the store URL"),
        (["--rules", "/nowhere"], "there is no such file or directory"),
        (["--tls-cert", "/nowhere"], "TLS needs both"),
        (["--workers", "2"], "needs a --store in Redis"),
    ],
)
def test_check(tmp_path: Path, flags: list[str], message: str) -> None:
    """--check tells whether a service would start, without starting it."""
    (tmp_path / "edge.yaml").write_text(RULES % 2)
    command = [COMMAND, "serve", "--rules", str(tmp_path), "--check", *flags]

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )

    assert message in done.stderr
    assert (done.returncode, done.stdout) == ((2, "") if message else (0, "it would start\n"))


def test_open_files(own_redis: RedisServer, start: Start) -> None:
    """The service takes as many files as it may have, so its workers hold as many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1_000, hard), hard))
    try:
        service = start("--store", own_redis.url, "--workers", "1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    for pid in (service.pid, *pids(service)):
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (hard, hard)


def test_connections_per_peer(start: Start, own_redis: RedisServer) -> None:
    """The bound for one address holds over all workers, also over a restart."""
    bounded = ["--max-connections-per-peer", "3", "--grace", "100ms"]
    service = start("--store", own_redis.url, "--workers", "2", *bounded)

    def is_served() -> bool:
        sockets.append(greeted(service.grpc_port))
        try:
            return bool(sockets[-1].recv(9))
        except ConnectionError:
            return False

    sockets: list[socket.socket] = []
    assert [is_served() for _ in range(5)] == [True, True, True, False, False]
    sockets[0].close()
    wait_until(lambda: sum(connections(service)) == 2, "one to go")
    assert [is_served() for _ in range(2)] == [True, False]

    name = 'ratelimit_refused_connections_total{reason="max_connections_per_peer"}'
    assert metric(service, name) == 3
    restarts = processes(service)["restarts"]
    service.signal(signal.SIGUSR2)
    wait_until(lambda: processes(service)["restarts"] == restarts + 1, "the restart")
    wait_until(lambda: sum(connections(service)) == 0, "the old workers to end")
    assert [is_served() for _ in range(4)] == [True, True, True, False]
    for each in sockets:
        each.close()


def test_exact_over_workers(start: Start, own_redis: RedisServer, tmp_path: Path) -> None:
    """Of many concurrent calls to two workers, restarted meanwhile, exactly the limit passes."""
    (tmp_path / "rules" / "edge.yaml").write_text(RULES % 400)
    service = start("--store", own_redis.url, "--workers", "2")

    def ask_many(_: int) -> list[Code]:
        with Caller(service.address) as client:
            return [ask(client) for _ in range(100)]

    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(ask_many, range(8))
        service.signal(signal.SIGUSR2)
        codes = [code for each in answers for code in each]

    assert (codes.count(Code.OK), codes.count(Code.OVER_LIMIT)) == (400, 400)


def test_logs_name_the_worker(start: Start, own_redis: RedisServer) -> None:
    """A line of a worker's log has its number, as JSON too; faults are said once for all."""
    service = start("--store", own_redis.url, "--workers", "2", "--log-format", "json")

    own_redis.kill()

    wait_until(lambda: "degraded" in service.get("/healthcheck").text, "the fault to be seen")
    lines = [json.loads(line) for line in service.log.splitlines() if line.startswith("{")]
    assert {line["worker"] for line in lines if "connected to Redis" in line["@message"]} == {
        "1",
        "2",
    }
    assert sum("degraded: store" in line["@message"] for line in lines) == 1


def test_python_of_the_working_directory(
    own_redis: RedisServer, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in the directory where the service is started is never imported."""
    (tmp_path / "ratelimit_service").mkdir()
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)

    service = start("--store", own_redis.url, "--workers", "1")

    assert service.decide("edge", user="bob").status == 200
    assert "not this one" not in service.log
