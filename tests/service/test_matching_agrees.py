"""Random rules with everything that can be matched, grouped, timed and shared: all tell the same.

What a service remembers, what one works out anew, what `explain` tells, and docs/rules.md read
word by word in a plain walk.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimit_service import wire
from ratelimit_service.algorithms import spec_of
from ratelimit_service.limiter import Planner
from ratelimit_service.model import MINUTE_US, Descriptor, Entry, Request
from ratelimit_service.rules.explain import explain
from ratelimit_service.rules.moment import at_moment
from ratelimit_service.service import CallbackBatch, Service
from ratelimit_service.stores.keys import CounterNames
from tests.examples import up_to
from tests.service.asking import Asking
from tests.service.test_remembered import Recording

START = 29_500_000
"""The first minute: 2026-02-02 at 02:40 UTC, a Monday."""
END = "2026-02-02T02:42Z"

TAKEN = (
    "",
    "value: a",
    "value: 10.1.2.3",
    "value: a*",
    "value: '*.3'",
    "one_of: [b, 10.1.2.4, '2001:db8::1']",
    "cidr: 10.0.0.0/8",
    "cidr: [10.1.0.0/16, '2001:db8::/32']",
    "cidr: 10.1.2.0/24",
    "regex: '[ab]+'",
    "regex: '10[.]1[.].*'",
)
BESIDE = (
    *("", "", "", ", value_to_metric: true", ", group: {ipv4: 24, ipv6: 64}"),
    *(f", valid_until: {END}", f", group: {{ipv6: 48}}, valid_until: {END}"),
)
LIMITS = (
    "{unit: minute, requests_per_unit: 1}",
    "{unit: hour, requests_per_unit: 1, group: {ipv4: 24}}",
    "{unit: hour, requests_per_unit: 1, group: {ipv4: 16, ipv6: 48}}",
    "{unit: day, requests_per_unit: 1, when: {from: '02:41', to: '02:43'}}",
    "{unit: day, requests_per_unit: 1, when: {from: '02:42', to: '02:41'}}",
    "{unit: week, requests_per_unit: 9, pool: p}",
    "{unit: week, requests_per_unit: 9, pool: p, reserve: 20%}",
)
VALUES = (
    *("a", "b", "ab", "", "x", "10.1.2.3", "10.1.2.4", "10.1.2.0/24", "10.9.9.3", "11.1.1.3"),
    *("::ffff:10.1.2.3", "2001:db8::1", "2001:DB8::2", "2001:db8:1::/48", "10.1.2.3:80"),
)


class Declared(NamedTuple):
    taken: str
    beside: str
    shared: bool
    limits: tuple[str, ...]
    below: tuple[Declared, ...]

    def text(self, key: str) -> str:
        keys = f"key: {key}" + (f", {self.taken}" if self.taken else "") + self.beside
        if self.shared:
            keys += ", share_threshold: true"
        if self.limits:
            keys += f", rate_limits: [{', '.join(self.limits)}]"
        if self.below:
            keys += f", descriptors: [{', '.join(each.text('l') for each in self.below)}]"
        return f"{{{keys}}}"


def declared(below: st.SearchStrategy[tuple[Declared, ...]]) -> st.SearchStrategy[Declared]:
    drawn = st.builds(
        Declared,
        st.sampled_from(TAKEN),
        st.sampled_from(BESIDE),
        st.booleans(),
        st.lists(
            st.sampled_from(LIMITS), max_size=3, unique_by=lambda one: "pool" in one or one
        ).map(tuple),
        below,
    )
    return drawn.map(_possible)


def _possible(one: Declared) -> Declared:
    """Without what means nothing there, which is a problem of the file."""
    several = one.taken and one.taken not in {"value: a", "value: 10.1.2.3"}
    shared = one.shared and bool(several)
    limits = one.limits
    if shared or "group" in one.beside:
        limits = tuple(limit for limit in limits if "group" not in limit)
    return one._replace(shared=shared, limits=limits)


def level(nodes: st.SearchStrategy[Declared], most: int) -> st.SearchStrategy[tuple[Declared, ...]]:
    return st.lists(nodes, max_size=most, unique_by=lambda one: one.taken).map(tuple)


TREES = level(declared(level(declared(st.just(())), 3)), 7)
ENTRIES = st.tuples(st.sampled_from(VALUES), st.none() | st.sampled_from(VALUES)).map(
    lambda pair: tuple(
        Entry(key, value) for key, value in zip("kl", pair, strict=True) if value is not None
    )
)
ASKED = st.lists(st.tuples(ENTRIES, st.integers(0, 3)), min_size=1, max_size=12)


def walked(tree: Sequence[Declared], entries: Sequence[Entry], minute: int) -> Declared | None:
    """The descriptor that entries end at, by docs/rules.md, without any index."""
    found = None
    for entry in entries:
        there = [one for one in tree if "valid_until" not in one.beside or minute < 2]
        found = _goes_to(there, entry.value)
        if found is None:
            return None
        tree = found.below
    return found


def _goes_to(nodes: Sequence[Declared], value: str) -> Declared | None:
    def seen(one: Declared) -> str:
        return grouped(value, one.beside)

    for plain in (True, False):  # who sees the value as it stands goes before
        for one in nodes:
            if plain != ("group" not in one.beside):
                continue
            kind, _, text = one.taken.partition(": ")
            pattern = kind == "value" and "*" in text
            if pattern and seen(one) == text.strip("'"):
                return one
            if (kind == "value" and not pattern and seen(one) == text) or (
                kind == "one_of" and seen(one) in {"b", "10.1.2.4", "2001:db8::1"}
            ):
                return one
    networks = [
        (ip_network(each).prefixlen, one)
        for one in nodes
        if one.taken.startswith("cidr")
        for each in re.findall(r"[0-9a-f.:]+/\d+", one.taken.partition(": ")[2])
        if (address := _address(value)) and address in ip_network(each)
    ]
    if networks:
        return max(networks, key=lambda each: each[0])[1]
    for one in nodes:
        kind, _, text = one.taken.partition(": ")
        text = text.strip("'")
        if kind == "value" and "*" in text:
            text = ".*".join(map(re.escape, text.split("*")))
        if kind in {"regex", "value"} and re.fullmatch(text, seen(one)):
            return one
    return next((one for one in nodes if not one.taken), None)


def _address(value: str) -> object:
    try:
        address = ip_address(value)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def grouped(value: str, beside: str) -> str:
    """What a descriptor's `group` makes of a value."""
    address = _address(value)
    if "group" not in beside or address is None:
        return value
    lengths = dict(re.findall(r"(ipv[46]): (\d+)", beside))
    length = lengths.get("ipv4" if "." in str(address) else "ipv6")
    return str(ip_network(f"{address}/{length}", strict=False)) if length else str(address)


