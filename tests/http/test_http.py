"""The HTTP port: decisions in JSON, health, metrics and rules."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ratelimit_service.errors import TransportError
from ratelimit_service.grpc.tls import TLS
from ratelimit_service.model import SECOND_US, CountDenied, FailurePolicy
from ratelimit_service.net import listening
from ratelimit_service.observability.health import Phase
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Store
from tests.http.serving import http_port
from tests.http_client import HTTPAnswer, http
from tests.nearby import Listener
from tests.service.asking import Asking, Away
from tests.service.overriding import BAN, override

RULES = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1}}
"""
REQUEST = {"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "bob"}]}]}


class Site:
    """A running HTTP port over a service on memory, or on a store that is away."""

    def __init__(self, directory: Path, settings: Settings, store: Store | None) -> None:
        self.asking = asking = Asking(directory, RULES, settings=settings, store=store)
        self.admin = http_port(asking)

    async def start(self, tls: TLS | None = None) -> None:
        self.listener = Listener()
        await self.admin.start([self.listener], tls)

    async def ask(self, path: str, body: object = None, **headers: str) -> HTTPAnswer:
        url = f"http://127.0.0.1:{self.listener.port}{path}"
        return await asyncio.to_thread(http, url, body, headers)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path, Settings(), None)
    await site.start()
    site.asking.health.enter(Phase.SERVING)
    yield site
    await site.admin.close()


async def test_json_says_when_a_ban_ends(site: Site) -> None:
    """A banned caller is denied, and told when it may come back if the ban ends."""
    until_us = site.asking.clock() + 90 * SECOND_US
    for ban, wait in ((override(BAN, until_us=until_us), "90"), (override(BAN), None)):
        site.asking.service.overrides.add([ban])
        answer = await site.ask("/json", REQUEST)
        assert (answer.status, answer.headers.get("retry-after")) == (429, wait)
        site.asking.service.overrides.remove([ban])


async def test_json(site: Site) -> None:
    """/json answers 200 with the decision, and 429 once it is over the limit."""
    first, second = [await site.ask("/json", REQUEST) for _ in range(2)]

    assert (first.status, second.status) == (200, 429)
    assert first.headers["content-type"].startswith("application/json")
    (status,) = json.loads(first.text)["statuses"]
    assert status.pop("durationUntilReset").endswith("s")
    assert status == {"code": "OK", "currentLimit": {"requestsPerUnit": 1, "unit": "DAY"}}
    assert json.loads(second.text)["overallCode"] == "OVER_LIMIT"


async def test_list_of_requests(site: Site) -> None:
    """/json decides each request of a list by itself, and answers 200 in their order."""
    bad = {"domain": "edge", "descriptors": []}

    answer = await site.ask("/json", [REQUEST, bad, REQUEST])

    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/json")
    assert "retry-after" not in answer.headers
    passed, refused, denied = json.loads(answer.text)
    assert (passed["overallCode"], denied["overallCode"]) == ("OK", "OVER_LIMIT")
    message = "descriptors is empty: at least one is needed"
    assert refused == {"error": {"code": "INVALID_ARGUMENT", "message": message}}


async def test_list_that_is_refused_counts_nothing(site: Site) -> None:
    """If one request of a list is no request, none of them is counted."""
    refused = await site.ask("/json", [REQUEST, {"domian": "edge"}])

    assert (refused.status, "[1]: " in refused.text) == (400, True)
    assert (await site.ask("/json", REQUEST)).status == 200


