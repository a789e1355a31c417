"""The questions that come first when something is limited, each answered by one command.

Two services share a Redis, and one of them restarts in between: no answer may depend on who is
asked, or on who has decided.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratelimit_service.text.display import in_seconds
from tests.http_client import http
from tests.servers.process import wait_until
from tests.servers.redis import RedisServer, SharedRedis
from tests.servers.service import COMMAND, ServiceProcess

RULES = """
domain: api
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
"""
ALLOWED, DENIED = 200, 429


class Scene:
    """Two services on one Redis, and the command line."""

    def __init__(self, directory: Path, redis_server: SharedRedis) -> None:
        self._rules = directory / "api.yaml"
        self._rules.write_text(RULES)
        self._directory = directory
        self._store = redis_server.url
        self.log = directory / "decisions.jsonl"
        self.running: list[ServiceProcess] = []

    def service(self, *flags: str) -> ServiceProcess:
        service = ServiceProcess(
            self._directory, "--rules", str(self._rules), "--store", self._store, *flags
        )
        self.running.append(service)
        service.start()
        return service

    def run(self, *words: str) -> str:
        """What a command prints; it must end well."""
        done = subprocess.run(
            [COMMAND, *words], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def scene(tmp_path: Path, redis_server: SharedRedis) -> Iterator[Scene]:
    redis_server.flush()
    yield from _running(Scene(tmp_path, redis_server))


@pytest.fixture
def own_scene(tmp_path: Path, own_redis: RedisServer) -> Iterator[Scene]:
    """One whose Redis may be killed."""
    yield from _running(Scene(tmp_path, own_redis))


def _running(scene: Scene) -> Iterator[Scene]:
    yield scene
    for each in scene.running:
        each.kill()


def test_why_who_let_through_and_keep_out(scene: Scene) -> None:
    """Why a caller was denied, who is limited now, how to let one through: all by command.

    So is how to keep one out until a moment, of which it and whoever asks later is told.
    """
    rotated = ["--decision-log-rotate", "8760h"]  # once a year: midnight may fall into this test
    first = scene.service("--decision-log", str(scene.log), *rotated)
    second = scene.service()
    assert [first.decide("api", user="bob").status for _ in range(2)] == [ALLOWED] * 2
    assert second.decide("api", user="bob").status == DENIED
    assert first.decide("api", user="bob").status == DENIED

    wait_until(lambda: scene.log.exists() and '"OVER_LIMIT"' in scene.log.read_text(), "a record")
    said = scene.run("why", "api", "user=bob", "--log", str(scene.log))
    assert "denied at" in said
    assert "2 a year" in said or "2 per year" in said

    def listed(service: ServiceProcess) -> str:
        return scene.run("top", "--once", "--admin", f"127.0.0.1:{service.admin_port}")

    wait_until(lambda: "user=bob" in listed(second), "the caller")

    admin = f"127.0.0.1:{second.admin_port}"
    scene.run("exempt", "api", "user=bob", "--for", "1h", "--reason", "test", "--admin", admin)
    wait_until(lambda: first.decide("api", user="bob").status == ALLOWED, "the exemption")

    until = scene.run(
        "ban", "api", "user=eve", "--for", "1h", "--reason", "abuse", "--admin", admin
    )
    assert "until" in until

    second.kill()
    third = scene.service()
    wait_until(lambda: third.decide("api", user="bob").status == ALLOWED, "the exemption")
    assert third.decide("api", 3, user="joe").status == DENIED
    admin = f"127.0.0.1:{third.admin_port}"
    exempt, ban = json.loads(scene.run("overrides", "--json", "--admin", admin))["overrides"]
    assert (exempt["kind"], exempt["reason"]) == ("exempt", "test")
    scene.run("overrides", "remove", exempt["id"], "--admin", admin)
    wait_until(lambda: first.decide("api", user="bob").status == DENIED, "the limit again")
    for service in (first, third):
        answer = service.decide("api", user="eve")
        assert answer.status == DENIED
        assert 3_000 < int(answer.headers["retry-after"]) <= 3_600
    wait_until(lambda: ban["id"] in scene.log.read_text(), "a record of the ban")
    said = scene.run("why", "api", "user=eve", "--log", str(scene.log))
    assert f"by override (ban {ban['id']} until {in_seconds(ban['until'])} by local: abuse)" in said


def test_why_while_redis_is_away(own_scene: Scene, own_redis: RedisServer) -> None:
    """While Redis is away it is told why a caller is denied all the same, and what is degraded."""
    service = own_scene.service("--failure-policy", "closed")
    admin = f"127.0.0.1:{service.admin_port}"
    http(f"http://{admin}/denials")  # from now on they are noted
    own_redis.kill()
    wait_until(lambda: service.decide("api", user="bob").status == DENIED, "a denial")

    said = own_scene.run("why", "api", "user=bob", "--admin", admin)
    status = [COMMAND, "status", "--admin", admin]
    told = subprocess.run(status, capture_output=True, text=True, check=False, timeout=60)

    assert " UTC by `user` (" in said
    assert "the failure policy decided, because the store gave no answer in time" in said
    assert "\nnow: the store does not say how the counters stand" in said
    assert told.returncode == 1
    assert told.stdout.startswith("health     serving, DEGRADED\n           store: ")
    assert "\napi user=bob: denied at " in told.stdout
