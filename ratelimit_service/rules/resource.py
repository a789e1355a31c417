"""Rules as a management server sends them: read into the same nodes as YAML, and then the same.

A resource is kept as JSON with the keys of rule files. Here is what rule files do not have: keys
of ours that the server cannot send come from `metadata.ratelimit` of a descriptor, or from an
`overlay`. What keys mean is `schema`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import yaml

from ratelimit_service.observer import Tallies
from ratelimit_service.rules.language import LIMIT_KEYS
from ratelimit_service.rules.matchers.registry import keys as matcher_keys
from ratelimit_service.rules.overlay import Keys, Overlay
from ratelimit_service.rules.problem import did_you_mean, quoted
from ratelimit_service.rules.reader import Path, Reader, listed
from ratelimit_service.rules.schema import RuleFile, compiled

__all__ = ["parse_resource", "resource_bytes"]

_TAG = "tag:yaml.org,2002:"

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


def resource_bytes(version: str, values: dict[str, Any]) -> bytes:
    """A resource as it is kept: what a rule file would say, and the version it came with."""
    return json.dumps({"version": version, "rules": values}).encode()


def parse_resource(
    name: str, data: bytes, tallies: Callable[[str, str], Tallies], overlay: Overlay
) -> RuleFile:
    """Reads one resource; never raises for what is in it. `name` is the server's and its own."""
    kept = json.loads(data)
    reader = Reader(f"{name}@{kept['version']}")
    values = kept["rules"]
    nodes = _Nodes(reader, overlay, values["domain"])
    return compiled(name, reader, lambda: nodes.root(values), values["domain"], tallies)


class _Nodes:
    """Makes YAML's nodes of one resource."""

    def __init__(self, reader: Reader, overlay: Overlay, domain: str) -> None:
        self._reader = reader
        self._overlay = overlay
        self._domain = domain

    def root(self, values: dict[str, Any]) -> yaml.Node:
        pairs = [
            (_text("domain"), _text(values["domain"])),
            (_text("descriptors"), self._descriptors(values["descriptors"], ())),
        ]
        _put(pairs, self._overlay.of_domain(self._domain))
        return _mapping(pairs)

    def _descriptors(self, descriptors: Iterable[dict[str, Any]], above: Path) -> yaml.Node:
        return _sequence(self._descriptor(each, above) for each in descriptors)

    def _descriptor(self, values: dict[str, Any], above: Path) -> yaml.Node:
        key = values["key"]
        path = (*above, (key, values.get("value", "")))
        how = self._how_to_count(values, path)
        limit, beside = self._overlay.of_key(self._domain, key)
        pairs: _Pairs = []
        for name, value in values.items():
            if name == "descriptors":
                pairs.append((_text(name), self._descriptors(value, path)))
            elif name == "rate_limit":
                inside: _Pairs = [(_text(each), _node(of)) for each, of in value.items()]
                _put(inside, {each: how[each] for each in how if each not in _OF_THE_DESCRIPTOR})
                _put(inside, limit)
                pairs.append((_text(name), _mapping(inside)))
            elif name != "metadata" or value:
                pairs.append((_text(name), _node(value)))
        _put(pairs, {each: how[each] for each in how if each in _OF_THE_DESCRIPTOR})
        _put(pairs, beside)
        return _mapping(pairs)

    def _how_to_count(self, values: dict[str, Any], path: Path) -> Keys:
        """Takes our keys out of a descriptor's metadata, and says which cannot be ours."""
        metadata = values.get("metadata") or {}
        if _OURS not in metadata:
            return {}
        how = metadata[_OURS]
        values["metadata"] = {name: of for name, of in metadata.items() if name != _OURS}
        allowed = (*_HOW_TO_COUNT, *_OF_THE_DESCRIPTOR)
        nowhere = _text("")
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
                    f"{quoted(name)} is no key of metadata.{_OURS}: allowed are {listed(allowed)}"
                    f"{did_you_mean(name, allowed)}"
                )
                self._reader.report(nowhere, path, "unknown_key", message)
        return {name: (_text(name), _node(of)) for name, of in how.items() if name in allowed}


def _put(pairs: _Pairs, keys: Keys) -> None:
    """Sets keys, in place of those that are there."""
    if keys:
        pairs[:] = [pair for pair in pairs if pair[0].value not in keys]
        pairs += keys.values()


def _node(value: Any) -> yaml.Node:
    if isinstance(value, dict):
        return _mapping([(_text(name), _node(of)) for name, of in value.items()])
    if isinstance(value, list):
        return _sequence(map(_node, value))
    if isinstance(value, str):
        return _text(value)
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


def _text(text: str) -> yaml.Node:
    return yaml.ScalarNode(f"{_TAG}str", text)


def _sequence(nodes: Iterable[yaml.Node]) -> yaml.Node:
    return yaml.SequenceNode(f"{_TAG}seq", list(nodes))


def _mapping(pairs: _Pairs) -> yaml.Node:
    return yaml.MappingNode(f"{_TAG}map", pairs)
