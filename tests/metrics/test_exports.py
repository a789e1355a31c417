"""Metrics by the names of envoyproxy/ratelimit: for Prometheus, on the debug port, for statsd."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as read_text

from ratelimit_service.metrics import EXPORTERS, Page, Push, Sources, statsd
from ratelimit_service.model import Entry
from ratelimit_service.net import names
from ratelimit_service.net.names import Addresses, Names
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.match import match
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Domain, Level, Snapshot
from ratelimit_service.settings import Settings
from tests.http_client import http
from tests.servers.process import free_port
from tests.servers.redis import SharedRedis
from tests.servers.service import ServiceProcess
from tests.waiting import PATIENCE_SECONDS

RULES = """
domain: ns/gw/http
descriptors:
  - key: a
    value: 1.2.3.4
    descriptors:
      - key: b
        value: "x:y"
        rate_limit: {unit: hour, requests_per_unit: 10}
        descriptors:
          - {key: deep, rate_limit: {unit: hour, requests_per_unit: 10}}
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: host
    value: "*.com"
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: seen
    value_to_metric: true
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: all
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 10}
"""


class Counted:
    """Rules, and what was counted of them."""

    def __init__(self) -> None:
        self.domain = Domain("ns/gw/http", Level.of(parse("f", RULES.encode()).nodes))
        self.stats = Stats()
        snapshot = Snapshot(1, {self.domain.name: self.domain})
        self.sources = Sources(self.stats, Health(), lambda: snapshot)

    def count(self, hits: int, **entries: str) -> None:
        """So many hits within the limit, and one more over it."""
        request = [Entry(key, value) for key, value in entries.items()]
        result = match(self.domain, request)
        assert result.rule is not None
        tally = result.rule.tallies.of(result.metric_value)
        tally.hits += hits + 1
        tally.within += hits
        tally.over += 1

    async def page(self, settings: Settings, path: str) -> str:
        pages = {
            export.path: export
            for exporter in EXPORTERS
            for export in exporter(settings)
            if isinstance(export, Page)
        }
        parts = pages[path].render(await self.sources.read())
        return b"".join([part async for part in parts]).decode()


@pytest.fixture
def counted() -> Counted:
    counted = Counted()
    counted.count(3, a="1.2.3.4", b="x:y")
    counted.count(1, a="1.2.3.4", b="x:y", deep="z")
    counted.count(5, user="alice")
    counted.count(7, host="example.com")
    counted.count(1, seen="10.0.0.1")
    counted.count(2, all='q"\\')
    counted.stats.decisions["ok"] = 19
    counted.stats.decisions["over_limit"] = 6
    counted.stats.refusals["no_domain"] = 1
    counted.stats.rule_loads["success"] = 2
    counted.stats.latency.add(300, 19)
    return counted


LISTENING = Settings(reference_metrics="h:1", debug="h:2")


async def test_prometheus_by_the_reference_s_names(counted: Counted) -> None:
    """Rules are told by their first two levels, deeper ones add up, and nothing has _total."""
    page = await counted.page(LISTENING, "/metrics")

    within = [line for line in page.splitlines() if "_within_limit{" in line]
    assert within == [
        'ratelimit_service_rate_limit_within_limit{domain="ns/gw/http",key1="a_1_2_3_4",'
        'key2="b_x_y"} 4',
        'ratelimit_service_rate_limit_within_limit{domain="ns/gw/http",key1="user"} 5',
        'ratelimit_service_rate_limit_within_limit{domain="ns/gw/http",key1="host_*.com"} 7',
        'ratelimit_service_rate_limit_within_limit{domain="ns/gw/http",key1="seen_10_0_0_1"} 1',
        'ratelimit_service_rate_limit_within_limit{domain="ns/gw/http",key1="all_q\\"\\\\"} 2',
        'ratelimit_service_rate_limit_within_limit{domain="ns/gw/http",key1="override"} 0',
    ]
    assert 'over_limit{domain="ns/gw/http",key1="a_1_2_3_4",key2="b_x_y"} 2\n' in page
    assert 'ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 26\n' in page
    assert 'ratelimit_service_should_rate_limit_error{err_type="service_error"} 1\n' in page
    assert "ratelimit_service_config_load_success 2\n" in page
    assert 'response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.0005"} 19\n' in page
    assert "_total{" not in page
    assert 'shadow_mode{domain="ns/gw/http",key1="user"} 0\n' in page  # it has not counted yet


async def test_prometheus_page_can_be_read(counted: Counted) -> None:
    """Prometheus' own parser takes the page, each metric once."""
    page = await counted.page(LISTENING, "/metrics")
    names = re.findall("^# TYPE (\\S+)", page, re.MULTILINE)

    families = list(read_text(page))

    assert len(names) == len(set(names)) == len(families)


