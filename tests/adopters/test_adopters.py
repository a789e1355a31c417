"""The service in the place of envoyproxy/ratelimit, started as its adopters start that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import trustme

from tests.adopters.cluster import Cluster, ConfigMap, wait_until
from tests.adopters.pods import AI_GATEWAY, CONTOUR, ENVOY_GATEWAY, ISTIO, NUTANIX, RULES, Pod
from tests.conftest import need
from tests.servers.image import installed, need_namespaces
from tests.servers.management import ManagementServer, config


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

    assert running.hit("edge", "user=a", "--repeat", "3") == ["OK", "OK", "OVER_LIMIT"]
    assert running.hit("demo", "user=a") == ["OK"]  # the image's own rules are not served
    assert {running.get(path).text for path in ("/healthcheck", *pod.probes)} == {"OK"}
    assert 'ratelimit_rule_hits_total{domain="edge",rule="user",value=""} 3.0' in running.metrics()
    assert running.privileges() == (pod.user, 0)
    rules.write(config=RULES.replace("requests_per_unit: 2", "requests_per_unit: 9"))
    wait_until(lambda: "9" in running.get("/rlconfig").text, "the new rules")
    assert running.hit("edge", "user=a") == ["OK"]
    assert running.stop() == 0
    assert "Traceback" not in running.log


DOMAIN = "ns/gateway/http"
KEY = "ns/route/rule/0/match/-1/ns/route-rule-0-match-0"


class Certificates:
    """What the adopter's control plane puts at /certs, for both ends of everything."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self._authority = trustme.CA()
        self.ca = directory / "ca.crt"
        self._authority.cert_pem.write_to_path(str(self.ca))
        issued = self._authority.issue_cert("envoy-ratelimit", "localhost")
        issued.private_key_pem.write_to_path(str(directory / "tls.key"))
        issued.cert_chain_pems[0].write_to_path(str(directory / "tls.crt"))
        for file in directory.iterdir():
            file.chmod(0o644)

    def of_management(self) -> grpc.ServerCredentials:
        """Envoy Gateway's own: it asks for a certificate."""
        issued = self._authority.issue_cert("envoy-gateway")
        pair = issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()
        return grpc.ssl_server_credentials([pair], self.ca.read_bytes(), require_client_auth=True)


@pytest.fixture
def management() -> Iterator[ManagementServer]:
    server = ManagementServer(
        lambda conversation: conversation.send("1", config(DOMAIN, KEY, requests=2))
    )
    yield server
    server.stop()


@pytest.mark.parametrize(
    "pod", [ENVOY_GATEWAY, NUTANIX, AI_GATEWAY], ids=["envoy-gateway", "nutanix", "ai-gateway"]
)
def test_rules_from_a_management_server(
    cluster: Cluster, tmp_path: Path, management: ManagementServer, pod: Pod
) -> None:
    """The gateways' pods are well from the start, and decide by what they are sent, in Redis."""
    certificates = Certificates(tmp_path / "certs")
    (tmp_path / "exporter").mkdir()
    (tmp_path / "exporter" / "conf.yaml").write_text("mappings: []\n")
    places = {"/certs": certificates.directory, "/etc/statsd-exporter": tmp_path / "exporter"}
    tls = ["--tls-ca", str(certificates.ca)] if pod.tls else []
    if pod is NUTANIX:
        cluster.start_sentinel("main")
    running = cluster.pod(pod, {place: places[place] for place in pod.mounts})
    running.start()  # its health check answers 200 before there is anybody to send rules
    management.port = int(pod.environment["CONFIG_GRPC_XDS_SERVER_URL"].partition(":")[2])
    cluster.within(lambda: management.start(certificates.of_management() if pod.tls else None))
    wait_until(lambda: DOMAIN in running.get("/rlconfig").text, "the rules")

    codes = running.hit(DOMAIN, f"{KEY}=a", "--repeat", "3", *tls)

    assert codes == ["OK", "OK", "OVER_LIMIT"]
    request = management.conversation().asked[0]
    assert request.node.id == pod.environment["CONFIG_GRPC_XDS_NODE_ID"]
    well = "OK\ncount_denied: reported\n"  # as these adopters count tokens
    wait_until(lambda: running.get("/healthcheck").text == well, "it to be well")
    assert {running.get(path).status for path in pod.probes} == {200}
    counted = {
        line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in lines(running.metrics())
    }
    labels = f'{{domain="{DOMAIN}",key1="{KEY}"}}'
    assert float(counted[f"ratelimit_service_rate_limit_total_hits{labels}"]) == 3
    assert float(counted[f"ratelimit_service_rate_limit_over_limit{labels}"]) == 1
    assert running.privileges() == (pod.user, 0)
    assert running.stop() == 0
    assert "Traceback" not in running.log


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]
