"""Rules that are built upon what was built before are the same as rules that are built anew."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service.observability.stats import Tallies
from ratelimit_service.rules.build import BuildCache, Built, Version, build
from ratelimit_service.rules.child import Builder
from ratelimit_service.rules.records import Assembly, packed
from ratelimit_service.rules.resource import resource_bytes
from ratelimit_service.rules.tree import Domain, Level, Rule
from ratelimit_service.wire.discovery import TYPE_URL, RateLimitConfig, decode_resource
from tests.examples import up_to
from tests.servers.process import has_ended, running

Resource = dict[str, Any]

LIMITS = st.sampled_from(
    [
        {"unit": "DAY", "requests_per_unit": 1},
        {"unit": "HOUR", "requests_per_unit": 2, "name": "n"},
        {"unlimited": True},
        {"unit": "HOUR", "requests_per_unit": 3, "replaces": [{"name": "n"}]},
        {"requests_per_unit": 1},
    ]
)
METADATA = st.sampled_from(
    [
        {"x": True},
        {"x": 1},
        {"ratelimit": {"algorithm": "token_bucket", "burst": 9}},
        {"ratelimit": {"algorithm": "nothing"}},
        {"ratelimit": {"failure_policy": "closed"}},
        {"ratelimit": {"prefix": "/api"}},
    ]
)


def described(below: st.SearchStrategy[list[Resource]]) -> st.SearchStrategy[Resource]:
    return st.fixed_dictionaries(
        {"key": st.sampled_from(["a", "b", "c", "d", ""])},
        optional={
            "value": st.sampled_from(["v", "w", "x*", "*"]),
            "rate_limit": LIMITS,
            "shadow_mode": st.just(True),
            "metadata": METADATA,
            "descriptors": below,
        },
    )


LISTS: st.SearchStrategy[list[Resource]] = st.recursive(
    st.just([]), lambda below: st.lists(described(below), max_size=5), max_leaves=8
)
SNAPSHOTS = st.lists(
    st.fixed_dictionaries({}, optional={"one": LISTS, "two": LISTS, "more": LISTS}),
    min_size=2,
    max_size=5,
)
OVERLAYS = st.sampled_from(
    ["", "overlay:\n  - {key: a, rate_limit: {algorithm: token_bucket}}\n", "overlay: 5\n"]
)


def resource(version: int, name: str, descriptors: list[Resource]) -> bytes:
    """A resource as it comes from the client's process."""
    config = {"name": name, "domain": "one" if name == "more" else name, "descriptors": descriptors}
    data = json_format.ParseDict(config, RateLimitConfig()).SerializeToString()
    return resource_bytes(str(version), json.dumps(decode_resource(TYPE_URL, data)[1]).encode())


class Follower:
    """A process that is sent what has changed."""

    def __init__(self) -> None:
        self.domains: Mapping[str, Domain] = {}

    def take(self, parts: list[bytes]) -> None:
        assembly = Assembly(Tallies, self.domains)
        for part in parts:
            assembly.add(part)
        self.domains = assembly.domains


@given(SNAPSHOTS, OVERLAYS, st.booleans())
@settings(max_examples=up_to(25), deadline=None)
def test_the_same_as_built_anew(
    snapshots: list[dict[str, list[Resource]]], overlay: str, strict: bool
) -> None:
    """After any snapshots, rules and problems are those of the last one; so they are elsewhere."""
    cache, before = BuildCache(), dict[str, Domain]()
    follower, sent = Follower(), list[list[bytes]]()
    good: dict[str, bytes] = {}
    for number, snapshot in enumerate(snapshots):
        versions = [
            Version(name, resource(number, name, descriptors), good.get(name), language="resource")
            for name, descriptors in snapshot.items()
        ]
        good = {name: data for name, data in good.items() if name in snapshot}
        if overlay and number % 2:
            versions.append(Version("o.yaml", overlay.encode(), None, language="overlay"))
        built = build(versions, Tallies, strict=strict, cache=cache)
        anew = build(versions, Tallies, strict=strict)
        sent.append(list(packed(built.domains.values(), before)))
        follower.take(sent[-1])
        before = built.domains
        for report in built.files:
            if not report.bad:
                good |= {each.name: each.newest for each in versions if each.name == report.name}

        assert unversioned_reports(built) == unversioned_reports(anew)
        assert shown(built.domains) == shown(anew.domains)
        assert shown(follower.domains) == shown(anew.domains)

    late = Follower()
    for parts in sent:
        late.take(parts)
    assert shown(late.domains) == shown(follower.domains)


