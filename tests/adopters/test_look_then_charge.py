"""Envoy Gateway's token limits: a real Envoy looks before a request, and charges when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import PER_ROUTE, header, need_envoy
from tests.servers.envoy import Config, Envoy, http_manager, ratelimit_filter, shipped_config
from tests.servers.management import ManagementServer, config
from tests.servers.process import free_port, wait_until
from tests.servers.redis import SharedRedis
from tests.servers.service import ServiceProcess
from tests.servers.upstream import Upstream

DOMAIN = "ns/gateway/http"
KEY = "ns/route/rule/0/match/-1/ns/route-rule-0-match-0"
LIMIT, COST, REQUESTS = 100, 60, 12


def token_limit() -> Config:
    """Envoy as Envoy Gateway sets it up for a limit with a cost of requests and of answers."""
    found = shipped_config()
    ratelimit_filter(found).update(domain=DOMAIN, timeout="5s")
    (host,) = http_manager(found)["route_config"]["virtual_hosts"]
    actions = [header("x-user", KEY)]
    limits = [
        {"actions": actions, "hits_addend": {"number": 0}},
        {
            "actions": actions,
            "hits_addend": {"format": "%RESP(x-tokens)%"},
            "apply_on_stream_done": True,
        },
    ]
    host["routes"] = [
        {
            "match": {"prefix": "/"},
            "route": {"cluster": "backend"},
            "typed_per_filter_config": {
                "envoy.filters.http.ratelimit": {"@type": PER_ROUTE, "rate_limits": limits}
            },
        }
    ]
    return found


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture
def management() -> Iterator[ManagementServer]:
    server = ManagementServer(
        lambda conversation: conversation.send("1", config(DOMAIN, KEY, requests=LIMIT))
    ).start()
    yield server
    server.stop()


@pytest.mark.parametrize(
    ("said", "admitted", "told"),
    [
        ({}, 2, "OK\ncount_denied: reported\n"),
        ({"RATELIMIT_COUNT_DENIED": "none"}, REQUESTS, f"OK\nnote: rule {KEY} of {DOMAIN}: it is"),
    ],
    ids=["by default", "none"],
)
def test_token_limit(
    tmp_path: Path,
    redis_server: SharedRedis,
    upstream: Upstream,
    management: ManagementServer,
    said: dict[str, str],
    admitted: int,
    told: str,
) -> None:
    """Of answers of 60 tokens a limit of 100 lets two through; if reports do not count, all."""
    need_envoy()
    redis_server.flush()
    environment = {
        "CONFIG_TYPE": "GRPC_XDS_SOTW",
        "CONFIG_GRPC_XDS_SERVER_URL": f"127.0.0.1:{management.port}",
        "CONFIG_GRPC_XDS_NODE_ID": "envoy-ratelimit",
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": redis_server.url.removeprefix("redis://").partition("/")[0],
        "DEBUG_HOST": "127.0.0.1",
        "DEBUG_PORT": str(free_port()),
        **said,
    }
    service = ServiceProcess(tmp_path, "--workers", "1", environment=environment)
    service.start()
    ports = {"ratelimit": service.grpc_port, "backend": upstream.port}
    envoy = Envoy(token_limit(), tmp_path, ports)
    envoy.start()

    codes = []
    for _ in range(REQUESTS):
        codes.append(envoy.get("/", x_user="alice", answer_x_tokens=str(COST)).status)
        reported = COST * codes.count(200)
        hits = f'ratelimit_rule_hits_total{{domain="{DOMAIN}",rule="{KEY}",value=""}} {reported}.0'
        wait_until(lambda: hits in service.get("/metrics").text, f"{reported} tokens")  # noqa: B023
    wait_until(lambda: service.get("/healthcheck").text.startswith(told), "what health says")

    envoy.kill()
    service.kill()
    assert codes == [200] * admitted + [429] * (REQUESTS - admitted)
