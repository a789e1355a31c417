"""The metrics page, written in slices."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from ratelimit_service.eventloop.slices import SLICE
from ratelimit_service.metrics import Metrics, Sources
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Domain, Level, Snapshot
from tests.service.asking import Asking

PACKAGE = Path(__file__).parents[2] / "ratelimit_service"

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
    result = {family.name: family.samples for family in read(page.decode())}
    expected = {
        family.name: family.samples for family in read_text(generate_latest(metrics).decode())
    }
    assert {name: samples for name, samples in result.items() if name in expected} == expected
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


async def test_descriptors_without_a_rule_are_counted_by_domain(tmp_path: Path) -> None:
    """A descriptor that no rule of its domain matches is counted, on every way; others are not."""
    rules = """
domain: edge
descriptors:
  - {key: user, rate_limit: {name: users, unit: day, requests_per_unit: 9}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: vip, rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: users}]}}
"""
    asking = Asking(tmp_path, rules)
    sources = Sources(asking.stats, asking.health, lambda: asking.rules.snapshot)
    await asking.ask("none=1")
    await asking.ask("none=1", "user=a", "none=2")
    await asking.ask("user=a", "vip=1", "free=1")
    await asking.ask("none=1", domain="other")

    result = {family.name: family for family in Metrics(sources).collect()}
    family = result["ratelimit_unmatched_descriptors"]
    assert [(each.labels, each.value) for each in family.samples] == [({"domain": "edge"}, 3)]


def test_last_load_is_told(tmp_path: Path) -> None:
    """The time and the revision of the last good load are there; the same bytes are the same."""
    texts = "domain: a\ndescriptors: []", "domain: b\ndescriptors: []", "domain: b"
    asking = []
    for number, each in enumerate([texts[:2], texts[1::-1], texts[:1]]):
        (tmp_path / str(number)).mkdir()
        asking.append(Asking(tmp_path / str(number), *each))

    first, second, third = (each.rules.loaded for each in asking)
    assert first.revision == second.revision != third.revision
    rules = asking[0].rules
    sources = Sources(Stats(), Health(), lambda: rules.snapshot, loaded=lambda: rules.loaded)
    result = {family.name: family.samples for family in Metrics(sources).collect()}
    (at,) = result["ratelimit_rules_loaded_timestamp_seconds"]
    assert 0 <= time.time() - at.value < 600
    (info,) = result["ratelimit_rules_info"]
    assert info.labels == {"revision": first.revision}


async def test_failed_loads_are_not_the_last_good_one(tmp_path: Path) -> None:
    """While a file is bad the last good load is what it was."""
    rules = Asking(tmp_path, "domain: a\ndescriptors: []").rules
    before = rules.loaded
    (tmp_path / "0.yaml").write_text("domain: [")
    await rules.reload()

    assert rules.loaded == before


async def test_series_whose_labels_are_known_are_there_from_the_start(tmp_path: Path) -> None:
    """A rule's series begin at 0, before its first hit; those of callers' values when they come."""
    rules = """
domain: d
descriptors:
  - {key: one, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: seen, value_to_metric: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: seen, value: x, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: all, value: x, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}
"""
    asking = Asking(tmp_path, rules)
    sources = Sources(asking.stats, asking.health, lambda: asking.rules.snapshot)

    def over() -> dict[tuple[str, str], float]:
        result = {family.name: family.samples for family in Metrics(sources).collect()}
        samples = result["ratelimit_rule_over_limit"]
        assert {each.labels["domain"] for each in samples} == {"d"}
        return {(each.labels["rule"], each.labels["value"]): each.value for each in samples}

    known = {("one", ""): 0, ("free", ""): 0, ("seen=x", ""): 0, ("(override)", ""): 0}
    assert over() == known
    await asking.ask("one=1", domain="d")
    await asking.ask("seen=y", domain="d")
    assert over() == {**known, ("seen", "seen=y"): 0}


def test_reasons_in_the_code_are_known_at_the_start() -> None:
    """Each reason under which the code refuses requests or counts has a series at 0 at the start.

    Those that the code names beside what they are counted in are read from there.
    """
    sources = Sources(Stats(), Health(), lambda: Snapshot(1, {}), None, list)
    known = {
        family.name: {value for each in family.samples for value in each.labels.values()}
        for family in Metrics(sources).collect()
    }
    code = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    refusals = set(re.findall(r'BadRequestError\(\s*"(\w+)"', code))
    refusals |= set(re.findall(r'refusals\["(\w+)"\]', code))
    assert len(refusals) > 10
    assert refusals <= known["ratelimit_refused_requests"]
    for counted, name in (
        ("store_errors", "store_errors"),
        ("lost_give_backs", "lost_give_backs"),
        ("queued", "queued_requests"),
        ("decision_log", "decision_log_records"),
        ("http_closed", "http_closed_connections"),
        ("worker_ends", "worker_ends"),
        ("restarts", "restarts"),
        ("refused_connections", "refused_connections"),
        ("tls_reloads", "tls_reloads"),
        ("rule_loads", "rule_loads"),
    ):
        named = set(re.findall(rf'\b{counted}\["(\w+)"\]', code))
        assert named <= known[f"ratelimit_{name}"]
