"""What envoyproxy/ratelimit calls its numbers, and which of ours these are.

What must not live here: formats, which are the exporters' business.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from ratelimit_service.eventloop.slices import slowly
from ratelimit_service.metrics.reading import Reading, Series
from ratelimit_service.observability.stats import OTHER, Tally
from ratelimit_service.rules.paths import parse_path

__all__ = [
    "PER_RULE",
    "RESPONSE_TIME",
    "SCALARS",
    "TOTAL_REQUESTS",
    "clean",
    "segments",
    "totals",
]

PER_RULE: dict[str, Callable[[Tally], int]] = {
    "total_hits": lambda tally: tally.hits,
    "over_limit": lambda tally: tally.over,
    "near_limit": lambda tally: tally.near,
    "within_limit": lambda tally: tally.within,
    "shadow_mode": lambda tally: tally.shadow,
}
"""What it counts of each rule."""

TOTAL_REQUESTS = "ratelimit_server.ShouldRateLimit.total_requests"
RESPONSE_TIME = "ratelimit_server.ShouldRateLimit.response_time"

_SERVICE = "ratelimit.service"

SCALARS: dict[str, Callable[[Reading], int]] = {
    f"{_SERVICE}.config_load_success": lambda reading: reading.stats.rule_loads["success"],
    f"{_SERVICE}.config_load_error": lambda reading: reading.stats.rule_loads["error"],
    f"{_SERVICE}.call.should_rate_limit.redis_error": lambda reading: (
        reading.stats.store_errors.total()
    ),
    f"{_SERVICE}.call.should_rate_limit.service_error": lambda reading: (
        reading.stats.refusals.total()
    ),
    f"{_SERVICE}.global_shadow_mode": lambda reading: reading.stats.global_shadow_mode,
    TOTAL_REQUESTS: lambda reading: (
        reading.stats.decisions.total() + reading.stats.refusals.total()
    ),
}
"""What it counts of the whole service."""

_OVERRIDE = "override"
"""It has a series for each override that callers bring; here they share one in each domain."""

_IPV4 = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")


def clean(text: str) -> str:
    """A part of a name: without what has a meaning in statsd, as the reference cleans it."""
    text = _IPV4.sub(lambda address: address[0].replace(".", "_"), text)
    return re.sub(r"[:|]|\s|[^ -~\u00a0-\U0010ffff]", "_", text)


def segments(series: Series) -> list[str]:
    """The levels of a rule: KEY_VALUE, or KEY where the rule has no value, or shows none."""
    if series.rule is None:
        return [_OVERRIDE]
    other = series.value == OTHER
    shown = iter(() if other else parse_path(series.value))
    levels = []
    for node in series.way:
        key, value = node.key, node.value
        showing = series.rule.detailed_metric or (
            node.value_to_metric and (node.matcher is not None or not node.value)
        )
        if showing and other:
            value = OTHER
        elif showing:
            key, value = next(shown, (key, value))
        levels.append(clean(f"{key}_{value}" if value else key))
    return levels


async def totals(reading: Reading) -> Counter[str]:
    """Everything that has counted, by its name in statsd; series of one name add up."""
    numbers: Counter[str] = Counter()
    async for series in slowly(reading.series):
        for name, number in _of_series(series):
            numbers[name] += number
    for name, read in SCALARS.items():
        if number := read(reading):
            numbers[name] = number
    return numbers


def _of_series(series: Series) -> Iterator[tuple[str, int]]:
    prefix = ".".join([f"{_SERVICE}.rate_limit", clean(series.domain), *segments(series)])
    for name, read in PER_RULE.items():
        if number := read(series.tally):
            yield f"{prefix}.{name}", number
