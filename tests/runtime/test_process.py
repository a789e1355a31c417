"""The life of the process: start, reload, faults of its store, drain."""

from __future__ import annotations

import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ratelimit_service.cli.service_client import Client
from ratelimit_service.errors import TransportError
from ratelimit_service.model import Code, Request
from tests.http_client import http
from tests.runtime import callers
from tests.runtime.conftest import RULES, Start
from tests.servers.process import Process, free_port, wait_until
from tests.servers.redis import RedisServer
from tests.servers.service import COMMAND
from tests.service.asking import descriptor

REQUEST = Request("edge", (descriptor("user=bob"),))


def ask(address: str, times: int, request: Request = REQUEST) -> list[Code]:
    with Client(address) as client:
        return [callers.ask(client, request) for _ in range(times)]


def test_start_says_what_is_served(start: Start) -> None:
    """The start names ports, store and domains, and, alone on a line, a command to try."""
    service = start()

    lines = service.log.splitlines()

    ports = f"gRPC on port {service.grpc_port} and HTTP on port {service.http_port}"
    assert any(ports in line for line in lines)
    assert "counters in memory" in lines
    assert any(line.endswith("domain edge") for line in lines)
    command = lines[-1]
    assert command.endswith(
        f"ratelimit hit --address localhost:{service.grpc_port} edge user=alice"
    )
    words = [COMMAND, *command.split()[1:], "--timeout", "60s"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:31]) == (0, "OK          edge user=alice  1 ")


def test_exact_over_two_processes(start: Start, own_redis: RedisServer, tmp_path: Path) -> None:
    """Of many concurrent calls to two services over one Redis exactly the limit passes."""
    (tmp_path / "rules" / "edge.yaml").write_text(RULES % 40)
    services = [start("--store", own_redis.url) for _ in range(2)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda turn: ask(services[turn % 2].address, 10), range(8)))

    assert sum(codes.count(Code.OK) for codes in answers) == 40
    assert sum(codes.count(Code.OVER_LIMIT) for codes in answers) == 40


def test_reload_on_change(start: Start, tmp_path: Path) -> None:
    """An edited file counts without a restart, and the counter goes on."""
    service = start()
    assert ask(service.address, 3) == [Code.OK, Code.OK, Code.OVER_LIMIT]

    (tmp_path / "rules" / "edge.yaml").write_text(RULES % 3)

    wait_until(lambda: "requests_per_unit=3" in service.get("/rlconfig").text, "the new rules")
    assert ask(service.address, 2) == [Code.OK, Code.OVER_LIMIT]


@pytest.mark.parametrize("workers", [False, True], ids=["alone", "workers"])
def test_reload_is_logged(
    start: Start, own_redis: RedisServer, tmp_path: Path, workers: bool
) -> None:
    """A reload is one line with what it has changed in meaning; libraries log nothing."""
    flags = ["--store", own_redis.url, "--workers", "2"] if workers else []
    service = start(*flags, "--log-level", "debug")
    directory = tmp_path / "rules"

    (directory / "more.yaml").write_text(
        "domain: more\ndescriptors:\n"
        "  - {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n"
        "  - {key: b, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: c}]}}\n"
    )
    wait_until(lambda: "rules reloaded" in service.log, "the first reload")
    (directory / "more.yaml").unlink()
    wait_until(lambda: "has vanished" in service.log, "the missing file")
    service.signal(signal.SIGHUP)  # so that its rules go as well
    wait_until(lambda: "2 removed" in service.log, "the second reload")
    (directory / "edge.yaml").write_text(RULES % 5)
    wait_until(lambda: "1 changed" in service.log, "the third reload")
    ask(service.address, 1)
    wait_until(lambda: "decided OK" in service.log, "the decision")

    log = service.log
    logged = re.findall(r"INFO rules reloaded: (.*), revision (\w{8})\n", log)
    assert [each for each, _ in logged] == [
        "3 rules in 2 domains, 2 added, 1 problem",
        "1 rule in 1 domain, 2 removed",
        "1 rule in 1 domain, 1 changed (edge: user 2 → 5 per year)",
    ]
    assert len({revision for _, revision in logged}) == 3
    assert f'ratelimit_rules_info{{revision="{logged[-1][1]}"}} 1.0' in service.get("/metrics").text
    assert "edge: user=bob OK, 4 of 5 left" in log
    assert not re.search("changes? detected|Decod|Adding|hpack|rust", log)


