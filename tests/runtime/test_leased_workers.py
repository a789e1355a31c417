"""Leased limits with two workers for real: what callers get, and what stays counted at the end."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import redis

from ratelimit_service.cli.inspect import standing
from ratelimit_service.model import Code
from tests.runtime.callers import ask, clients
from tests.runtime.conftest import RULES, Start
from tests.runtime.seen import metric
from tests.servers.redis import RedisServer
from tests.servers.service import ServiceProcess
from tests.stores.redis_store import COUNTERS


def leased(start: Start, own_redis: RedisServer, directory: Path, number: int) -> ServiceProcess:
    """Two workers with one leased limit, who have heard of each other."""
    rule = (RULES % number).replace("}}", ", sync: leased}}")
    (directory / "rules" / "edge.yaml").write_text(rule)
    return start("--store", own_redis.url, "--workers", "2")


def passed(service: ServiceProcess, times: int) -> int:
    """How many of so many calls pass, over four connections in turns."""
    with clients(service, 4) as found:
        codes = [ask(found[number % 4]) for number in range(times - 4)]
    return codes.count(Code.OK) + 4  # each has asked once already


def on_counter(own_redis: RedisServer) -> int:
    """How many hits lie on the only counter, a window of the clock."""
    with redis.Redis.from_url(own_redis.url) as client:
        (key,) = [name for name in client.keys(COUNTERS) if b"bob" in name]
        return int(client.get(key) or 0) & 0xFFFFFFFF


def test_two_workers_admit_one_limit(start: Start, own_redis: RedisServer, tmp_path: Path) -> None:
    """Whichever worker has a connection: all of them get the limit, and no hit more."""
    service = leased(start, own_redis, tmp_path, 500)

    assert passed(service, 1_200) == 500
    assert on_counter(own_redis) == 500
    assert metric(service, 'ratelimit_leased_hits_total{event="spent"}') > 0
    assert metric(service, 'ratelimit_leased_hits_total{event="lost"}') == 0


def test_a_service_that_stops_hands_back(
    start: Start, own_redis: RedisServer, tmp_path: Path
) -> None:
    """When all workers have ended, just what was admitted is counted.

    Until then `inspect` tells what the worker that was asked holds.
    """
    service = leased(start, own_redis, tmp_path, 100_000)
    assert passed(service, 400) == 400
    answer = json.loads(service.admin("/inspect?domain=edge&descriptor=user=bob").text)
    (counter,), (line,) = answer["counters"], standing(answer)
    assert f" ({counter['held_here']} of them held by the process that was asked), " in line
    assert counter["count"] >= 400 + counter["held_here"]

    service.signal(signal.SIGTERM)
    service.wait()

    assert on_counter(own_redis) == 400
