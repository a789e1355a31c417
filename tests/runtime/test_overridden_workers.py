"""What operators see of workers and change in them, with pages that watch, over a restart."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any

from ratelimit_service.model import Code, Request
from ratelimit_service.runtime.signals import RESTART
from tests.http_client import http
from tests.runtime.callers import ask, clients
from tests.runtime.conftest import Start
from tests.servers.process import wait_until
from tests.servers.redis import RedisServer
from tests.servers.service import ServiceProcess
from tests.service.asking import descriptor
from tests.waiting import PATIENCE_SECONDS

BOB, EVE = (Request("edge", (descriptor(text),)) for text in ("user=bob", "unlimited=eve"))
BAN = {"kind": "ban", "domain": "edge", "descriptor": [["unlimited", "eve"]], "for_seconds": 3600}


def json_of(service: ServiceProcess, path: str) -> Any:
    """What the admin listener says."""
    answer = service.admin(path)
    assert answer.status == 200, answer.text
    return json.loads(answer.text)


@contextmanager
def watching(service: ServiceProcess) -> Iterator[HTTPResponse]:
    """A page that has been told of both workers."""
    url = f"http://127.0.0.1:{service.admin_port}/events"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=PATIENCE_SECONDS) as stream:
        for line in stream:
            name, _, text = line.decode().partition(": ")
            if name == "data" and "processes" in text:
                processes = json.loads(text)["processes"]
                assert len(processes["deciding"]) == 2
                assert all(each["shards"][0]["address"] for each in processes["deciding"])
                break
        yield stream


def restarted(service: ServiceProcess) -> bool:
    shown = json.loads(service.get("/processes").text)
    return shown["restarts"] == 1 and not shown["restarting"]


def test_workers_are_seen_and_overridden_as_one(start: Start, own_redis: RedisServer) -> None:
    """Counts of workers are added up, a ban holds in both, and both after a restart.

    Pages that watch see their stream end, can watch again, and hold up neither restart nor end.
    """
    service = start("--store", own_redis.url, "--workers", "2", "--grace", "1h")
    with clients(service, 2, BOB) as result, watching(service) as stream:
        for client in result:
            assert ask(client, BOB) is Code.OVER_LIMIT
        (row,) = json_of(service, "/counters?order=over")["callers"]
        assert (row["caller"], row["hits"], row["over"]) == ([["user", "bob"]], 4, 2)
        (counter,) = json_of(service, "/inspect?domain=edge&descriptor=user%3Dbob")["counters"]
        assert (counter["count"], counter["remaining"]) == (2, 0)

        answer = http(f"http://127.0.0.1:{service.admin_port}/overrides", BAN)
        assert answer.status == 200, answer.text
        wait_until(
            lambda: [ask(client, EVE) for client in result] == [Code.OVER_LIMIT] * 2,
            "the ban in both workers",
        )

        service.signal(RESTART)
        stream.read()  # it has an end, and is not cut off
        wait_until(lambda: restarted(service), "the restart")

    with watching(service) as stream:
        with clients(service, 2, EVE) as result:
            assert [ask(client, EVE) for client in result] == [Code.OVER_LIMIT] * 2
        (override,) = json_of(service, "/overrides")["overrides"]
        assert (override["kind"], override["entries"]) == ("ban", [["unlimited", "eve"]])
        service.signal(signal.SIGTERM)
        stream.read()
        assert service.wait() == 0