@settings(max_examples=up_to(50), suppress_health_check=list(HealthCheck), deadline=None)
@given(TREES, ASKED)
def test_all_tell_the_same(
    tree: tuple[Declared, ...], asked: list[tuple[tuple[Entry, ...], int]]
) -> None:
    """Remembered, anew, explained, and by the documents: one rule, and the same counters."""
    with tempfile.TemporaryDirectory() as directory:
        text = f"domain: edge\ndescriptors: [{', '.join(each.text('k') for each in tree)}]"
        asking = Asking(Path(directory), text)
    assert "edge" in asking.rules.snapshot.domains, text
    snapshot = asking.rules.snapshot
    clock = [0]

    remembered = Recording()
    service = Service(lambda: snapshot, remembered, asking.settings, asking.stats, lambda: clock[0])
    for entries, minute in [*asked, *asked, *reversed(asked)]:
        clock[0] = (START + minute) * MINUTE_US
        request = Request("edge", (Descriptor(entries),))
        service.submit(CallbackBatch([wire.encode_request(request)], lambda _: None))
        (plan,) = Planner(asking.settings).plan(request, at_moment(snapshot, clock[0]))
        keys = [hit.key for hit in plan.hits]
        last = remembered.hits.pop() if remembered.hits else ()
        assert [hit.key for hit in last] == keys
        assert len(set(keys)) == len(keys)
        told = explain(at_moment(snapshot, clock[0]), "edge", Descriptor(entries))
        node = walked(tree, entries, minute)
        assert (told.rule is not None) == bool(node and node.limits), (text, entries, minute)
        if told.rule is None or node is None:
            assert not keys
            continue
        assert f"rate_limits: [{', '.join(node.limits)}]" in text
        assert len(told.rule.limits) == len(node.limits)
        holding = [
            limit
            for limit in told.rule.limits
            if limit.schedule is None or limit.schedule.holds(START + minute)
        ]
        by_hand = [one for one in node.limits if _holds(one, minute)]
        assert [limit.unit.name.lower() for limit in holding] == [
            one.split()[1].strip(",") for one in by_hand
        ]
        assert keys == [
            CounterNames("edge", spec_of(limit), None, limit).key(
                told.match.identity, told.match.shared
            )
            for limit in holding
        ]


def _holds(limit: str, minute: int) -> bool:
    if "'02:41', to: '02:43'" in limit:
        return minute in {1, 2}
    return "'02:42', to: '02:41'" not in limit or minute != 1
