"""Rules as a management server sends them: read into the same nodes as YAML, and then the same.

A resource is kept as JSON with the keys of rule files. Here is what rule files do not have: keys
of ours that the server cannot send come from `metadata.ratelimit` of a descriptor, or from an
`overlay`. What keys mean is `schema`'s business. Descriptors that say what they said before are not
read again: their rules stay the same objects, and name the version that they came with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import yaml

from ratelimit_service.observability.stats import Tallies
from ratelimit_service.rules.language import LIMIT_KEYS
from ratelimit_service.rules.matchers.registry import keys as matcher_keys
from ratelimit_service.rules.overlay import NO_OVERLAY, Keys, Overlay
from ratelimit_service.rules.problem import allowed_are, listed, quoted
from ratelimit_service.rules.reader import Path, Reader, ReadNode
from ratelimit_service.rules.schema import RuleFile, alike, compiled

__all__ = ["DescriptorCache", "content_of", "parse_resource", "resource_bytes"]

_TAG = "tag:yaml.org,2002:"
_MAP = f"{_TAG}map"

_OURS = "ratelimit"
"""The key of a descriptor's metadata below which it says how to count."""

_NOT_HOW = (
    "unit",
    "window",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "failure_policy",
)
_TAKES = tuple(key for key in matcher_keys() if key != "value")
_OF_THE_DESCRIPTOR = ("share_threshold", "group", "valid_until", *_TAKES)
_HOW_TO_COUNT = tuple(
    name for name in LIMIT_KEYS if name not in _NOT_HOW and name not in _OF_THE_DESCRIPTOR
)

_Pairs = list[tuple[yaml.Node, yaml.Node]]

_MOST_SCALARS = 4_096
"""Texts and numbers whose nodes are remembered: most stand in many descriptors."""

_RULES = b', "rules": '
"""What stands before the rules in a resource as it is kept: a version in JSON never says this."""


class _ReadDescriptor(NamedTuple):
    """A descriptor as it was read: its text without key and value, and what was made of it."""

    text: str
    node: ReadNode
    below: _Level


_Level = dict[tuple[str, str], _ReadDescriptor]
"""Descriptors by key and value."""


class DescriptorCache:
    """The descriptors of one resource as they were read last, for the next reading."""

    def __init__(self) -> None:
        self.level: _Level = {}


def resource_bytes(version: str, rules: bytes) -> bytes:
    """A resource as it is kept: its version, and what a rule file would say, in JSON."""
    return b'{"version": ' + json.dumps(version).encode() + _RULES + rules + b"}"


def content_of(data: bytes) -> bytes:
    """What a resource says, without the version that it came with."""
    return data.partition(_RULES)[2]


def parse_resource(
    name: str,
    data: bytes,
    tallies: Callable[[str, str], Tallies],
    overlay: Overlay,
    cache: DescriptorCache | None = None,
) -> RuleFile:
    """Reads one resource; never raises for what is in it. `name` is the server's and its own.

    Of `cache` is taken what has not changed, if it was read with the same overlay; it is renewed.
    """
    resource = json.loads(data)
    reader = Reader(f"{name}@{resource['version']}")
    values = resource["rules"]
    nodes = _Nodes(reader, overlay, values["domain"])
    former = cache.level if cache is not None else {}
    file = compiled(name, reader, lambda: nodes.root(values, former), values["domain"], tallies)
    if cache is not None:
        cache.level = nodes.cacheable()
    return file


