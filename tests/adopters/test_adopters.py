"""The service in the place of envoyproxy/ratelimit, started as its adopters start that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adopters.cluster import Cluster, ConfigMap, wait_until
from tests.adopters.pods import CONTOUR, ISTIO, RULES, Pod
from tests.conftest import need
from tests.servers.image import installed, need_namespaces


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    need_namespaces()
    need("redis-server", "sudo apt install redis-server")
    cluster = Cluster(tmp_path, installed(tmp_path))
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("pod", [ISTIO, CONTOUR], ids=["istio", "contour"])
def test_rules_from_a_config_map(cluster: Cluster, tmp_path: Path, pod: Pod) -> None:
    """Istio's and Contour's pods decide by the mounted rules, in Redis, and by changed ones."""
    rules = ConfigMap(tmp_path / "rules", config=RULES)
    running = cluster.pod(pod, dict.fromkeys(pod.mounts, rules.directory))
    running.start()

    assert [running.hit("edge", "user=a") for _ in range(3)] == ["OK", "OK", "OVER_LIMIT"]
    assert running.hit("demo", "user=a") == "OK"  # the image's own rules are not served
    assert {running.get(path).text for path in ("/healthcheck", *pod.probes)} == {"OK"}
    assert 'ratelimit_rule_hits_total{domain="edge",rule="user",value=""} 3.0' in running.metrics()
    assert running.privileges() == (pod.user, 0)
    rules.write(config=RULES.replace("requests_per_unit: 2", "requests_per_unit: 9"))
    wait_until(lambda: "9" in running.get("/rlconfig").text, "the new rules")
    assert running.hit("edge", "user=a") == "OK"
    assert running.stop() == 0
    assert "Traceback" not in running.log
