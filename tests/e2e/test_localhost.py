"""The Envoy configuration for this machine, and where to look if nothing is limited."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ratelimit_service.settings import Settings, split_address
from tests.e2e.conftest import need_envoy
from tests.servers.envoy import SHIPPED, Config, Envoy, ratelimit_filter, shipped_config
from tests.servers.service import ServiceProcess

TOP = Path(__file__).parents[2]
_, PORT = split_address(Settings().grpc)


def localhost_config() -> Config:
    config: Config = yaml.safe_load(SHIPPED.with_name("envoy-localhost.yaml").read_text())
    return config


def test_it_differs_in_the_service_only() -> None:
    """It is compose's configuration, with the service where it listens by default.

    There the admin port is open to the container's network, from which compose forwards it.
    """
    ours, composed = localhost_config(), shipped_config()
    _, cluster = composed["static_resources"]["clusters"]
    cluster["type"] = "STATIC"
    (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    endpoint["endpoint"]["address"] = {
        "socket_address": {"address": "127.0.0.1", "port_value": PORT}
    }
    admin = composed["admin"]["address"]["socket_address"]
    assert admin["address"] == "0.0.0.0"
    admin["address"] = "127.0.0.1"

    assert ours == composed


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path, "--rules", str(TOP / "rules"))
    process.start()
    yield process
    process.kill()


@pytest.fixture
def envoy(service: ServiceProcess, tmp_path: Path) -> Iterator[Envoy]:
    need_envoy()
    config = localhost_config()
    ratelimit_filter(config)["timeout"] = "5s"  # this machine may be busy
    process = Envoy(config, tmp_path, {"ratelimit": service.grpc_port})
    process.start()
    yield process
    process.kill()


def counted(envoy: Envoy) -> dict[str, int]:
    """What Envoy says of its decisions, those that have happened."""
    found = re.findall(
        r"^cluster\.backend\.ratelimit\.(\w+): ([1-9]\d*)$", envoy.stats(), re.MULTILINE
    )
    return {name: int(number) for name, number in found}


def test_it_limits(envoy: Envoy) -> None:
    """The sixth request of a user in a minute is answered 429, and Envoy counts what passed.

    Who is denied reads why, and when to come back.
    """
    answers = [envoy.get("/", x_user="alice") for _ in range(5)]
    while answers[-1].status != 429:  # a minute may have begun meanwhile
        answers.append(envoy.get("/", x_user="alice"))

    statuses = [answer.status for answer in answers]
    assert statuses == [*[200] * (len(statuses) - 1), 429]
    assert len(statuses) <= 11
    assert counted(envoy) == {"ok": len(statuses) - 1, "over_limit": 1}
    assert answers[0].headers["x-ratelimit-remaining"] == "4"
    denied = answers[-1]
    wait = denied.headers["retry-after"]
    assert denied.text == f"The limit is 5 in 1 minute. Try again in {wait} s."
    assert denied.headers["x-ratelimit-reset"] == wait


def test_if_nothing_is_limited(envoy: Envoy, service: ServiceProcess) -> None:
    """Envoy's counters tell a request that nobody asked for from a service that is away."""
    assert envoy.get("/").status == 200
    assert counted(envoy) == {}

    assert envoy.get("/", x_user="alice").status == 200
    assert counted(envoy) == {"ok": 1}

    service.kill()
    assert envoy.get("/", x_user="alice").status == 200
    assert counted(envoy) == {"ok": 1, "error": 1, "failure_mode_allowed": 1}
