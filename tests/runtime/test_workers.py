"""Workers and their supervisor: how many there are, what they share, and how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from ratelimit_service.cli.service_client import Client
from ratelimit_service.errors import SettingsError
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import ACK, PREFACE, FrameType
from ratelimit_service.model import Code
from ratelimit_service.runtime.app import workers
from ratelimit_service.settings import Settings
from tests.runtime.callers import ask, clients
from tests.runtime.conftest import RULES, Start
from tests.runtime.seen import REDIS, metric, pids, processes, runs
from tests.servers.process import (
    listens,
    wait_until,
)
from tests.servers.redis import RedisServer
from tests.servers.service import ServiceProcess
from tests.waiting import PATIENCE_SECONDS


def connections(service: ServiceProcess) -> list[int]:
    return sorted(worker["connections"] for worker in processes(service)["workers"])


def test_one_worker_for_each_core() -> None:
    """With Redis there is a worker for each core that the process may run on, else one."""
    everything = os.sched_getaffinity(0)
    (one, *_) = everything

    assert workers(Settings()) == 1
    assert workers(Settings(workers=1)) == 1
    assert workers(Settings(store=REDIS)) == len(everything)
    assert workers(Settings(store=REDIS, workers=7)) == 7
    assert workers(Settings(store=REDIS, transport="grpcio")) == 1
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
    with clients(two, 4) as result:
        codes = [ask(client) for client in result for _ in range(5)]

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
    with clients(two, 2) as result:
        answer = pids(two)[0]

        os.kill(answer, signal.SIGTERM)

        wait_until(lambda: answer not in pids(two), "the worker to end")
        assert [ask(client) for client in result for _ in range(5)] == [Code.OVER_LIMIT] * 10
    wait_until(lambda: len(pids(two)) == 2, "another worker")
    assert f"(pid {answer}) was told to end" in two.log


def test_only_worker_that_is_told_to_end(start: Start, own_redis: RedisServer) -> None:
    """Where there is one worker, connections wait for its successor, and none is dropped."""
    service = start("--store", own_redis.url, "--workers", "1")
    (answer,) = pids(service)
    with ThreadPoolExecutor() as pool, clients(service, 1) as (client,):
        own_redis.stop()
        in_flight = pool.submit(ask, client)
        wait_until(own_redis.has_input, "the call to wait for Redis")
        os.kill(answer, signal.SIGTERM)
        wait_until(lambda: "was told to end" in service.log, "it to be seen")

        with socket.create_connection(("127.0.0.1", service.grpc_port), 30) as connection:
            assert connection.recv(100)

        own_redis.cont()
        assert in_flight.result() is Code.OK
    wait_until(lambda: answer not in pids(service), "it to end")
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
    (answer,) = pids(service)
    with Client(service.address) as client:
        ask(client)
        sharded.lose_shards()

        os.kill(answer, signal.SIGTERM)

        wait_until(lambda: sharded.failures() >= 3, "three attempts to start another")
        assert ask(client) is Code.OK
        with Client(service.address) as another:
            assert ask(another) is Code.OVER_LIMIT
        (shown,) = processes(service)["workers"]
        assert (shown["pid"], shown["state"]) == (answer, "leaving")
        sharded.find_shards()
        wait_until(lambda: answer not in pids(service), "the worker to end")
        assert ask(client) is Code.OVER_LIMIT
    assert metric(service, 'ratelimit_worker_ends_total{reason="replaced"}') == 1


def test_worker_that_is_told_to_end_twice(sharded: Sharded) -> None:
    """A second SIGTERM ends a worker without waiting for another."""
    (answer,) = pids(sharded.service)
    sharded.lose_shards()
    os.kill(answer, signal.SIGTERM)
    wait_until(lambda: sharded.failures() >= 1, "an attempt to start another")

    os.kill(answer, signal.SIGTERM)

    wait_until(lambda: not runs(answer), "the worker to end")
    sharded.find_shards()
    wait_until(lambda: sharded.service.get("/healthcheck").text == "OK", "another worker")


def test_supervisor_that_is_killed(start: Start, own_redis: RedisServer) -> None:
    """Workers do not outlive their supervisor: they drain, and the port is free at once."""
    service = start("--store", own_redis.url, "--workers", "2")
    left = pids(service)

    service.kill()

    wait_until(lambda: not any(map(runs, left)), "the workers to end")
    assert not listens(service.grpc_port)


def test_rules_reach_all_workers(two: ServiceProcess, tmp_path: Path) -> None:
    """Changed rules are read once, by the supervisor, and then hold in every worker."""
    with clients(two, 2) as result:
        (tmp_path / "rules" / "edge.yaml").write_text(RULES % 5)

        wait_until(lambda: "requests_per_unit=5" in two.get("/rlconfig").text, "the new rules")
        wait_until(lambda: ask(result[0]) is Code.OK, "the first worker to have them")
        wait_until(lambda: ask(result[1]) is Code.OK, "the second worker to have them")
    assert metric(two, 'ratelimit_rule_loads_total{result="success"}') == 2


def test_large_rules_reach_workers(start: Start, own_redis: RedisServer, tmp_path: Path) -> None:
    """Thousands of rules and several domains come to the workers as they were written."""
    lines = ["domain: wide", "descriptors:"]
    limit = "rate_limit: {unit: year, requests_per_unit: 1}"
    lines += [f"  - {{key: k, value: v{number}, {limit}}}" for number in range(3_000)]
    (tmp_path / "rules" / "wide.yaml").write_text("\n".join(lines))
    service = start("--store", own_redis.url, "--workers", "2")

    answers = [service.decide("wide", k="v2999").status for _ in range(2)]

    assert answers == [200, 429]
    assert service.decide("edge", user="bob").status == 200


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


def test_garbage_is_collected_in_steps(start: Start, tmp_path: Path) -> None:
    """The supervisor, too, has no collection of all objects: a long page makes very many."""
    answer = tmp_path / "told"
    (tmp_path / "sitecustomize.py").write_text(
        f"import atexit, gc, os\n"
        f"def tell(): open({str(answer)!r}, 'a').write(f'{{os.getpid()}} {{gc.isenabled()}}\\n')\n"
        "atexit.register(tell)\n"
    )
    service = start("--store", REDIS, "--workers", "2", PYTHONPATH=str(tmp_path))

    service.signal(signal.SIGTERM)
    service.wait()

    assert f"{service.pid} False" in answer.read_text().splitlines()