async def test_json_says_when_to_come_back(tmp_path: Path) -> None:
    """/json has the headers of the answer; a denial always has Retry-After, once."""
    waits = []
    for settings in (Settings(), Settings(headers="x-ratelimit", denial_body="problem")):
        site = Site(tmp_path, settings, None)
        await site.start()
        result = [await site.ask("/json", REQUEST) for _ in range(2)]
        await site.admin.close()
        assert "retry-after" not in result[0].headers
        assert result[1].headers["content-type"].startswith("application/json")
        assert json.loads(result[1].text)["overallCode"] == "OVER_LIMIT"
        waits.append(int(result[1].headers["retry-after"]))

    assert all(0 < wait <= 86_400 for wait in waits)
    assert result[1].headers["x-ratelimit-remaining"] == "0"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"domian": "edge"}, "RateLimitRequest has no field 'domian': allowed are domain, "),
        ({"domain": "edge"}, "descriptors is empty: at least one is needed"),
        ([1], "the body is no RateLimitRequest in JSON"),
        ({"domain": "d" * 70_000, "descriptors": [{}]}, "at most 65536 are allowed"),
    ],
    ids=["unknown field", "bad request", "not a message", "too large"],
)
async def test_json_that_is_refused(site: Site, body: object, message: str) -> None:
    """A body that is no request is 400 with a line that says why, and is counted."""
    answer = await site.ask("/json", body)

    assert (answer.status, message in answer.text) == (400, True)
    assert sum(site.asking.stats.refusals.values()) == 1


@pytest.mark.parametrize(
    ("policy", "status"),
    [(FailurePolicy.OPEN, 200), (FailurePolicy.CLOSED, 429), (FailurePolicy.ERROR, 503)],
)
async def test_json_without_store(tmp_path: Path, policy: FailurePolicy, status: int) -> None:
    """Without a store the failure policy decides; its `error` is 503."""
    site = Site(tmp_path, Settings(failure_policy=policy), Away())
    await site.start()

    answer = await site.ask("/json", REQUEST)

    await site.admin.close()
    assert answer.status == status


async def test_healthcheck(site: Site) -> None:
    """200 while requests are answered, with the word degraded if need be; else 500."""
    health = site.asking.health
    answers = [await site.ask("/healthcheck")]
    health.degrade("store", "Redis is away")
    answers.append(await site.ask("/healthcheck"))
    health.recover("store")
    health.enter(Phase.DRAINING)
    answers.append(await site.ask("/healthcheck"))

    assert [(answer.status, answer.text) for answer in answers] == [
        (200, "OK"),
        (200, "degraded\nstore: Redis is away\n"),
        (500, "draining\n"),
    ]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (Settings(), "OK\nnote: weather: it rains\n"),
        (
            Settings(rules="xds://localhost:18000"),
            "OK\ncount_denied: reported\nnote: weather: it rains\n",
        ),
        (
            Settings(count_denied=CountDenied.ALL),
            "OK\ncount_denied: all\nnote: weather: it rains\n",
        ),
    ],
)
async def test_healthcheck_has_notes(tmp_path: Path, settings: Settings, text: str) -> None:
    """What is worth knowing follows the OK: which hits of denied requests count, and notes."""
    site = Site(tmp_path, settings, Away())
    await site.start()
    site.asking.health.enter(Phase.SERVING)
    site.asking.health.note("weather", "it rains")
    site.asking.health.note("weather", "it rains")

    answer = await site.ask("/healthcheck")

    await site.admin.close()
    assert (answer.status, answer.text) == (200, text)


async def test_rlconfig(site: Site) -> None:
    """/rlconfig shows the rules that hold."""
    assert (await site.ask("/rlconfig")).text.startswith("edge.user: unit=DAY requests_per_unit=1")


async def test_other_paths(site: Site) -> None:
    """Another path is 404, with those that are there."""
    answer = await site.ask("/nowhere")

    assert (answer.status, answer.text) == (
        404,
        "/nowhere is not here: "
        "/healthcheck /livez /readyz /json /json/reserve /json/settle /metrics /rlconfig "
        "/processes are\n",
    )


async def raw_answer(site: Site, data: bytes) -> bytes:
    """What the port answers to these bytes, after which nothing more is sent."""
    reader, writer = await site.listener.connected()
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


POST = b"POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"garbage\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET http://[/json HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a" * 10_000,
        POST + b"Content-Length: x\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST + b"Content-Length: 5\r\nContent-Encoding: gzip\r\n\r\nabcde",
        POST + b"Content-Length: 50\r\n\r\nabc",
    ],
    ids=["words", "h2", "tls", "url", "header", "length", "chunk", "gzip", "hung up"],
)
async def test_what_is_no_http(site: Site, caplog: pytest.LogCaptureFixture, data: bytes) -> None:
    """Whatever a caller sends instead of a request, the log has no line above debug of it."""
    caplog.set_level(logging.DEBUG)

    answer = await raw_answer(site, data)

    assert b" 500 " not in answer
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
    assert all(len(record.getMessage()) < 300 for record in caplog.records)
    assert (await site.ask("/healthcheck")).status == 200


