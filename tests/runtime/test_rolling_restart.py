"""Restarts: all workers are replaced under load, also by another version, and no call fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import ratelimit_service
from ratelimit_service import __version__
from ratelimit_service.cli.service_client import Client
from ratelimit_service.errors import TransportError
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import PREFACE
from ratelimit_service.model import Code
from tests.http_client import http
from tests.runtime.callers import Caller, ask
from tests.runtime.conftest import RULES, Start
from tests.runtime.seen import metric, pids, processes, restarts, runs
from tests.servers.process import (
    Process,
    descendants,
    free_port,
    listens,
    wait_until,
)
from tests.servers.redis import RedisServer
from tests.servers.service import COMMAND, ServiceProcess
from tests.waiting import PATIENCE_SECONDS


def test_restart_beside_a_worker_that_hears_nothing(two: ServiceProcess, tmp_path: Path) -> None:
    """A worker that takes no rules any more does not hold a restart up: another takes its place."""
    first, second = pids(two)
    os.kill(first, signal.SIGSTOP)
    limit = "rate_limit: {unit: year, requests_per_unit: 1}"
    name = "v" * 500
    lines = [f"  - {{key: k, value: {name}{number}, {limit}}}" for number in range(1_500)]
    (tmp_path / "rules" / "wide.yaml").write_text("\n".join(["domain: w", "descriptors:", *lines]))
    wait_until(lambda: "rules reloaded: 1501 rules" in two.log, "the new rules")

    os.kill(two.pid, signal.SIGUSR2)

    wait_until(lambda: restarts(two) == 1, "the restart")
    assert not {first, second} & set(pids(two))
    assert two.decide("w", k=f"{name}7").status == 200


LINGERING = ["--otel-metrics", "--otel-endpoint", "http://127.0.0.1:9"]
"""With these flags there are two seconds between the last step of a restart and the next program:
nobody listens to what the former one has to say in the end."""


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


class Load:
    """Calls again and again over a few connections, until it is left.

    It leaves the machine some time: without a pause it would take what new workers start in.
    """

    def __init__(self, service: ServiceProcess) -> None:
        self._address = service.address
        self._over = threading.Event()
        self.calls = 0
        self.failures: list[str] = []

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._ask) for _ in range(4)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        with Caller(self._address) as client:
            while not self._over.wait(0.005):
                try:
                    ask(client)
                except TransportError as error:
                    self.failures.append(str(error))
                self.calls += 1


class Reader:
    """Reads pages again and again, until it is left."""

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
        while not self._over.wait(0.05):
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
    answer = json.loads(two.admin("/processes").text)["deciding"]
    assert sorted(each["pid"] for each in answer) == sorted(pids(two))
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
    ("expected", "times"), [("asked to restart", 1), ("restarting\n", 1), (" serves\n", 3)]
)
def test_signals_while_restarting(
    start: Start, own_redis: RedisServer, expected: str, times: int
) -> None:
    """A service that is told to end at any moment of a restart ends, with all its workers."""
    service = start("--store", own_redis.url, "--workers", "2")
    before = pids(service)
    service.signal(signal.SIGUSR2)
    wait_until(lambda: service.log.count(expected) >= times, "that moment of the restart")

    service.signal(signal.SIGHUP)
    service.signal(signal.SIGTERM)

    assert service.wait() == 0
    assert not any(map(runs, before))
    assert not listens(service.grpc_port)


def test_end_while_a_restart_is_checked(start: Start, own_redis: RedisServer) -> None:
    """A service that is told to end does not wait until the next program has been tried."""
    service = start("--store", own_redis.url, "--workers", "2")
    service.signal(signal.SIGUSR2)

    def checks() -> list[int]:
        return [pid for pid in descendants(service.pid) if b"--check" in command_of(pid)]

    wait_until(checks, "the check")
    (check,) = checks()
    os.kill(check, signal.SIGSTOP)

    service.signal(signal.SIGTERM)

    assert service.wait() == 0
    assert runs(check)
    os.kill(check, signal.SIGKILL)


def test_program_that_goes_away_in_the_last_moment(tmp_path: Path, own_redis: RedisServer) -> None:
    """If the next program is gone when all is handed over, the service says so and ends."""
    python = tmp_path / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "edge.yaml").write_text(RULES % 2)
    packages = [str(Path(ratelimit_service.__file__).parents[1]), sysconfig.get_path("purelib")]
    command = [str(python), "-m", "ratelimit_service", "serve", "--store", own_redis.url]
    command += ["--rules", str(tmp_path / "edge.yaml"), "--workers", "2", *LINGERING]
    command += ["--grpc", f"127.0.0.1:{free_port()}", "--http", f"127.0.0.1:{free_port()}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(packages)}
    service = Process(command, tmp_path / "log", environment, family=True)
    service.spawn()
    wait_until(lambda: "make a decision" in service.log, "the service")
    workers = descendants(service.child.pid)

    service.signal(signal.SIGUSR2)
    wait_until(lambda: "INFO restarting\n" in service.log, "the handing over")
    python.unlink()

    assert service.wait() == 1
    assert f"not restarted, so the service ends: {python} cannot be started" in service.log
    assert "Traceback" not in service.log
    wait_until(lambda: not any(map(runs, workers)), "the workers' end")


@pytest.mark.parametrize("strict", [False, True], ids=["no file", "--strict-rules"])
def test_rules_that_go_bad_in_the_last_moment(
    start: Start, own_redis: RedisServer, tmp_path: Path, strict: bool
) -> None:
    """Workers go on with the rules that they have, until the next program can read others."""
    flags = [*LINGERING, "--strict-rules"] if strict else LINGERING
    service = start("--store", own_redis.url, "--workers", "2", *flags)
    file, good = tmp_path / "rules" / "edge.yaml", RULES % 2
    result = "workers go on with the rules that they have: "

    service.signal(signal.SIGUSR2)
    wait_until(lambda: "INFO restarting\n" in service.log, "that moment")
    if strict:
        file.write_text(good[:-9])
    else:
        file.unlink()
    wait_until(lambda: result in service.log, "the next program")

    with Client(service.address) as client:
        assert ask(client) is Code.OK
    file.write_text(good)
    wait_until(lambda: "restarted: version" in service.log, "the restart")
    with Client(service.address) as client:
        assert [ask(client), ask(client)] == [Code.OK, Code.OVER_LIMIT]


def test_end_while_rules_are_bad(start: Start, own_redis: RedisServer, tmp_path: Path) -> None:
    """A service that waits for rules to read in a restart ends when it is told to."""
    service = start("--store", own_redis.url, "--workers", "2", *LINGERING)
    file = tmp_path / "rules" / "edge.yaml"
    service.signal(signal.SIGUSR2)
    wait_until(lambda: "INFO restarting\n" in service.log, "that moment")
    file.unlink()
    wait_until(lambda: "rules that they have" in service.log, "the next program")

    service.signal(signal.SIGTERM)

    assert service.wait() == 0


def test_connections_in_the_moment_of_a_restart(start: Start, own_redis: RedisServer) -> None:
    """Who connects while the program is replaced is served and counted, also if a worker dies."""
    service = start("--store", own_redis.url, "--workers", "2", *LINGERING)
    first, _ = pids(service)
    before = set(descendants(service.pid))
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: set(descendants(service.pid)) - before, "another worker")
    for new in set(descendants(service.pid)) - before:
        os.kill(new, signal.SIGSTOP)
    service.signal(signal.SIGUSR2)
    wait_until(lambda: "INFO restarting\n" in service.log, "that moment")
    wait_until(lambda: not any(map(runs, set(descendants(service.pid)) - before)), "its end")

    with ExitStack() as open_ones:
        for _ in range(5):
            client = socket.create_connection(("127.0.0.1", service.grpc_port), PATIENCE_SECONDS)
            open_ones.enter_context(client)
            client.sendall(PREFACE + frames.settings({}))
            assert client.recv(1)

        def connections() -> int:
            try:
                return sum(worker["connections"] for worker in processes(service)["workers"])
            except OSError:
                return 0

        wait_until(lambda: connections() == 5, "all to be counted")


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
    """With counters in memory nothing is replaced: the service says why, and goes on."""
    service = start()

    refused = restart(service)
    service.signal(signal.SIGUSR2)

    assert refused.returncode == 2
    assert "does not restart: one worker with its counters in memory" in refused.stderr
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
    directory = tmp_path / "installed"
    package = Path(ratelimit_service.__file__).parent
    shutil.copytree(package, directory / "ratelimit_service")
    for library in package.parent.glob("*__mypyc.*.so"):
        shutil.copy(library, directory)
    (directory / "ratelimit_service-1.dist-info").mkdir()
    return directory


def install(directory: Path, version: str) -> None:
    metadata = f"Metadata-Version: 2.1\nName: ratelimit-service\nVersion: {version}\n"
    (directory / "ratelimit_service-1.dist-info" / "METADATA").write_text(metadata)


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