def test_only_what_changed_is_another() -> None:
    """Where a few of many descriptors change, all other rules stay the same objects."""
    every: list[Resource] = [
        {"key": f"k{n}", "rate_limit": {"unit": "DAY", "requests_per_unit": n}} for n in range(1000)
    ]
    every.append({"key": "deep", "descriptors": every[:500]})
    cache, follower = BuildCache(), Follower()
    first = build(
        [Version("one", resource(1, "one", every), None, language="resource")],
        Tallies,
        strict=False,
        cache=cache,
    )
    follower.take(list(packed(first.domains.values())))
    old = {rule.path: rule for rule in follower.domains["one"].rules}
    every[7] = {"key": "k7", "rate_limit": {"unit": "DAY", "requests_per_unit": 9999}}
    every[-1] = {"key": "deep", "descriptors": [every[8], *every[1:7], every[7]]}
    second = build(
        [Version("one", resource(2, "one", every), None, language="resource")],
        Tallies,
        strict=False,
        cache=cache,
    )
    parts = list(packed(second.domains.values(), first.domains))
    follower.take(parts)

    new = {rule.path: rule for rule in follower.domains["one"].rules}
    assert {path for path, rule in new.items() if old.get(path) is not rule} == {"k7", "deep > k7"}
    assert len(old.keys() - new.keys()) == 500 - 8
    assert sum(map(len, parts)) < 8_000
    assert {str(rule.source) for rule in new.values()} == {"one@1", "one@2"}


def test_another_version_of_the_same_is_nothing() -> None:
    """A snapshot that differs in its version alone changes no rule, and no digest."""
    descriptors = [{"key": "a", "rate_limit": {"unit": "DAY", "requests_per_unit": 1}}]
    cache = BuildCache()
    first, second = (
        build(
            [Version("one", resource(number, "one", descriptors), None, language="resource")],
            Tallies,
            strict=False,
            cache=cache,
        )
        for number in (1, 2)
    )

    assert second.domains["one"] is first.domains["one"]
    assert second.files == first.files


async def test_process_that_stays() -> None:
    """It goes on with what it has built; one that was killed is replaced, and begins anew."""
    descriptors = [{"key": "a", "rate_limit": {"unit": "DAY", "requests_per_unit": 1}}]
    builder = Builder(stays=True)

    async def rule(version: int, key: str) -> Rule:
        every = [*descriptors, {**descriptors[0], "key": key}]
        versions = [Version("one", resource(version, "one", every), None, language="resource")]
        built = await builder.build(versions, Tallies, strict=False)
        assert [each.path for each in built.domains["one"].rules] == ["a", key]
        return next(built.domains["one"].rules)

    first = await rule(1, "b")
    assert await rule(2, "c") is first
    (process,) = running("ratelimit_service.rules.child")
    os.kill(process, signal.SIGKILL)
    while not has_ended(process):  # so that the next build finds it
        await asyncio.sleep(0)
    third = await rule(3, "d")
    assert third is not first
    assert str(third.source) == "one@3"
    builder.end()
    await asyncio.sleep(0)  # its pipe is closed


def unversioned_reports(built: Built) -> object:
    """What is said of files, without the versions of a management server."""
    return unversioned(repr(built._replace(domains={})))


def unversioned(text: str) -> str:
    return re.sub(r"@\d+", "@", text)


def shown(domains: Mapping[str, Domain]) -> list[object]:
    """All that domains say, and how they are looked up, without versions."""
    return [
        (name, each.shard_by, each.policies, each.times is None, *_level(each.root))
        for name, each in domains.items()
    ]


def _level(level: Level) -> Iterator[object]:
    for node in level.nodes:
        rule = node.rule
        yield node.key, node.value, repr(node.matcher and node.matcher.name), node.share_threshold
        yield node.value_to_metric, node.grouping, node.valid_until, unversioned(str(node.source))
        if rule is not None:
            yield rule.path, rule.limits, rule.names, rule.replaces, rule.shadow_mode
            yield rule.failure_policy, repr(rule.metadata), unversioned(str(rule.source))
            yield rule.tallies.domain, rule.tallies.path, rule.answer, rule.enqueue
        if node.children is not None:
            yield list(_level(node.children))
    looked_up = [
        level.exact[node.key].get(node.value) if node.key in level.exact else None
        for node in level.nodes
    ]
    yield [
        matched is not None and matched.node is node
        for matched, node in zip(looked_up, level.nodes, strict=True)
    ]
    yield sorted(level.matching), sorted(level.default)