def test_reload_on_sighup(start: Start, tmp_path: Path) -> None:
    """SIGHUP reads the rules again, and ends nothing."""
    service = start()
    (tmp_path / "rules" / "edge.yaml").write_text(RULES % 5)

    service.signal(signal.SIGHUP)

    wait_until(lambda: "requests_per_unit=5" in service.get("/rlconfig").text, "the new rules")
    assert "SIGHUP" in service.log


def test_bad_file_keeps_the_last_good(start: Start, tmp_path: Path) -> None:
    """A file that turns bad keeps its rules; health, log and metrics say so until it is mended."""
    service = start()
    path = tmp_path / "rules" / "edge.yaml"

    path.write_text("domain: edge\ndescriptors: [{kye: user}]")

    wait_until(lambda: "degraded" in service.get("/healthcheck").text, "the fault to be seen")
    assert ask(service.address, 3) == [Code.OK, Code.OK, Code.OVER_LIMIT]
    assert "edge.yaml:2:16: 'kye' is no key" in service.log.replace(f"{tmp_path}/rules/", "")
    assert 'ratelimit_rule_loads_total{result="error"} 1.0' in service.get("/metrics").text
    path.write_text(RULES % 2)
    wait_until(lambda: service.get("/healthcheck").text == "OK", "the fault to be over")


def test_redis_away_at_start(start: Start, own_redis: RedisServer) -> None:
    """The service starts without its Redis, answers by policy, and recovers by itself."""
    own_redis.kill()
    service = start("--store", own_redis.url, "--failure-policy", "closed")

    assert ask(service.address, 1) == [Code.OVER_LIMIT]

    health = service.get("/healthcheck")
    assert (health.status, health.text.splitlines()[0]) == (200, "degraded")
    assert service.log.count("degraded: store") == 1
    own_redis.start()
    wait_until(lambda: service.get("/healthcheck").text == "OK", "Redis to be used again")
    assert ask(service.address, 3) == [Code.OK, Code.OK, Code.OVER_LIMIT]


def test_redis_hung_at_start(start: Start, own_redis: RedisServer) -> None:
    """A Redis that does not answer holds the start up for a bounded time only."""
    own_redis.stop()

    service = start("--store", own_redis.url)

    assert ask(service.address, 3) == [Code.OK] * 3
    assert "does not answer" in service.get("/healthcheck").text
    own_redis.cont()
    wait_until(lambda: service.get("/healthcheck").text == "OK", "Redis to be used")


def test_reload_under_traffic(start: Start, tmp_path: Path) -> None:
    """Reloads lose no call and no count: with 200 calls and 50 allowed, 50 pass."""
    path = tmp_path / "rules" / "edge.yaml"
    path.write_text(RULES % 50)
    service = start()

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask, service.address, 50) for _ in range(4)]
        for turn in range(10):
            path.write_text(RULES % 50 + f"# {turn}\n")
            service.signal(signal.SIGHUP)

    codes = [code for answer in answers for code in answer.result()]
    assert codes.count(Code.OK) == 50
    # Signals that come together are one, so only the last state can be waited for.
    path.write_text(RULES % 51)
    wait_until(lambda: "requests_per_unit=51" in service.get("/rlconfig").text, "the last reload")
    assert ask(service.address, 2) == [Code.OK, Code.OVER_LIMIT]


def test_hung_redis_and_policy_error(start: Start, own_redis: RedisServer) -> None:
    """With the policy `error` a hung Redis makes calls UNAVAILABLE, and /json 503."""
    service = start(
        "--store", own_redis.url, "--failure-policy", "error", "--store-timeout", "10ms"
    )
    own_redis.stop()

    with pytest.raises(TransportError, match="UNAVAILABLE"):
        ask(service.address, 1)

    assert service.decide("edge", user="bob").status == 503
    own_redis.cont()


