"""`one_of` and `cidr`: which values they take, what goes before what, and how they are counted."""

from __future__ import annotations

import random
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.model import Code, IPAddress, Network, address_of
from ratelimit_service.rules.dump import dump
from ratelimit_service.rules.explain import explain
from ratelimit_service.rules.match import find
from ratelimit_service.rules.matchers.cidr import Networks
from ratelimit_service.rules.paths import parse_path
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Level, Snapshot
from tests.rules.test_match import LIMIT, carried, domain, matched_rule
from tests.service.asking import Asking, descriptor

RULES = f"""
domain: edge
descriptors:
  - {{key: ip, {LIMIT}}}
  - {{key: ip, value: 10.*, {LIMIT}}}
  - {{key: ip, cidr: 10.0.0.0/8, share_threshold: true, {LIMIT}}}
  - {{key: ip, cidr: [10.1.0.0/16, "2001:db8::/32"], {LIMIT}}}
  - {{key: ip, cidr: 10.1.2.0/23, {LIMIT}}}
  - {{key: ip, cidr: "2001:db8:0:1::/64", {LIMIT}}}
  - {{key: ip, value: 10.1.2.4, {LIMIT}}}
  - {{key: ip, one_of: [10.1.2.5, odd, "a, b", c], share_threshold: true, {LIMIT}}}
  - {{key: plan, one_of: [free, trial], {LIMIT}}}
  - {{key: plan, value: f*, {LIMIT}}}
  - {{key: long, one_of: [e, d, c, b, a], {LIMIT}}}
"""


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("ip=10.9.9.9", "ip=cidr(10.0.0.0/8)"),
        ("ip=10.1.4.0", "ip=cidr(10.1.0.0/16,2001:db8::/32)"),
        ("ip=10.1.3.255", "ip=cidr(10.1.2.0/23)"),
        ("ip=::ffff:10.1.3.255", "ip=cidr(10.1.2.0/23)"),
        ("ip=::ffff:a01:3ff", "ip=cidr(10.1.2.0/23)"),
        ("ip=10.1.2.4", "ip=10.1.2.4"),
        ("ip=10.*", "ip=10.*"),
        ("ip=10.1.2", "ip=10.*"),
        ("ip=10.1.2.3:80", "ip=10.*"),
        ("ip=010.1.2.3", "ip"),
        ("ip=2001:DB8:0:1::7", "ip=cidr(2001:db8:0:1::/64)"),
        ("ip=2001:db8:0:2::7", "ip=cidr(10.1.0.0/16,2001:db8::/32)"),
        ("ip=2001:db9::", "ip"),
        ("ip=::10.1.2.3", "ip"),
        ("ip=fe80::1%eth0", "ip"),
        ("ip=", "ip"),
        ("plan=free", "plan=one_of(free,trial)"),
        ("plan=frei", "plan=f*"),
        ("plan=", None),
    ],
)
def test_order(text: str, rule: str | None) -> None:
    """Exact values and lists first, then the smallest network, then patterns, then the key alone.

    It is the same after the way to a worker.
    """
    tree = domain(RULES)

    assert matched_rule(tree, text) == rule
    assert matched_rule(carried(tree), text) == rule


def test_names() -> None:
    """Each rule has a path of its own, whatever stands in its list, and it can be taken apart."""
    paths = [rule.path for rule in domain(RULES).rules]

    assert len(set(paths)) == len(paths)
    assert [len(parse_path(path)) for path in paths] == [1] * len(paths)
    other = domain(f"domain: edge\ndescriptors: [{{key: long, one_of: [a, b, c, d, f], {LIMIT}}}]")
    assert not {rule.path for rule in other.rules} & set(paths)


async def test_decisions(tmp_path: Path) -> None:
    """Each value has a counter of its own, unless they share one."""
    asking = Asking(tmp_path, RULES)

    asked = {
        "ip=10.9.0.1": Code.OK,
        "ip=10.8.0.1": Code.OVER_LIMIT,  # shared
        "ip=10.1.9.1": Code.OK,
        "ip=10.1.9.2": Code.OK,
        "ip=odd": Code.OK,
        "ip=c": Code.OVER_LIMIT,
        "plan=free": Code.OK,
        "plan=trial": Code.OK,
    }

    assert {one: (await asking.ask(one)).code for one in asked} == asked
    assert (await asking.ask("ip=10.1.9.1")).code is Code.OVER_LIMIT


