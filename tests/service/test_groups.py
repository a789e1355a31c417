"""Networks as callers: `group` on a descriptor and in limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratelimit_service.model import Code, Grouping
from ratelimit_service.rules.dump import dump
from ratelimit_service.rules.explain import explain
from ratelimit_service.rules.tree import Snapshot
from tests.rules.test_match import carried, domain, matched_rule
from tests.service.asking import Asking, descriptor

ONE = "{unit: minute, requests_per_unit: 1}"
RULES = f"""
domain: edge
descriptors:
  - {{key: ip, group: {{ipv4: 24, ipv6: 64}}, value_to_metric: true, rate_limit: {ONE}}}
  - {{key: six, group: {{ipv6: 64}}, rate_limit: {ONE}}}
  - key: both
    rate_limits:
      - {{unit: minute, requests_per_unit: 2, group: {{ipv6: 64}}}}
      - {{unit: minute, requests_per_unit: 3, group: {{ipv6: 48}}}}
  - {{key: one, rate_limit: {{unit: minute, requests_per_unit: 1, group: {{ipv4: 16}}}}}}
  - key: tenant
    group: {{ipv4: 24}}
    descriptors:
      - {{key: user, rate_limit: {ONE}}}
  - {{key: exact, value: 10.1.2.0/24, group: {{ipv4: 24}}, rate_limit: {ONE}}}
  - {{key: exact, one_of: [10.1.3.0/24, x], group: {{ipv4: 24}}, rate_limit: {ONE}}}
  - {{key: exact, value: 10.1.*.0/24, group: {{ipv4: 24}}, rate_limit: {ONE}}}
  - {{key: exact, cidr: 10.0.0.0/8, group: {{ipv4: 16}}, rate_limit: {ONE}}}
  - {{key: exact, value: 10.1.2.9, rate_limit: {{unlimited: true}}}}
