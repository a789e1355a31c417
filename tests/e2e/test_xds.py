"""The service with rules from a management server that is not ours: Envoy Gateway's library."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from ratelimit_service.cli.service_client import Client
from ratelimit_service.model import Code, Descriptor, Entry, Request
from tests.servers.control_plane import Management
from tests.servers.management import config
from tests.servers.process import wait_until
from tests.servers.redis import SharedRedis
from tests.servers.service import COMMAND, ServiceProcess

MANY = 10_000


@pytest.fixture
def management(tmp_path: Path) -> Iterator[Management]:
    management = Management(tmp_path)
    yield management
    management.stop()


@pytest.fixture
def services(tmp_path: Path) -> Iterator[list[ServiceProcess]]:
    started: list[ServiceProcess] = []
    yield started
    for each in started:
        each.kill()


def launch(
    services: list[ServiceProcess], tmp_path: Path, management: Management, *flags: str, **more: str
) -> ServiceProcess:
    """Starts the service, and waits for nothing."""
    service = ServiceProcess(tmp_path, *flags, environment={**management.environment, **more})
    services.append(service)
    service.spawn()
    return service


def code(service: ServiceProcess, domain: str, key: str) -> int:
    return service.decide(domain, **{key: "x"}).status


def answers(service: ServiceProcess) -> bool:
    try:
        service.get("/healthcheck")
    except OSError:
        return False
    return True


def test_from_the_first_snapshot_on(
    management: Management, services: list[ServiceProcess], tmp_path: Path
) -> None:
    """Not healthy before the first snapshot; then each takes effect, and names where it is from."""
    management.start()
    service = launch(services, tmp_path, management)
    wait_until(lambda: answers(service), "the HTTP port")
    wait_until(lambda: "open envoy-ratelimit" in management.heard, "the client")
    assert service.get("/healthcheck").status == 500
    assert "make a decision" not in service.log

    management.serve("1", config("ns/gw/http", "user"), config("other", "user"))
    wait_until(lambda: "make a decision" in service.log, "the service")
    assert service.get("/healthcheck").status == 200
    place = f"xds://localhost:{management.port}"
    assert f"at {place}/ns/gw/http@1" in service.get("/rlconfig").text
    assert f"{place} has sent version 1: resources 2" in service.log
    assert [code(service, "ns/gw/http", "user") for _ in range(2)] == [200, 429]

    # A bad resource harms its domain alone, and is named.
    management.serve("2", config("ns/gw/http", ""), config("other", "path"))
    wait_until(lambda: any(each.startswith("nack") for each in management.heard), "a NACK")
    assert f"{place}/ns/gw/http@2: key is missing or empty" in "\n".join(management.heard)
    assert code(service, "ns/gw/http", "user") == 429
    assert [code(service, "other", "path") for _ in range(2)] == [200, 429]

    # It comes again with the same counts, from a server that counts its versions anew.
    management.stop()
    management.start()
    management.serve("1", config("ns/gw/http", "user", requests=2), config("other", "path"))
    management.await_ack("1")
    assert [code(service, "ns/gw/http", "user") for _ in range(2)] == [200, 429]
    assert code(service, "other", "path") == 429

    management.serve("2")
    management.await_ack("2")
    assert [code(service, "other", "path") for _ in range(3)] == [200] * 3
    assert service.get("/rlconfig").text == ""
    assert service.get("/healthcheck").status == 200


def test_denials_name_the_resource(
    management: Management, services: list[ServiceProcess], tmp_path: Path
) -> None:
    """The decision log says from which resource the rule came, and `why` repeats it."""
    management.start()
    path = tmp_path / "decisions.jsonl"
    service = launch(services, tmp_path, management, "--decision-log", str(path))
    management.serve("1", config("ns/gw/http", "user"))
    wait_until(lambda: "make a decision" in service.log, "the service")
    assert [code(service, "ns/gw/http", "user") for _ in range(2)] == [200, 429]
    wait_until(lambda: path.exists() and path.read_text().count("\n") == 2, "both lines")

    resource = f"xds://localhost:{management.port}/ns/gw/http@1"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["code"], line["source"]) for line in lines] == [
        ("OK", resource),
        ("OVER_LIMIT", resource),
    ]
    why = [COMMAND, "why", "ns/gw/http", "user=x", "--log", str(path)]
    said = subprocess.run(why, capture_output=True, text=True, check=True).stdout
    assert f"by `user` ({resource}): 1 a year" in said


def test_end_before_the_first_snapshot(
    management: Management, services: list[ServiceProcess], tmp_path: Path
) -> None:
    """A service that waits for rules ends when it is told to."""
    service = launch(services, tmp_path, management)
    wait_until(lambda: answers(service), "the HTTP port")

    service.signal(signal.SIGTERM)

    assert service.wait() == 0
    assert "Traceback" not in service.log


def test_start_without_rules(
    management: Management, services: list[ServiceProcess], tmp_path: Path
) -> None:
    """It serves at once if that is asked for: the failure policy decides, and health says why."""
    force = {"FORCE_START_WITHOUT_INITIAL_CONFIG": "true"}
    service = launch(services, tmp_path, management, "--failure-policy", "closed", **force)
    wait_until(lambda: "ratelimit serves" in service.log, "the service")

    assert service.get("/healthcheck").status == 200
    assert "no rules have come from xds://" in service.get("/healthcheck").text
    assert code(service, "edge", "user") == 429
    management.start()
    management.serve("1", config("edge", "user"))
    management.await_ack("1")
    assert [code(service, "edge", "user") for _ in range(2)] == [200, 429]
    assert "no rules" not in service.get("/healthcheck").text


def test_many_snapshots(
    management: Management,
    services: list[ServiceProcess],
    tmp_path: Path,
    redis_server: SharedRedis,
) -> None:
    """Ten thousand descriptors and a hundred snapshots in a row lose no call and no count."""
    redis.Redis(port=redis_server.port).flushall()
    store = ["--store", f"redis://127.0.0.1:{redis_server.port}/0", "--workers", "1"]
    keys = [f"key{number}" for number in range(MANY)]
    management.start()
    management.serve("0", config("edge", "user", requests=1_000_000), config("large", *keys))
    service = launch(services, tmp_path, management, *store)
    wait_until(lambda: "make a decision" in service.log, "the service")
    request = Request("edge", (Descriptor((Entry("user", "x"),)),))
    stop = threading.Event()
    remaining: list[int] = []
    failed: list[object] = []

    def call() -> None:
        with Client(service.address) as client:
            while not stop.is_set():
                try:
                    decision = client.should_rate_limit(request, 60_000_000)
                except Exception as error:
                    failed.append(error)
                    return
                if decision.code is not Code.OK:
                    failed.append(decision)
                remaining.append(decision.statuses[0].remaining)

    calling = threading.Thread(target=call)
    calling.start()
    for number in range(1, 101):
        management.serve(str(number), config("edge", "user", f"k{number}", requests=1_000_000))
    management.await_ack("100")
    wait_until(lambda: "k100" in service.get("/rlconfig").text, "the last snapshot")
    stop.set()
    calling.join()

    assert failed == []
    assert remaining == [1_000_000 - number for number in range(1, len(remaining) + 1)]
    assert len([each for each in management.heard if each.startswith("ack")]) <= 101
    assert not any(each.startswith("nack") for each in management.heard)


def test_restart_while_the_server_is_away(
    management: Management,
    services: list[ServiceProcess],
    tmp_path: Path,
    redis_server: SharedRedis,
) -> None:
    """A rolling restart hands over what was last accepted, also what no server could send again."""
    redis.Redis(port=redis_server.port).flushall()
    store = ["--store", f"redis://127.0.0.1:{redis_server.port}/0", "--workers", "1"]
    management.start()
    management.serve("1", config("edge", "user", requests=3))
    service = launch(services, tmp_path, management, *store)
    wait_until(lambda: "make a decision" in service.log, "the service")
    management.await_ack("1")
    assert code(service, "edge", "user") == 200
    management.stop()

    service.signal(signal.SIGUSR2)
    wait_until(lambda: "restarted: version" in service.log, "the restart")

    assert [code(service, "edge", "user") for _ in range(3)] == [200, 200, 429]
    assert "edge@1" in service.get("/rlconfig").text
    told = json.loads(service.get("/processes").text)
    children = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()
    states = [
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in children
    ]
    assert told["pid"] == service.pid
    assert "Z" not in states
    management.start()
    management.serve("1", config("edge", "path"))
    management.await_ack("1")
    wait_until(lambda: "edge@1" in service.get("/rlconfig").text, "the rules")
    wait_until(lambda: code(service, "edge", "user") == 200, "the new rules in the worker")


def test_explain(management: Management, tmp_path: Path) -> None:
    """`ratelimit explain` asks the server, and says server, resource and version of a rule."""
    management.start()
    management.serve("7", config("edge", "user"))
    place = f"xds://localhost:{management.port}"
    words = ["explain", "--rules", place, "edge", "user=x"]

    done = subprocess.run(
        [COMMAND, *words],
        env=management.environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert f"rule user at {place}/edge@7: 1 per year" in done.stdout, done.stderr