def test_told() -> None:
    """Explain says which network or list was taken, and why not the others."""
    snapshot = Snapshot(1, {"edge": domain(RULES)})
    shown = str(explain(snapshot, "edge", descriptor("ip=10.1.2.9")))

    assert "ip=10.1.2.9: the network matches: ip=cidr(10.1.2.0/23) at f:8:5" in shown
    assert "ip=cidr(10.0.0.0/8) at f:6:5: its network matches too, but a smaller network" in shown
    assert "passed over ip=10.* at f:5:5: its pattern matches too, but a network goes" in shown
    shown = str(explain(snapshot, "edge", descriptor("plan=free")))
    assert "plan=free: the list matches: plan=one_of(free,trial) at f:12:5" in shown
    assert "its pattern matches too, but another has exactly this value" in shown
    lines = list(dump(snapshot))
    assert any(line.startswith("edge.ip_cidr(10.1.2.0/23): unit=DAY") for line in lines)
    assert any(line.startswith("edge.plan_one_of(free,trial): unit=DAY") for line in lines)


def test_files_cannot_share_a_value() -> None:
    """A value or network that two descriptors take is a problem in one file and in several."""
    text = f"domain: edge\ndescriptors: [{{key: a, @, {LIMIT}}}, {{key: a, $, {LIMIT}}}]"
    for one, other in (
        ("value: x", "one_of: [y, x]"),
        ("one_of: [y, x]", "one_of: [x]"),
        ("cidr: 10.0.0.0/8", "cidr: [11.0.0.0/8, 10.0.0.0/8]"),
    ):
        file = parse("f", text.replace("@", one).replace("$", other).encode())
        assert [problem.kind for problem in file.problems] == ["duplicate"]


PREFIX = (
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 32))
    | st.tuples(st.integers(2**125, 2**126), st.integers(0, 128))
    | st.tuples(st.integers(2**128 - 2**66, 2**128 - 1), st.integers(60, 128))
)


@given(st.lists(PREFIX, min_size=1, max_size=12), st.integers(0, 2**20), st.data())
def test_longest_prefix(prefixes: list[tuple[int, int]], step: int, data: st.DataObject) -> None:
    """Of all networks that an address is in, the one with the longest prefix is taken."""
    networks = {ip_network((number, length), strict=False) for number, length in prefixes}
    listed = ", ".join(f'{{key: ip, cidr: "{each}"}}' for each in networks)
    file = parse("f", f"domain: edge\ndescriptors: [{listed}]".encode())
    assert not file.problems
    near = ip_address(data.draw(st.sampled_from(prefixes))[0] ^ step % 7)
    holding = [each for each in networks if near.version == each.version and near in each]

    node = find(Level.of(file.nodes), descriptor(f"ip={near}").entries[0])

    best = max(holding, key=lambda each: each.prefixlen, default=None)
    assert (node.matcher and node.matcher.text if node else None) == (best and str(best))


@pytest.mark.parametrize("bits", [32, 128])
def test_many_networks(bits: int) -> None:
    """Of thousands of networks, one within another, all that an address is in are found in order.

    A network that stands there twice goes to the first.
    """
    chance = random.Random(bits)
    index, asked = Networks.index(), []
    every: dict[Network, int] = {}
    for position in range(1_500):
        length = chance.randint(0, bits)
        number = chance.getrandbits(bits) if position % 3 else 10 << (bits - 8) | position
        network = Network.around(IPAddress(4 if bits == 32 else 6, number), length)
        index.add(Networks((network,)), position)
        every.setdefault(network, position)
        asked += [network.address.number, network.address.number - 1, number]
    for _ in index.completing():
        pass

    for number in chance.sample(asked, 300):
        address = IPAddress(4 if bits == 32 else 6, max(number, 0))
        if address_of(address.text) != address:
            continue  # an IPv4 address, written as IPv6
        networks = sorted(
            (each for each in every if each.has(address)), key=lambda each: -each.length
        )
        assert list(index.all(address.text)) == [every[each] for each in networks]
        assert index.first(address.text) == (every[networks[0]] if networks else -1)
