"""What the log says that a reload has changed."""

from __future__ import annotations

from collections.abc import Mapping

from ratelimit_service.observability.stats import Tallies
from ratelimit_service.rule_lab.comparison import difference
from ratelimit_service.rules.build import Version, build
from ratelimit_service.rules.reload_log import ReloadDifference
from ratelimit_service.rules.tree import Domain


def domains(*texts: str) -> Mapping[str, Domain]:
    versions = [Version(str(number), text.encode(), None) for number, text in enumerate(texts)]
    return build(versions, Tallies, strict=True).domains


BEFORE = """
domain: api
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 7}}
  - {key: old, rate_limit: {unit: hour, requests_per_unit: 7}}
"""
AFTER = """
# moved, but the same in meaning
domain: api
descriptors:
  - {key: path, rate_limit: {requests_per_unit: 7, unit: hour}}
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: new, rate_limit: {unit: hour, requests_per_unit: 7}}
  - {key: free, rate_limit: {unlimited: true}}
"""


async def test_rules_that_come_and_go_and_change() -> None:
    """Rules are told apart by their meaning: order, lines and comments are nothing."""
    changes = await difference(domains(BEFORE), domains(AFTER))

    assert changes == ReloadDifference(2, 1, 1, ("api: user 5 → 20 per minute",))
    assert await difference(domains(BEFORE), domains(BEFORE)) == ReloadDifference(0, 0, 0, ())


async def test_whole_domains() -> None:
    """All rules of a domain that comes or goes have come or gone."""
    assert (await difference({}, domains(BEFORE))).added == 3
    assert (await difference(domains(BEFORE), {})).removed == 3


async def test_few_changes_are_told_in_words() -> None:
    """Of many changes only the first are told; what is more than a number is told on both sides."""
    rule = "  - {key: k%d, rate_limit: {unit: %s, requests_per_unit: %d}}\n"
    before, after = (
        "domain: api\ndescriptors:\n" + "".join(rule % (number, unit, 5) for number in range(9))
        for unit in ("minute", "hour")
    )
    changes = await difference(domains(before), domains(after))

    assert changes.changed == 9
    assert changes.examples[0] == "api: k0 5 per minute → 5 per hour"
    assert len(changes.examples) == 3
