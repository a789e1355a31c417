"""What docs/migration.md says of running beside another rate limit service."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import need_envoy
from tests.servers.envoy import Config, Envoy, http_manager, ratelimit_filter, shipped_config
from tests.servers.service import ServiceProcess

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
RULES = """\
domain: demo
descriptors:
- key: user
  rate_limit: {unit: year, requests_per_unit: 2}
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    """The one that serves, and the one beside it."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    old = ServiceProcess(tmp_path, "--rules", str(rules))
    new = ServiceProcess(tmp_path, "--rules", str(rules), "--shadow-mode")
    old.start()
    new.start()
    yield old, new
    old.kill()
    new.kill()


def beside() -> Config:
    """Envoy with the filter of the page before its own."""
    config = shipped_config()
    ratelimit_filter(config)["timeout"] = "5s"
    (block,) = re.findall(r"```yaml\n(- name: ratelimit-new\n.*?)```", PAGE.read_text(), re.DOTALL)
    (added,) = yaml.safe_load(block)
    added["typed_config"]["timeout"] = "5s"
    manager = http_manager(config)
    manager["http_filters"].insert(0, added)
    (route,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    (own,) = route["typed_per_filter_config"].values()
    route["typed_per_filter_config"]["ratelimit-new"] = own
    clusters = config["static_resources"]["clusters"]
    clusters.append({**copy.deepcopy(clusters[-1]), "name": "ratelimit-new"})
    return config


def test_beside_the_old_one(
    services: tuple[ServiceProcess, ServiceProcess], tmp_path: Path
) -> None:
    """The old one alone denies; the new one sees each request, and counts what it would deny."""
    need_envoy()
    old, new = services
    envoy = Envoy(beside(), tmp_path, {"ratelimit": old.grpc_port, "ratelimit-new": new.grpc_port})
    envoy.start()

    statuses = [envoy.get("/", x_user="alice").status for _ in range(4)]
    stats = dict(re.findall(r"^(\S+): (\d+)$", envoy.stats(), re.MULTILINE))

    envoy.kill()
    assert statuses == [200, 200, 429, 429]
    assert "\nratelimit_global_shadow_mode_total 2.0\n" in new.get("/metrics").text
    assert stats["cluster.backend.ratelimit.new.ok"] == "4"
    assert stats["cluster.backend.ratelimit.over_limit"] == "2"
