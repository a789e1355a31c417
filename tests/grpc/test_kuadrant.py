"""Kuadrant's gateway, in Go and from their protocol: what it expects, and what it gains here."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.servers.kuadrant import OK, OVER_LIMIT, Gateway
from tests.servers.process import for_several_tests, wait_until
from tests.servers.redis import SharedRedis
from tests.servers.service import COMMAND, ServiceProcess

RULES = """
domain: llm
reservations: true
descriptors:
- key: user
  rate_limit: {unit: year, requests_per_unit: 1000}
- key: team
  rate_limit: {unit: year, requests_per_unit: 500}
- key: large
  rate_limit: {unit: year, requests_per_unit: 1000000}
- key: sliding
  rate_limit: {unit: year, requests_per_unit: 1000, algorithm: sliding_window}
- key: log
  rate_limit: {unit: year, requests_per_unit: 1000, algorithm: sliding_log}
- key: bucket
  rate_limit: {unit: year, requests_per_unit: 1000, algorithm: token_bucket}
"""


numbers = itertools.count()


class Served(NamedTuple):
    """A gateway, and another one: at another process where they can share counters."""

    gateway: Gateway
    other: Gateway
    service: ServiceProcess


@pytest.fixture(scope="module", params=["memory", "redis"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("served")
    rules = directory / "rules.yaml"
    rules.write_text(RULES)
    flags = ["--rules", str(rules)]
    if request.param == "redis":
        redis: SharedRedis = request.getfixturevalue("redis_server")
        redis.flush()
        flags += ["--store", redis.url]
    services = [ServiceProcess(directory, *flags) for _ in flags[2:] or ["alone"]]
    with for_several_tests():
        for each in services:
            each.start()
    gateway, other = Gateway(services[0].address, "llm"), Gateway(services[-1].address, "llm")
    yield Served(gateway, other, services[0])
    gateway.close()
    other.close()
    for each in services:
        each.kill()


@pytest.fixture
def gateway(served: Served) -> Gateway:
    return served.gateway


@pytest.fixture
def user() -> str:
    """A descriptor that no other test asks for."""
    return f"user={next(numbers)}"


def test_check_counts_nothing(gateway: Gateway, user: str) -> None:
    """CheckRateLimit asks whether its hits would fit; without a number, or with 0, whether one."""
    assert gateway.check(user, hitsAddend=1000) == OK
    assert gateway.check(user, hitsAddend=1001) == OVER_LIMIT
    assert gateway.check(user, hitsAddend=1000) == OK
    gateway.report(user, hitsAddend=1000)
    assert gateway.check(user) == OVER_LIMIT
    assert gateway.check(user, hitsAddend=0) == OVER_LIMIT


def test_report_counts_whatever_the_limit_says(gateway: Gateway, user: str) -> None:
    """Without a number, or with 0, it counts one."""
    gateway.report(user)
    gateway.report(user, hitsAddend=0)
    gateway.report(user, hitsAddend=7)
    assert gateway.room(user) == 991
    gateway.report(user, hitsAddend=5000)
    assert gateway.check(user) == OVER_LIMIT


def test_a_stream_holds_its_estimate_and_counts_what_it_used(gateway: Gateway, user: str) -> None:
    """Counted, held and asked for stay within the limit; a commit ends the hold."""
    held = gateway.reserve(800, user)

    assert gateway.room(user) == 200
    assert gateway.reserve(201, user) == ""
    assert gateway.commit(held, 650, user)
    assert gateway.room(user) == 350
    assert gateway.reserve(350, user)


def test_all_limits_hold_or_none(gateway: Gateway, user: str) -> None:
    """One id is for all counters of a request."""
    team = user.replace("user", "team")
    assert gateway.reserve(501, user, team) == ""
    assert (gateway.room(user), gateway.room(team)) == (1000, 500)

    held = gateway.reserve(500, user, team)

    assert (gateway.room(user), gateway.room(team)) == (500, 0)
    assert gateway.commit(held, 100, user, team)
    assert (gateway.room(user), gateway.room(team)) == (900, 400)


def test_an_amount_of_0_only_asks(gateway: Gateway, user: str) -> None:
    """It holds nothing, and is denied where nothing is left."""
    assert gateway.reserve(0, user)
    assert gateway.room(user) == 1000
    gateway.report(user, hitsAddend=1001)
    assert gateway.reserve(0, user) == ""


def test_a_gateway_that_fails_commits_0(gateway: Gateway, user: str) -> None:
    """What was held is free at once."""
    held = gateway.reserve(800, user)

    assert gateway.commit(held, 0, user)
    assert gateway.room(user) == 1000


def test_a_commit_without_an_id_is_a_report(gateway: Gateway, user: str) -> None:
    """So is one with an id that nobody has given."""
    assert not gateway.commit("", 10, user)
    assert not gateway.commit("unknown", 10, user)
    assert gateway.room(user) == 980


def test_a_hold_ends_at_its_ttl(gateway: Gateway, user: str) -> None:
    """It charges nothing then, and a late commit is a report."""
    held = gateway.reserve(800, user, ttl="0.2s")

    wait_until(lambda: gateway.room(user) == 1000, "the hold to end")
    assert not gateway.commit(held, 650, user)
    assert gateway.room(user) == 350


def test_a_commit_counts_once(gateway: Gateway, user: str) -> None:
    """Gained: sent again with the same id it counts nothing, also if it was late."""
    held, late = gateway.reserve(100, user), gateway.reserve(100, user, ttl="0.2s")
    wait_until(lambda: gateway.room(user) == 900, "the hold to end")

    for _ in range(3):
        gateway.commit(held, 70, user)
        gateway.commit(late, 30, user)

    assert gateway.room(user) == 900


def test_processes_share_what_is_held(served: Served, user: str) -> None:
    """Gained: one process admits by what another one holds, and commits it."""
    held = served.gateway.reserve(800, user)

    assert served.other.room(user) == 200
    assert served.other.reserve(201, user) == ""
    assert served.other.commit(held, 650, user)
    assert not served.gateway.commit(held, 650, user)
    assert served.gateway.room(user) == 350


def test_reserves_at_the_same_time_never_hold_too_much(served: Served, user: str) -> None:
    """Gained: of 60 that race for a limit of ten, ten are held."""
    racing = [served.gateway.reserving(100, user)] * 60

    answers = served.gateway.call(*racing)

    assert [answer["code"] for answer in answers].count(OK) == 10
    assert len({answer["reservationId"] for answer in answers}) == 11
    assert served.other.room(user) == 0


@pytest.mark.parametrize("algorithm", ["sliding", "log", "bucket"])
def test_all_algorithms_hold(gateway: Gateway, user: str, algorithm: str) -> None:
    """Gained: it is the same as in a fixed window."""
    caller = user.replace("user", algorithm)
    held = gateway.reserve(800, caller)

    assert gateway.room(caller) == 200
    assert gateway.reserve(201, caller) == ""
    assert gateway.commit(held, 650, caller)
    assert gateway.room(caller) == 350


def test_an_estimate_is_held_whole(gateway: Gateway, user: str) -> None:
    """Gained: more than half of a limit is held as well, where theirs holds half without a word."""
    assert gateway.reserve(900, user)
    assert gateway.reserve(200, user) == ""
    assert gateway.reserve(1001, f"{user}x") == ""


def test_what_is_held_is_seen(served: Served, user: str) -> None:
    """Gained: `ratelimit inspect` tells of it."""
    served.gateway.reserve(300, user)
    served.gateway.reserve(200, user)
    command = [COMMAND, "inspect", "llm", user, "--json", "--admin"]

    done = subprocess.run(
        [*command, f"127.0.0.1:{served.service.admin_port}"],
        capture_output=True,
        text=True,
        check=True,
    )

    (limit,) = json.loads(done.stdout)["counters"]
    assert (limit["held"], limit["remaining"]) == (500, 500)


def test_holds_of_a_counter_are_bounded(gateway: Gateway, user: str) -> None:
    """Gained: a hold counts as a ten-thousandth of its limit at least, so there are not more."""
    large = user.replace("user", "large")

    assert gateway.reserve(1, large)
    assert gateway.room(large) == 999_900


def test_switched_off(tmp_path: Path) -> None:
    """With --no-reservations the methods are UNIMPLEMENTED, and a gateway knows what to do."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    service = ServiceProcess(tmp_path, "--rules", str(rules), "--no-reservations")
    service.start()
    gateway = Gateway(service.address, "llm")

    answers = gateway.call(gateway.reserving(1, "user=a"), ("Commit", {}), ("Report", {}))

    gateway.close()
    service.kill()
    assert answers == [{"status": "Unimplemented"}] * 3