def test_drains_on_sigterm(start: Start, own_redis: RedisServer) -> None:
    """SIGTERM lets a call in flight finish, then ends with exit code 0."""
    service = start("--store", own_redis.url, "--store-timeout", "20s")
    ask(service.address, 1)
    own_redis.stop()
    with ThreadPoolExecutor() as pool:
        in_flight = pool.submit(ask, service.address, 1)
        wait_until(own_redis.has_input, "the call to wait for Redis")

        service.signal(signal.SIGTERM)

        wait_until(lambda: "draining" in service.log, "the service to drain")
        own_redis.cont()
        assert in_flight.result() == [Code.OK]
    assert service.wait() == 0


def test_grace_is_bounded(start: Start, own_redis: RedisServer) -> None:
    """A call that does not finish holds the end up for --grace and no longer."""
    service = start("--store", own_redis.url, "--store-timeout", "1h", "--grace", "100ms")
    ask(service.address, 1)
    own_redis.stop()
    with ThreadPoolExecutor() as pool:
        in_flight = pool.submit(ask, service.address, 1)
        wait_until(own_redis.has_input, "the call to wait for Redis")

        service.signal(signal.SIGTERM)

        assert service.wait() == 0
        assert isinstance(in_flight.exception(), TransportError)
    own_redis.cont()


def test_second_signal_forces(start: Start, own_redis: RedisServer) -> None:
    """A second signal ends a drain at once, with exit code 1."""
    service = start("--store", own_redis.url, "--store-timeout", "1h", "--grace", "1h")
    ask(service.address, 1)
    own_redis.stop()
    with ThreadPoolExecutor() as pool:
        in_flight = pool.submit(ask, service.address, 1)
        wait_until(own_redis.has_input, "the call to wait for Redis")
        service.signal(signal.SIGTERM)
        wait_until(lambda: "draining" in service.log, "the service to drain")

        def ended() -> bool:
            service.signal(signal.SIGTERM)
            return service.ended

        wait_until(ended, "the service to end at once")

        assert service.wait() == 1
        assert isinstance(in_flight.exception(), TransportError)
    own_redis.cont()


def test_signals_of_one_moment_are_one(start: Start) -> None:
    """What is asked to end twice in one moment, as by timeout(1), drains and ends with 0."""
    service = start()

    service.signal(signal.SIGSTOP)  # so that they come in one moment, however busy the machine
    service.signal(signal.SIGTERM)
    service.signal(signal.SIGINT)
    service.signal(signal.SIGCONT)

    assert service.wait() == 0


def test_stands_in_for_the_reference(tmp_path: Path, own_redis: RedisServer) -> None:
    """A bare `ratelimit` reads the reference's environment names."""
    rules = tmp_path / "data" / "ratelimit" / "config"
    rules.mkdir(parents=True)
    (rules / "edge.yaml").write_text(RULES % 2)
    grpc_port, http_port = free_port(), free_port()
    environment = {
        "RUNTIME_ROOT": str(tmp_path / "data"),
        "RUNTIME_SUBDIRECTORY": "ratelimit",
        "HOST": "127.0.0.1",
        "PORT": str(http_port),
        "GRPC_HOST": "127.0.0.1",
        "GRPC_PORT": str(grpc_port),
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": f"127.0.0.1:{own_redis.port}",
        "LOG_FORMAT": "json",
        "RATELIMIT_STORE_TIMEOUT": "5s",  # it has no such name, and this machine may be busy
    }
    service = Process([COMMAND], tmp_path / "log", environment)
    service.spawn()
    service.wait_ready(lambda: answers(http_port))

    assert ask(f"127.0.0.1:{grpc_port}", 3) == [Code.OK, Code.OK, Code.OVER_LIMIT]
    assert f"counters in redis://127.0.0.1:{own_redis.port}" in service.log


def answers(port: int) -> bool:
    try:
        return http(f"http://127.0.0.1:{port}/healthcheck").status == 200
    except OSError:
        return False