class _Nodes:
    """Makes YAML's nodes of one resource."""

    def __init__(self, reader: Reader, overlay: Overlay, domain: str) -> None:
        self._reader = reader
        self._overlay = overlay
        self._domain = domain
        self._level: _Level = {}
        self._made: list[ReadNode] = []
        self._first: dict[tuple[str, bool], ReadNode] = {}
        """The first descriptor of each text, with or without a value."""

    def root(self, values: dict[str, Any], former: _Level) -> yaml.Node:
        """All of it; what is still the same is taken out of `former`."""
        descriptors = self._descriptors(values["descriptors"], (), former, self._level)
        pairs = [
            (_scalar("domain"), _scalar(values["domain"])),
            (_scalar("descriptors"), _sequence(descriptors)),
        ]
        _put(pairs, self._overlay.of_domain(self._domain))
        return _mapping(pairs)

    def cacheable(self) -> _Level:
        """The descriptors, when they have been read: of each is kept only what names it."""
        for node in self._made:
            node.value = [pair for pair in node.value if pair[0].value in {"key", "value"}]
        return self._level

    def _descriptors(
        self, every: Sequence[dict[str, Any]], above: Path, former: _Level, level: _Level
    ) -> Collection[yaml.Node]:
        """The nodes of descriptors, each made when those before it have been read."""
        return _LazyNodes(
            len(every), (self._descriptor(each, above, former, level) for each in every)
        )

    def _descriptor(
        self, values: dict[str, Any], above: Path, former: _Level, level: _Level
    ) -> ReadNode:
        entry = values.pop("key"), values.pop("value", "")
        text = repr(values)  # tells True from 1.0, as `==` does not
        read = former.pop(entry, None)  # of two that are alike one is read, and refused
        if read is None or read.text != text or read.node.result is None:
            below: _Level = {}
            node = self._like_another(entry, text)
            if node is None:
                node = self._anew(entry, values, (*above, entry), read.below if read else {}, below)
                self._first.setdefault((text, bool(entry[1])), node)
                self._made.append(node)
            read = _ReadDescriptor(text, node, below)
        level[entry] = read
        return read.node

    def _like_another(self, entry: tuple[str, str], text: str) -> ReadNode | None:
        """A node for a descriptor that differs from one before in key or value alone."""
        key, value = entry
        first = self._first.get((text, bool(value)))
        if first is None or first.result is None or not key or "*" in value:
            return None
        if self._overlay is not NO_OVERLAY or not alike(first.result):
            return None
        node = ReadNode(_MAP, _named(entry))
        node.like, node.visited = first.result, first.visited
        return node

    def _anew(
        self,
        entry: tuple[str, str],
        values: dict[str, Any],
        path: Path,
        former: _Level,
        level: _Level,
    ) -> ReadNode:
        problems = len(self._reader.problems)
        how = self._how_to_count(values, path)
        limit, beside = self._overlay.of_key(self._domain, entry[0])
        pairs = _named(entry)
        for name, value in values.items():
            if name == "descriptors":
                descriptors = self._descriptors(value, path, former, level)
                pairs.append((_scalar(name), _sequence(descriptors)))
            elif name == "rate_limit":
                inside: _Pairs = [(_scalar(each), _node(of)) for each, of in value.items()]
                _put(inside, {each: how[each] for each in how if each not in _OF_THE_DESCRIPTOR})
                _put(inside, limit)
                pairs.append((_scalar(name), _mapping(inside)))
            elif name != "metadata" or value:
                pairs.append((_scalar(name), _node(value)))
        _put(pairs, {each: how[each] for each in how if each in _OF_THE_DESCRIPTOR})
        _put(pairs, beside)
        node = ReadNode(_MAP, pairs)
        node.keeps = len(self._reader.problems) == problems
        return node

    def _how_to_count(self, values: dict[str, Any], path: Path) -> Keys:
        """Takes our keys out of a descriptor's metadata, and says which cannot be ours."""
        metadata = values.get("metadata") or {}
        if _OURS not in metadata:
            return {}
        how = metadata[_OURS]
        values["metadata"] = {name: of for name, of in metadata.items() if name != _OURS}
        allowed = (*_HOW_TO_COUNT, *_OF_THE_DESCRIPTOR)
        nowhere = _scalar("")
        if not isinstance(how, dict):
            message = f"metadata.{_OURS} must be a mapping of {listed(allowed)}"
            self._reader.report(nowhere, path, "type", message)
            return {}
        for name in how:
            if name in _HOW_TO_COUNT and "rate_limit" not in values:
                message = (
                    f"{name} in metadata.{_OURS} does nothing on a descriptor without rate_limit"
                )
                self._reader.report(nowhere, path, "no_effect", message, tolerated=True)
            if name not in allowed:
                message = (
                    f"{quoted(name)} is no key of metadata.{_OURS}: {allowed_are(name, allowed)}"
                )
                self._reader.report(nowhere, path, "unknown_key", message)
        return {name: (_scalar(name), _node(of)) for name, of in how.items() if name in allowed}


class _LazyNodes(Collection[yaml.Node]):
    """Nodes of which is known how many there are. They can be walked through once."""

    def __init__(self, count: int, nodes: Iterator[yaml.Node]) -> None:
        self._count = count
        self._nodes = nodes

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[yaml.Node]:
        return self._nodes

    def __contains__(self, node: object) -> bool:
        raise NotImplementedError


def _named(entry: tuple[str, str]) -> _Pairs:
    """What of a descriptor names it."""
    key, value = entry
    pairs = [(_scalar("key"), _scalar(key))]
    return [*pairs, (_scalar("value"), _scalar(value))] if value else pairs


def _put(pairs: _Pairs, keys: Keys) -> None:
    """Sets keys, in place of those that are there."""
    if keys:
        pairs[:] = [pair for pair in pairs if pair[0].value not in keys]
        pairs += keys.values()


def _node(value: Any) -> yaml.Node:
    if isinstance(value, dict):
        return _mapping([(_scalar(name), _node(of)) for name, of in value.items()])
    if isinstance(value, list):
        return _sequence(list(map(_node, value)))
    return _scalar(value)


@lru_cache(_MOST_SCALARS, typed=True)
def _scalar(value: str | float | None) -> yaml.Node:
    """The node of a text, number, boolean, or of nothing. It has no place, so all may share it."""
    if isinstance(value, str):
        return yaml.ScalarNode(f"{_TAG}str", value)
    if value is None:
        return yaml.ScalarNode(f"{_TAG}null", "null")
    if isinstance(value, bool):
        return yaml.ScalarNode(f"{_TAG}bool", str(value).lower())
    if isinstance(value, float) and not value.is_integer():
        return yaml.ScalarNode(f"{_TAG}float", _float(value))
    return yaml.ScalarNode(f"{_TAG}int", str(int(value)))


def _float(value: float) -> str:
    """As YAML writes it."""
    text = repr(value)
    return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(text, text)


def _sequence(nodes: Collection[yaml.Node]) -> yaml.Node:
    return yaml.SequenceNode(f"{_TAG}seq", nodes)


def _mapping(pairs: _Pairs) -> yaml.Node:
    return yaml.MappingNode(_MAP, pairs)