async def test_processes_are_for_this_machine(site: Site) -> None:
    """Who comes through a proxy is told nothing of the processes."""
    assert (await site.ask("/processes")).status == 200

    answer = await site.ask("/processes", **{"X-Forwarded-For": "192.0.2.1"})

    assert (answer.status, answer.text) == (
        403,
        "only callers on this machine may see its processes\n",
    )


async def test_rules_that_are_not_public(tmp_path: Path) -> None:
    """With --no-public-config the port shows no rules, and names none of their paths."""
    site = Site(tmp_path, Settings(no_public_config=True), None)
    await site.start()

    answer = await site.ask("/rlconfig")

    await site.admin.close()
    assert (answer.status, "edge" in answer.text) == (404, False)
    assert answer.text.endswith("/json/settle /metrics /processes are\n")


async def test_fault_of_ours(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A fault of the service itself is 500, and the log has its traceback."""
    site.admin.shown = replace(site.admin.shown, processes=lambda: 1 // 0)

    answer = await site.ask("/processes")

    assert answer.status == 500
    assert "ZeroDivisionError" in caplog.text


def test_port_in_use() -> None:
    """A port that is taken is an error that names it and the flag."""
    (taken,) = listening.listen("127.0.0.1:0", "HTTP")
    port = listening.port_of([taken])
    with closing(taken), pytest.raises(TransportError, match=f"{port}: .*--http"):
        listening.listen(f"127.0.0.1:{port}", "HTTP")


async def samples(site: Site) -> dict[str, float]:
    """Every sample of a scrape, by its name and labels as written."""
    answer = await site.ask("/metrics")
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def test_metrics(site: Site) -> None:
    """Decisions show in the rule's series, the codes and the latency; all start from 0."""
    before = await samples(site)
    await site.ask("/json", REQUEST)
    await site.ask("/json", REQUEST)
    await site.ask("/json", {**REQUEST, "domain": "other"})

    after = await samples(site)

    rule = "domain=edge rule=user value="
    grown = {name: after[name] - before.get(name, 0) for name in after if "process" not in name}
    assert grown[f"ratelimit_rule_hits_total {rule}"] == 2
    assert grown[f"ratelimit_rule_within_limit_total {rule}"] == 1
    assert grown[f"ratelimit_rule_over_limit_total {rule}"] == 1
    assert grown["ratelimit_decisions_total code=ok"] == 2
    assert grown["ratelimit_decisions_total code=over_limit"] == 1
    assert grown["ratelimit_decision_duration_seconds_count"] == 3
    assert grown["ratelimit_unknown_domain_total"] == 1
    for name in (
        "ratelimit_decisions_total code=ok",
        "ratelimit_store_errors_total reason=timeout",
        "ratelimit_policy_decisions_total policy=closed",
        "ratelimit_evicted_counters_total state=live",
        "ratelimit_degraded component=store",
    ):
        assert before[name] == 0
    assert before["ratelimit_rule_loads_total result=success"] == 1
    assert before["ratelimit_memory_counters"] == 7


async def test_metrics_are_bounded(tmp_path: Path) -> None:
    """A rule has series of its own for 1,000 values; the rest share `other`."""
    site = Site(tmp_path, Settings(), None)
    (tmp_path / "0.yaml").write_text(
        RULES.replace("key: user,", "key: user, value_to_metric: true,")
    )
    await site.asking.rules.reload()
    await site.start()

    for number in range(1_010):
        await site.asking.ask(f"user={number}")

    series = [
        name
        for name in await samples(site)
        if name.startswith("ratelimit_rule_hits_total") and " rule=user " in name
    ]
    await site.admin.close()
    assert len(series) == 1_001
    assert "ratelimit_rule_hits_total domain=edge rule=user value=other" in series


async def test_openmetrics(site: Site) -> None:
    """A scraper that asks for OpenMetrics gets it."""
    answer = await site.ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")

    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
