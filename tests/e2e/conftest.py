"""One Envoy with a route for each thing to see, before a service on the in-memory store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import need
from tests.servers.envoy import (
    COMMAND,
    Config,
    Envoy,
    http_manager,
    ratelimit_filter,
    shipped_config,
)
from tests.servers.service import ServiceProcess
from tests.servers.upstream import Upstream

HERE = Path(__file__).parent
PER_ROUTE = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute"


def header(name: str, key: str) -> Config:
    return {"request_headers": {"header_name": name, "descriptor_key": key}}


ROUTES: dict[str, list[Config]] = {
    "/user": [{"actions": [header("x-user", "user")]}],
    "/two": [{"actions": [header("x-tenant", "tenant")]}, {"actions": [header("x-user", "user")]}],
    "/trial": [{"actions": [header("x-user", "trial")]}],
    "/vip": [{"actions": [header("x-user", "user")]}, {"actions": [header("x-vip", "vip")]}],
    "/override": [
        {
            "actions": [header("x-user", "anything")],
            "limit": {"rate_limit": {"requests_per_unit": 3, "unit": "YEAR"}},
        }
    ],
    "/cost": [
        {"actions": [header("x-user", "cost")], "hits_addend": {"format": "%REQ(x-cost)%"}},
    ],
    "/budget": [
        {"actions": [header("x-user", "budget")], "hits_addend": {"number": 0}},
        {
            "actions": [header("x-user", "budget")],
            "hits_addend": {"format": "%RESP(x-tokens)%"},
            "apply_on_stream_done": True,
        },
    ],
    "/described": [{"actions": [header("x-user", "described")]}],
    "/said": [{"actions": [header("x-user", "said")]}],
    "/checkout": [
        {"actions": [header("x-user", "checkout")]},
        {
            "actions": [header("x-user", "checkout"), header("x-ratelimit-lease", "lease")],
            "hits_addend": {"number": 1, "is_negative_hits": True},
            "apply_on_stream_done": True,
        },
    ],
}


def routed_config() -> Config:
    """The shipped configuration with these routes and with patience."""
    config = shipped_config()
    ratelimit_filter(config).update(
        domain="e2e", timeout="5s", enable_x_ratelimit_headers="DRAFT_VERSION_03"
    )
    (host,) = http_manager(config)["route_config"]["virtual_hosts"]
    host["routes"] = [
        {
            "match": {"prefix": prefix},
            "route": {"cluster": "backend"},
            "typed_per_filter_config": {
                "envoy.filters.http.ratelimit": {"@type": PER_ROUTE, "rate_limits": limits}
            },
        }
        for prefix, limits in ROUTES.items()
    ]
    return config


def need_envoy() -> None:
    need(COMMAND, "make test installs it; this machine may be none that Envoy is built for")


@pytest.fixture(scope="session")
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="session")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rules")
    shutil.copy(HERE / "rules.yaml", directory)
    return directory


@pytest.fixture(scope="session", params=["h2", "grpcio"])
def service(
    rules: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServiceProcess]:
    flags = ["--rules", str(rules), "--transport", request.param]
    process = ServiceProcess(tmp_path_factory.mktemp("service"), *flags)
    process.start()
    yield process
    process.kill()


@pytest.fixture(scope="session")
def envoy(
    service: ServiceProcess, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Envoy]:
    need_envoy()
    ports = {"ratelimit": service.grpc_port, "backend": upstream.port}
    process = Envoy(routed_config(), tmp_path_factory.mktemp("envoy"), ports)
    process.start()
    yield process
    process.kill()
