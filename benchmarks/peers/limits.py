"""What the servers limit, in the language of each: the reference's YAML, and Limitador's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "CROWD",
    "FEW",
    "GATE",
    "LIMITS",
    "NEIGHBOUR",
    "Limited",
    "limitador_file",
    "reference_file",
    "write",
]

_SECONDS = {"hour": 3_600, "day": 86_400}


class Limited(NamedTuple):
    """One limit. Each value of the last key has a counter of its own.

    `place` is that of its descriptor in a request: Limitador's conditions name it.
    """

    domain: str
    place: int
    before: Sequence[tuple[str, str]]
    """Entries that come first, with their values."""
    key: str
    number: int
    unit: str


CROWD = 1_000
"""Calls that are in flight at once where exactness is looked at."""

GATE = Limited("exact", 0, (), "gate", CROWD // 2, "day")
NEIGHBOUR = Limited("exact", 1, (), "neighbour", CROWD + 200, "day")
FEW = Limited("few", 0, (), "user", 3, "day")
_CHECKOUT = (("route", "checkout"),)
LIMITS = (
    Limited("bench", 0, _CHECKOUT, "user", 200_000_000, "hour"),  # what `load` asks for
    Limited("bench", 1, _CHECKOUT, "tenant", 200_000_000, "hour"),
    GATE,
    NEIGHBOUR,
    FEW,
)


def reference_file(domain: str) -> str:
    """A rule file of envoyproxy/ratelimit, which this service reads as well."""
    lines = [f"domain: {domain}", "descriptors:"]
    begun: Sequence[tuple[str, str]] = ()
    for limit in LIMITS:
        if limit.domain != domain:
            continue
        indent = "  "
        for key, value in limit.before:
            if begun != limit.before:
                lines += [f"{indent}- key: {key}", f"{indent}  value: {value}"]
                lines += [f"{indent}  descriptors:"]
            indent += "    "
        begun = limit.before
        lines += [f"{indent}- key: {limit.key}", f"{indent}  rate_limit:"]
        lines += [f"{indent}    unit: {limit.unit}"]
        lines += [f"{indent}    requests_per_unit: {limit.number}"]
    return "\n".join([*lines, ""])


def limitador_file() -> str:
    """The same limits as Limitador's limits file; JSON is YAML."""
    return json.dumps(
        [
            {
                "namespace": limit.domain,
                "max_value": limit.number,
                "seconds": _SECONDS[limit.unit],
                "conditions": [
                    f"descriptors[{limit.place}].{key} == '{value}'" for key, value in limit.before
                ],
                "variables": [f"descriptors[{limit.place}].{limit.key}"],
            }
            for limit in LIMITS
        ],
        indent=1,
    )


def write(directory: Path) -> tuple[Path, Path]:
    """Writes both; returns the directory of rule files and the limits file."""
    rules, limits = directory / "ratelimit" / "config", directory / "limits.json"
    rules.mkdir(parents=True)
    for domain in {limit.domain for limit in LIMITS}:
        (rules / f"{domain}.yaml").write_text(reference_file(domain))
    limits.write_text(limitador_file())
    return rules, limits
