"""Keys of ours for rules whose server cannot send them: a file that says where they belong.

It names domains and keys by pattern, and the keys to set on what matches; what a management
server sends cannot be changed otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import yaml

from ratelimit_service.rules.fields import Fields, document
from ratelimit_service.rules.language import LIMIT_KEYS
from ratelimit_service.rules.matchers.pattern import Pattern
from ratelimit_service.rules.problem import Problem
from ratelimit_service.rules.reader import ForeignMark, Reader, Unreadable

__all__ = ["NO_OVERLAY", "Keys", "Overlay", "parse_overlay"]

Keys = Mapping[str, tuple[yaml.Node, yaml.Node]]
"""Keys and their values, as they stand in a file, by name."""

_ROOT_KEYS = ("overlay",)
_BESIDE_THE_LIMIT = ("share_threshold", "group", "value_to_metric", "answer", "on_limit")
_ENTRY_KEYS = ("domain", "key", "rate_limit", *_BESIDE_THE_LIMIT, "shard_by")
_THE_SERVERS = ("unit", "window", "requests_per_unit", "unlimited", "name", "replaces")
_LIMIT_KEYS = tuple(name for name in LIMIT_KEYS if name not in _THE_SERVERS)
_LOCATIONS = dict.fromkeys(_LIMIT_KEYS, "inside rate_limit") | dict.fromkeys(
    _ENTRY_KEYS, "on an entry of overlay"
)


class _Entry(NamedTuple):
    domain: str
    key: str
    limit: Keys
    beside: Keys
    root: Keys


class Overlay:
    """Entries in their order: where several match, the last one that says a key counts."""

    def __init__(self, entries: tuple[_Entry, ...] = ()) -> None:
        self._entries = entries

    def of_domain(self, domain: str) -> Keys:
        """The keys for the top of a domain's rules."""
        keys: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for entry in self._entries:
            if entry.root and _matches(entry.domain, domain):
                keys |= entry.root
        return keys

    def of_key(self, domain: str, key: str) -> tuple[Keys, Keys]:
        """The keys for the limit of a descriptor with this key, and those beside the limit."""
        limit: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        beside: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for entry in self._entries:
            if _matches(entry.domain, domain) and _matches(entry.key, key):
                limit |= entry.limit
                beside |= entry.beside
        return limit, beside


NO_OVERLAY = Overlay()


def parse_overlay(name: str, data: bytes) -> tuple[Overlay, tuple[Problem, ...]]:
    """Reads an overlay, and everything that is wrong with it; never raises for what is in it."""
    reader = Reader(name)
    try:
        root = document(reader, reader.composed(data), _ROOT_KEYS, _LOCATIONS)
        entries = tuple(
            _entry(name, fields) for fields in root.items("overlay", _ENTRY_KEYS, deeper=False)
        )
    except Unreadable:
        entries = ()
    return Overlay(entries), tuple(reader.problems)


def _entry(name: str, fields: Fields) -> _Entry:
    limit: Keys = {}
    if fields.given("rate_limit"):
        inside = fields.mapping("rate_limit", _LIMIT_KEYS)
        limit = _keys(name, inside, _LIMIT_KEYS)
    beside = _keys(name, fields, _BESIDE_THE_LIMIT)
    root = _keys(name, fields, ("shard_by",))
    if not (limit or beside or root):
        fields.report("overlay", "this sets nothing: write rate_limit, or share_threshold, …")
    if root and fields.given("key"):
        message = "shard_by is of a whole domain: put it into an entry without key"
        fields.report("overlay", message, key="shard_by")
    return _Entry(fields.text("domain") or "*", fields.text("key") or "*", limit, beside, root)


def _keys(name: str, fields: Fields, wanted: tuple[str, ...]) -> Keys:
    keys = {}
    for key in wanted:
        if key in fields:
            value = _marked(name, fields.node(key))
            keys[key] = (_marked(name, fields.key_node(key)), value)
    return keys


def _marked(name: str, node: yaml.Node) -> yaml.Node:
    """The node, marked with the file in which it stands."""
    mark = node.start_mark
    if mark and not isinstance(mark, ForeignMark):
        node.start_mark = ForeignMark(name, mark.index, mark.line, mark.column, None, 0)
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _marked(name, item)
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for item in pair:
                _marked(name, item)
    return node


def _matches(pattern: str, text: str) -> bool:
    return Pattern.of(pattern).matches(text) if "*" in pattern else pattern == text