async def test_stats_as_text_and_as_json(counted: Counted) -> None:
    """/stats has all levels of each rule, in both forms alike."""
    text = await counted.page(LISTENING, "/stats")
    in_json = json.loads(await counted.page(LISTENING, "/stats.json"))

    lines = dict(line.split(": ") for line in text.splitlines())
    assert {name: int(number) for name, number in lines.items()} == in_json
    prefix = "ratelimit.service.rate_limit.ns/gw/http"
    assert in_json[f"{prefix}.a_1_2_3_4.b_x_y.within_limit"] == 3
    assert in_json[f"{prefix}.a_1_2_3_4.b_x_y.deep.within_limit"] == 1
    assert in_json[f"{prefix}.user.total_hits"] == 6
    assert in_json["ratelimit_server.ShouldRateLimit.total_requests"] == 26


class Listener:
    """Who is told by UDP."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(PATIENCE_SECONDS)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def datagrams(self, number: int) -> Sequence[bytes]:
        return [self._socket.recv(65_536) for _ in range(number)]

    def lines(self) -> list[str]:
        """All that has come."""
        return b"\n".join(self.all()).decode().splitlines()

    def all(self) -> list[bytes]:
        self._socket.setblocking(False)
        result = []
        while True:
            try:
                result.append(self._socket.recv(65_536))
            except BlockingIOError:
                return result

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


def push_of(settings: Settings) -> Push:
    (push,) = (
        export
        for exporter in EXPORTERS
        for export in exporter(settings)
        if not isinstance(export, Page)
    )
    return push


async def test_statsd_is_told_what_has_grown(counted: Counted, listener: Listener) -> None:
    """Each time only what was counted since the last; what was before the start never."""
    push = push_of(Settings(statsd=listener.address))
    await push.begin(await counted.sources.read())
    counted.count(4, user="bob")
    counted.stats.latency.add(7_000, 1)
    counted.stats.latency.add(20_000, 4)

    await push.send(await counted.sources.read())
    first = listener.lines()
    await push.send(await counted.sources.read())

    prefix = "ratelimit.service.rate_limit.ns/gw/http.user"
    assert sorted(first) == [
        f"{prefix}.over_limit:1|c",
        f"{prefix}.total_hits:5|c",
        f"{prefix}.within_limit:4|c",
        "ratelimit_server.ShouldRateLimit.response_time:10|ms",
        "ratelimit_server.ShouldRateLimit.response_time:20|ms|@0.250000000",
    ]
    assert listener.lines() == []


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("statsd", "ratelimit.service.config_load_success.__env=a_b.__zone=1:1|c"),
        ("dogstatsd", "ratelimit.service.config_load_success:1|c|#zone:1,env:a_b"),
    ],
)
async def test_statsd_tags(counted: Counted, listener: Listener, form: str, line: str) -> None:
    """Tags stand in the name, as the reference writes them, or behind it for DogStatsD."""
    settings = Settings(statsd=listener.address, statsd_format=form, statsd_tags="zone:1,env:a|b")
    push = push_of(settings)
    await push.begin(await counted.sources.read())
    counted.stats.rule_loads["success"] += 1

    await push.send(await counted.sources.read())

    assert listener.lines() == [line]


async def test_statsd_fills_datagrams(listener: Listener) -> None:
    """Lines are batched into datagrams that fit into a frame, none of them cut."""
    counted = Counted()
    for number in range(100):
        counted.count(1, seen=f"{number:03}" * 20)
    push = push_of(Settings(statsd=listener.address))
    await push.begin(await Counted().sources.read())

    await push.send(await counted.sources.read())

    datagrams = listener.all()
    lines = b"\n".join(datagrams).splitlines()
    assert len(lines) == len(set(lines)) == 3 * 100
    assert all(line.endswith(b"|c") for line in lines)
    assert max(map(len, datagrams)) <= 1_432
    for one, other in pairwise(datagrams):
        assert len(one) + 1 + len(other.split(b"\n")[0]) > 1_432


async def test_statsd_that_nobody_hears(counted: Counted, caplog: pytest.LogCaptureFixture) -> None:
    """A host that is none keeps the numbers for later, and is said once; nothing is raised."""
    push = push_of(Settings(statsd="no-such-host.invalid:8125"))
    await push.begin(await Counted().sources.read())

    async with asyncio.timeout(30):
        await push.send(await counted.sources.read())
        await push.send(await counted.sources.read())

    assert caplog.text.count("numbers for statsd at no-such-host.invalid:8125 are lost") == 1


async def test_nothing_is_exported_unasked() -> None:
    """Without settings no port is opened and nothing is sent."""
    assert [export for exporter in EXPORTERS for export in exporter(Settings())] == []


def test_the_reference_s_environment(
    tmp_path: Path, redis_server: SharedRedis, listener: Listener
) -> None:
    """With the reference's environment its ports are there, and count for all workers."""
    prefix = tmp_path / "ratelimit" / "config"
    prefix.mkdir(parents=True)
    (prefix / "config.yaml").write_text(
        "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: year, requests_per_unit: 2}}\n"
    )
    redis_server.flush()
    debug, metrics = free_port(), free_port()
    environment = {
        "RUNTIME_ROOT": str(tmp_path),
        "RUNTIME_SUBDIRECTORY": "ratelimit",
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": f"127.0.0.1:{redis_server.port}",
        "DEBUG_HOST": "127.0.0.1",
        "DEBUG_PORT": str(debug),
        "USE_PROMETHEUS": "true",
        "PROMETHEUS_ADDR": f"127.0.0.1:{metrics}",
        "USE_STATSD": "true",
        "STATSD_HOST": "127.0.0.1",
        "STATSD_PORT": listener.address.partition(":")[2],
        "STATS_FLUSH_INTERVAL": "1h",
    }
    service = ServiceProcess(tmp_path, "--workers", "2", environment=environment)
    service.start()
    codes = [service.decide("d", k="x").status for _ in range(3)]

    page = http(f"http://127.0.0.1:{metrics}/metrics").text
    stats = http(f"http://127.0.0.1:{debug}/stats.json").text
    config = http(f"http://127.0.0.1:{debug}/rlconfig").text
    others = [
        http(f"http://127.0.0.1:{port}{path}").status
        for port in (debug, metrics)
        for path in ("/", "/json", "/healthcheck", "/debug/pprof/")
    ]
    service.signal(signal.SIGTERM)
    service.wait()

    lines = listener.lines()
    assert codes == [200, 200, 429]
    assert 'ratelimit_service_rate_limit_total_hits{domain="d",key1="k"} 3\n' in page
    assert json.loads(stats)["ratelimit.service.rate_limit.d.k.over_limit"] == 1
    assert config.startswith("d.k: unit=YEAR requests_per_unit=2")
    assert others == [404] * 8
    assert "ratelimit.service.rate_limit.d.k.total_hits:3|c" in lines


async def test_statsd_at_a_name_that_nobody_resolves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no resolver answers nobody waits for long, and numbers are kept for later."""
    monkeypatch.setattr(statsd, "_NAME_SECONDS", 0.01)
    answers = threading.Event()

    def look_up(*_: object, **__: object) -> Addresses:
        answers.wait()
        return []

    names._SHARED[:] = [Names(look_up)]
    (push,) = statsd.exports(Settings(statsd="slow.example:8125"))
    counted = Counted()
    for _ in range(3):
        await push.send(await counted.sources.read())
    answers.set()

    lost = [each.message for each in caplog.records if "statsd" in each.message]
    assert lost == ["numbers for statsd at slow.example:8125 are lost: no resolver answers"]
