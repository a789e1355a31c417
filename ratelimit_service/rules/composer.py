"""From the text of a YAML document to its nodes, in one pass: the only use of PyYAML's composer.

What must not live here: what nodes mean, and how problems are told (`reader`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import yaml

__all__ = ["Documents", "TooDeepError", "compose"]

_NULL = "tag:yaml.org,2002:null"
_TEXT = "tag:yaml.org,2002:str"
_MAPPING = "tag:yaml.org,2002:map"
_SEQUENCE = "tag:yaml.org,2002:seq"

_MAY_BE_OTHER = frozenset(yaml.CSafeLoader.yaml_implicit_resolvers)
"""What scalars begin with that may be something else than text; "" is what an empty one does."""

_MOST_KNOWN = 10_000
"""Texts whose tags are remembered."""


class TooDeepError(ValueError):
    """Collections are nested too deep; `event` begins the first one that is."""

    def __init__(self, event: yaml.Event) -> None:
        super().__init__("nested too deep")
        self.event = event


class Documents(NamedTuple):
    """The first document of a text, and the next that is not empty; None where there is none."""

    first: yaml.Node | None
    second: yaml.Node | None


def compose(text: str, most_deep: int) -> Documents:
    """Composes the first document, and looks for another.

    Raises yaml.YAMLError, and TooDeepError.
    """
    loader = _Loader(text, most_deep)
    try:
        first = loader.get_node() if loader.check_node() else None
        second = None
        while second is None and loader.check_node():
            second = _unless_empty(loader.get_node())
    except _TooDeep:
        raise TooDeepError(_too_deep(text, most_deep)) from None
    return Documents(first, second)


def _unless_empty(node: yaml.Node | None) -> yaml.Node | None:
    """A document that says something: charts leave some that are null, or only a comment."""
    return None if node is None or node.tag == _NULL else node


class _TooDeep(Exception):  # noqa: N818 -- it goes no further than this module
    """The loader has stopped."""


class _Loader(yaml.CSafeLoader):
    """Stops before what is nested too deep overflows the composer's stack, which is C's.

    The composer calls these methods for every node, and lets nodes have places of their own.
    """

    def __init__(self, text: str, most_deep: int) -> None:
        super().__init__(text)
        self._most_deep = most_deep
        self._open: dict[object, object] = {}
        """The nodes that what is composed now stands in."""
        if "!" not in text:
            # A collection without a tag always comes to `resolve`, which checks the depth. Then
            # methods of the dict are enough for the two below, which would take a tenth of the
            # composer's time.
            vars(self).update(
                descend_resolver=self._open.__setitem__, ascend_resolver=self._open.popitem
            )
        self._tags: dict[tuple[str, tuple[bool, bool]], str] = {}

    def descend_resolver(self, parent: object, index: object) -> None:
        self._open[parent] = index
        if len(self._open) > self._most_deep + 1:  # a scalar may stand in the deepest collection
            raise _TooDeep

    def ascend_resolver(self) -> None:
        self._open.popitem()

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """The tag of a node. Those of scalars are remembered: it takes long to find them out."""
        if kind is not yaml.ScalarNode:
            if len(self._open) > self._most_deep:
                raise _TooDeep
            return _MAPPING if kind is yaml.MappingNode else _SEQUENCE
        if value[:1] not in _MAY_BE_OTHER:
            return _TEXT
        known = self._tags.get((value, implicit))
        if known is None:
            known = str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]
            if len(self._tags) < _MOST_KNOWN:
                self._tags[value, implicit] = known
        return known


def _too_deep(text: str, most_deep: int) -> yaml.Event:
    """Where nesting is too deep. It is found by YAML's events, which need no stack."""
    depth = 0
    event = None
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > most_deep:
                return event
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    raise AssertionError(f"the composer counts otherwise: {event}")
