"""The metrics page, written in slices."""

from __future__ import annotations

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from ratelimit_service.health import Health
from ratelimit_service.metrics import Metrics, Sources
from ratelimit_service.observer import Stats
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Domain, Level, Snapshot
from ratelimit_service.slices import SLICE

RULES = "domain: d\ndescriptors:\n" + "".join(
    f"  - {{key: k, value: v{number}, rate_limit: {{unlimited: true}}}}\n"
    for number in range(2 * SLICE + 1)
)


@pytest.fixture
def metrics() -> Metrics:
    domain = Domain("d", Level.of(parse("f", RULES.encode()).nodes))
    for number, rule in enumerate(domain.rules):
        rule.tallies.of().hits = number
    return Metrics(Sources(Stats(), Health(), lambda: Snapshot(1, {"d": domain}), lambda: 0))


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
async def test_slices_make_one_page(metrics: Metrics, accept: str) -> None:
    """However many series there are, the page has each family once and all of its samples."""
    _, pages = metrics.render(accept)
    page = b"".join([part async for part in pages])

    read = read_openmetrics if accept else read_text
    found = {family.name: family.samples for family in read(page.decode())}
    expected = {
        family.name: family.samples for family in read_text(generate_latest(metrics).decode())
    }
    assert {name: samples for name, samples in found.items() if name in expected} == expected
    assert page.count(b"# TYPE ratelimit_rule_hits") == 1
    assert page.count(b"# EOF") == bool(accept)


def test_limits_are_a_gauge() -> None:
    """Each limit of each rule has a series, whether or not anybody has met the rule."""
    text = """
domain: d
descriptors:
  - key: one
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: two
    rate_limits:
      - {unit: second, requests_per_unit: 10}
      - {unit: hour, unit_multiplier: 2, requests_per_unit: 100}
  - key: free
    rate_limit: {unlimited: true}
"""
    domain = Domain("d", Level.of(parse("f", text.encode()).nodes))
    metrics = Metrics(Sources(Stats(), Health(), lambda: Snapshot(1, {"d": domain})))

    (family,) = [each for each in metrics.collect() if each.name == "ratelimit_rule_limit"]

    assert [(tuple(each.labels.values()), each.value) for each in family.samples] == [
        (("d", "one", "1", "minute"), 5),
        (("d", "two", "1", "second"), 10),
        (("d", "two", "2", "2 hours"), 100),
    ]