"""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("10.1.2.3", "10.1.2.0/24"),
        ("::ffff:10.1.2.3", "10.1.2.0/24"),
        ("2001:DB8:0:0:1::2", "2001:db8::/64"),
        ("2001:db8:0:1::", "2001:db8:0:1::/64"),
        ("::", "::/64"),
        ("10.1.2.0/24", None),
        ("10.1.2.3:80", None),
        ("[::1]", None),
        ("fe80::1%eth0", None),
        ("", None),
        ("10.1.2.3\0", None),
        ("\u0661\u0660.1.2.3", None),
        ("\ud800", None),
    ],
)
def test_networks(value: str, text: str | None) -> None:
    """An address becomes its network, whatever way it is written; nothing else does."""
    assert Grouping(24, 64).of(value) == text


def test_whole_families() -> None:
    """A family without a number stays whole, and each address has one text."""
    assert Grouping(24).of("2001:DB8::0:1") == "2001:db8::1"
    assert Grouping(ipv6=64).of("::ffff:10.1.2.3") == "10.1.2.3"
    assert Grouping(0, 0).of("10.1.2.3") == "0.0.0.0/0"
    assert Grouping(0, 0).of("2001:db8::1") == "::/0"


async def told(asking: Asking, *asked: str) -> list[Code]:
    return [(await asking.ask(one)).code for one in asked]


async def test_a_network_is_one_caller(tmp_path: Path) -> None:
    """Addresses of one network share a counter, which nobody else can name."""
    ok, over = Code.OK, Code.OVER_LIMIT
    asking = Asking(tmp_path, RULES)

    assert await told(asking, "ip=10.1.2.3", "ip=10.1.2.77", "ip=::ffff:10.1.2.4") == [
        ok,
        over,
        over,
    ]
    assert await told(asking, "ip=10.1.3.3", "ip=10.1.2.0/24", "ip=10.1.2.0/24") == [ok, ok, over]
    assert await told(asking, "ip=2001:db8::1", "ip=2001:db8::ff:1") == [ok, over]
    assert await told(asking, "six=10.1.2.3", "six=10.1.2.4", "six=::ffff:10.1.2.3") == [
        ok,
        ok,
        over,
    ]
    assert await told(asking, "tenant=1.2.3.4,user=a", "tenant=1.2.3.5,user=a") == [ok, over]
    assert await told(asking, "tenant=1.2.3.5,user=b") == [ok]
    shown = asking.tally("ip", "ip=10.1.2.0/24")
    assert (shown.within, shown.over) == (2, 3)  # metrics show the same text for what reads alike


async def test_several_prefixes(tmp_path: Path) -> None:
    """Each limit counts its own networks, also of a family that both leave whole."""
    ok, over = Code.OK, Code.OVER_LIMIT
    asking = Asking(tmp_path, RULES)

    one, same, other, third = (
        "both=2001:db8::1",
        "both=2001:db8::2",
        "both=2001:db8:0:1::",
        "both=2001:db8:0:2::",
    )
    assert await told(asking, one, same, one, other, third) == [ok, ok, over, ok, over]
    assert await told(asking, "both=10.0.0.1", "both=10.0.0.1", "both=10.0.0.1") == [ok, ok, over]
    assert await told(asking, "one=10.0.0.1", "one=10.0.9.9", "one=10.1.0.1") == [ok, over, ok]


async def test_what_is_no_address(tmp_path: Path) -> None:
    """It is counted as it stands, by itself, and in a metric, each time that it comes."""
    ok, over = Code.OK, Code.OVER_LIMIT
    asking = Asking(tmp_path, RULES)

    assert await told(asking, *["ip=x"] * 4, "ip=y", "ip=1.2.3.4") == [ok, over, over, over, ok, ok]
    assert asking.stats.not_addresses == 5
    assert await told(asking, *["one=x"] * 3, "both=x", "tenant=x,user=a") == [
        ok,
        over,
        over,
        ok,
        ok,
    ]
    assert asking.stats.not_addresses == 10
    assert await told(asking, "one=10.0.0.1", "one=10.0.0.0/16") == [ok, ok]
    assert asking.stats.not_addresses == 11


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ("exact=10.1.2.3", "exact=10.1.2.0/24"),
        ("exact=10.1.2.9", "exact=10.1.2.9"),
        ("exact=10.1.3.9", "exact=one_of(10.1.3.0/24,x)"),
        ("exact=x", "exact=one_of(10.1.3.0/24,x)"),
        ("exact=10.1.4.9", "exact=cidr(10.0.0.0/8)"),
        ("exact=10.1.4.0/24", "exact=10.1.*.0/24"),
        ("exact=11.1.4.9", None),
    ],
)
def test_grouped_before_matching(asked: str, rule: str | None) -> None:
    """A descriptor with a group matches the network that an address is in; the order is the same.

    Others of its level match the address itself, so there can be exceptions.
    """
    tree = domain(RULES)

    assert matched_rule(tree, asked) == rule
    assert matched_rule(carried(tree), asked) == rule


def test_told() -> None:
    """Explain names the network, and /rlconfig the prefix lengths."""
    snapshot = Snapshot(1, {"edge": domain(RULES)})

    told = str(explain(snapshot, "edge", descriptor("ip=10.1.2.3")))
    assert "ip=10.1.2.3: grouped as 10.1.2.0/24, the key alone matches: ip at f:4:5" in told
    told = str(explain(snapshot, "edge", descriptor("ip=x")))
    assert "ip=x: it is no address, so it is counted as it stands, and the key alone" in told
    told = str(explain(snapshot, "edge", descriptor("both=10.1.2.3")))
    assert "2 per minute, addresses grouped by {ipv6: 64}; 3 per minute" in told
    lines = list(dump(snapshot))
    assert "group: ip {ipv4: 24, ipv6: 64}" in lines[0]
    assert "group: {ipv6: 64}, and unit=MINUTE requests_per_unit=3" in lines[2]
