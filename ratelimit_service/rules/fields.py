"""The values of a mapping by their keys, each as the type that is asked for, or a problem.

What must not live here: how a file becomes nodes (`reader`), and what keys mean (`schema`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import TypeVar

import yaml

from ratelimit_service.model import MAX_ADDEND
from ratelimit_service.rules import scalars
from ratelimit_service.rules.paths import Source
from ratelimit_service.rules.problem import (
    MAX_TEXT,
    allowed_are,
    listed,
    nearest,
    origin,
    quoted,
    too_long,
)
from ratelimit_service.rules.reader import Pair, Path, Reader, Unreadable

__all__ = ["Fields", "Scalars", "document"]

_T = TypeVar("_T")

Scalars = tuple[tuple[tuple[str, str, str], ...], ...]
"""What mappings of scalars say: the keys, with the tags and texts of their values."""


def document(
    reader: Reader,
    root: yaml.Node,
    allowed: Collection[str],
    locations: Mapping[str, str],
    anywhere: Collection[str] = (),
) -> Fields:
    """A document, a mapping of the allowed keys. Raises Unreadable.

    `locations` says of every known key where it stands. Those of `anywhere` are tolerated in other
    places, where they do nothing.
    """
    if isinstance(root, yaml.MappingNode) and any(
        scalars.raw(key) == "apiVersion" for key, _ in root.value
    ):
        message = "this is an object of Kubernetes: of a ConfigMap take what stands under data"
        reader.report(root, (), "type", message)
        raise Unreadable
    reader.anywhere, reader.locations = anywhere, locations
    fields = Fields(reader, root, (), allowed)
    if not fields.readable:
        raise Unreadable
    return fields


class Fields:
    """A mapping's values by their keys. Each is read as the type asked for.

    What is missing, null or (with a problem noted) of another type reads as the default.
    """

    def __init__(
        self,
        reader: Reader,
        node: yaml.Node,
        path: Path,
        allowed: Collection[str],
        *,
        deeper: bool = False,
        example: str = "",
    ) -> None:
        """Notes keys that may not stand here; of one that stands here twice the last counts.

        With `deeper` it is a place of its own in the tree, below `path`.
        """
        self._reader = reader
        self._node = node
        self._pairs: dict[str, Pair] = {}
        self._misspelt: tuple[str, ...] = ()
        self.path = path
        self.readable = isinstance(node, yaml.MappingNode)
        if not isinstance(node, yaml.MappingNode):
            if deeper:
                self.path = (*path, ("", ""))
            as_in = f", as in {example}" if example else ""
            message = f"this must be a mapping of {listed(allowed)}{as_in}"
            reader.report(node, self.path, "type", message)
            return
        rejected = self._take_pairs(node, allowed)
        if deeper:  # as far as it can be told before it is checked
            self.path = (*path, (self.raw("key")[:MAX_TEXT], self.raw("value")[:MAX_TEXT]))
        if deeper and len(rejected) == 1 and self._is_key_itself(*rejected[0], allowed):
            return
        for key, _ in rejected:
            self._report_key(key, allowed)

    def _take_pairs(self, node: yaml.MappingNode, allowed: Collection[str]) -> list[Pair]:
        """Takes in pairs by their keys; returns those that may not stand here."""
        pairs = self._pairs
        rejected: list[Pair] = []
        own, merged = self._reader.pairs(node)
        for pair in own:
            name = scalars.raw(pair[0])
            if name not in allowed or name in pairs:
                rejected.append(pair)
            if name in allowed:
                pairs[name] = pair
        for pair in merged:
            name = scalars.raw(pair[0])
            if name not in allowed:
                rejected.append(pair)
            else:
                pairs.setdefault(name, pair)
        return rejected

    def __contains__(self, name: str) -> bool:
        return name in self._pairs

    def once(self, kind: type[_T], read: Callable[[Fields], _T | None]) -> _T | None:
        """What `read` makes of the mapping, or has made of it before."""
        cached = self._reader.cached(self._node)
        if isinstance(cached, kind):
            return cached
        begun = self._reader.begin()
        result = read(self)
        self._reader.keep(self._node, result, begun)
        return result

    def like(self, kind: type[_T]) -> _T | None:
        """What was made of another mapping that differs from this one only in key and value."""
        like = self._reader.like(self._node)
        return like if isinstance(like, kind) else None

    def given(self, name: str) -> bool:
        """Whether the key is there, and not null."""
        pair = self._pairs.get(name)
        return pair is not None and pair[1].tag != scalars.NULL

    def misspelt(self, name: str) -> bool:
        """Whether a key that was reported is most likely meant to be this one."""
        return name in self._misspelt

    def within(self, names: AbstractSet[str]) -> bool:
        """Whether it has no other keys than these."""
        return self._pairs.keys() <= names

    def among(self, names: Sequence[str]) -> list[str]:
        """Those of these keys that are there, in their order."""
        pairs = self._pairs
        return [name for name in names if name in pairs]

    def content(self, name: str) -> Scalars | None:
        """What stands under a key, if that is a mapping of scalars, or a list of such ones.

        It is all that it means: two values with the same content mean the same.
        """
        value = self._pairs[name][1]
        rows = []
        for mapping in value.value if isinstance(value, yaml.SequenceNode) else (value,):
            if not isinstance(mapping, yaml.MappingNode):
                return None
            row = []
            for key, of in mapping.value:
                if key.tag != scalars.STR or not isinstance(key, yaml.ScalarNode):
                    return None
                if not isinstance(of, yaml.ScalarNode):
                    return None
                row.append((key.value, of.tag, of.value))
            rows.append(tuple(row))
        return tuple(rows)

    def visit(self, name: str) -> None:
        """Counts what stands under a key, and is not looked at because its content is known."""
        value = self._pairs[name][1]
        if isinstance(value, yaml.SequenceNode):
            self._reader.visit(value, len(self.path))
        for mapping in value.value if isinstance(value, yaml.SequenceNode) else (value,):
            self._reader.visit(mapping, 0)

    def source(self, name: str | None = None) -> Source:
        """Where a key stands, or the mapping."""
        return self._reader.source(self._pairs[name][0] if name else self._node)

    def report(
        self,
        kind: str,
        message: str,
        *,
        key: str | None = None,
        value: str | None = None,
        tolerated: bool = False,
        hint: bool = False,
    ) -> None:
        """Notes a problem at a key, at a key's value, or at the mapping."""
        node = self._node
        if key is not None:
            node = self._pairs[key][0]
        elif value is not None:
            node = self._pairs[value][1]
        self._reader.report(node, self.path, kind, message, tolerated=tolerated, hint=hint)

    def report_at(self, node: yaml.Node, kind: str, message: str) -> None:
        """Notes a problem at a node within a key's value."""
        self._reader.report(node, self.path, kind, message)

    def advise_if_empty(self, name: str, then: str) -> None:
        """Hints at a key behind which nothing stands at all: who writes `null` or `[]` means it."""
        if name in self and not self.given(name) and not self.raw(name):
            self.advise("empty", f"{name} is empty, so {then}, or take the key out", key=name)

    def advise(self, kind: str, message: str, *, key: str | None = None) -> None:
        """Notes a hint at a key, or at the mapping, if hints are asked for."""
        if self._reader.advises:
            self.report(kind, message, key=key, hint=True)

    def node(self, name: str) -> yaml.Node:
        """The value of a key that is there."""
        return self._pairs[name][1]

    def key_node(self, name: str) -> yaml.Node:
        """A key that is there."""
        return self._pairs[name][0]

    def raw(self, name: str) -> str:
        """A value as it stands in the file, whatever YAML takes it for; "" if it is no scalar."""
        return scalars.raw(self._pairs[name][1]) if name in self._pairs else ""

    def text(self, name: str, *, several: str = "", most: int = 0) -> str:
        """A value's source text, of at most so many characters, if that is not 0.

        `several` is the key that takes a list of them.
        """
        if not self.given(name):
            return ""
        if not isinstance(node := self._pairs[name][1], yaml.ScalarNode):
            there_is = several and isinstance(node, yaml.SequenceNode)
            more = f": for several there is {several}" if there_is else ""
            self.report("type", f"{name} must be text{more}", value=name)
        text = self.raw(name)
        if most and len(text) > most:
            self.report("too_long", too_long(name, text, most), value=name)
        return text

    def texts(self, name: str) -> list[str] | None:
        """A list of texts; None if it is anything else."""
        value = self._pairs[name][1]
        if not isinstance(value, yaml.SequenceNode):
            return None
        texts = []
        for item in value.value:
            if isinstance(item, yaml.ScalarNode) and item.value:
                texts.append(scalars.raw(item))
            else:
                self._reader.report(item, self.path, "type", f"{name} must be a list of texts")
        return texts

    def one_or_more(self, name: str) -> list[tuple[str, yaml.Node]]:
        """A text, or a list of texts, each with where it stands."""
        value = self._pairs[name][1]
        items = value.value if isinstance(value, yaml.SequenceNode) else [value]
        self._reader.visit(value, 0)
        texts: list[tuple[str, yaml.Node]] = []
        for item in items:
            if isinstance(item, yaml.ScalarNode) and item.value and item.tag != scalars.NULL:
                texts.append((scalars.raw(item), item))
            else:
                message = f"{name} must be a text or a list of texts, none of them empty"
                self._reader.report(item, self.path, "type", message)
        return texts

    def text_pairs(self, name: str) -> list[tuple[str, str]]:
        """The keys and texts of a mapping, in order."""
        return self._text_pairs(name, self._pairs[name][1])

    def entries(self, name: str) -> list[list[tuple[str, str]]]:
        """A list of what `text_pairs` reads; an item may be a list of mappings itself.

        So one that has a key twice can be written.
        """
        value = self._pairs[name][1] if name in self._pairs else None
        if not isinstance(value, yaml.SequenceNode):
            if value is not None:
                self.report("type", f"{name} must be a list of mappings", value=name)
            return []
        return [
            [
                pair
                for mapping in (item.value if isinstance(item, yaml.SequenceNode) else [item])
                for pair in self._text_pairs(name, mapping)
            ]
            for item in value.value
        ]

    def _text_pairs(self, name: str, node: yaml.Node) -> list[tuple[str, str]]:
        if not isinstance(node, yaml.MappingNode):
            self._reader.report(node, self.path, "type", f"{name}: write {{key: value}} here")
            return []
        pairs = []
        for key, value in chain(*self._reader.pairs(node)):
            if not isinstance(value, yaml.ScalarNode):
                self._reader.report(value, self.path, "type", f"{name}: this must be text")
            pairs.append((scalars.raw(key), scalars.raw(value)))
        return pairs

    def switch(self, name: str) -> bool:
        """A boolean of YAML 1.1, without quotes."""
        if not self.given(name):
            return False
        switch = scalars.switch(self._pairs[name][1])
        if switch is None:
            self.report("type", f"{name} must be true or false, without quotes", value=name)
        return switch is True

    def number(self, name: str, least: int, most: int = MAX_ADDEND) -> int:
        """An integer of YAML 1.1 from `least` to `most`, without quotes; `least` if missing."""
        if not self.given(name):
            return least
        number = scalars.number(self._pairs[name][1])
        if not isinstance(number, int) or not least <= number <= most:
            message = f"{name} must be a whole number from {least} to {most}, without quotes"
            message += origin(self.raw(name))
            self.report("number", message, value=name)
            return least
        if self._reader.advises and (digits := scalars.decimals(self._pairs[name][1])):
            written = quoted(self.raw(name))
            message = f"YAML reads {written} as {number}: write {' or '.join(map(str, digits))}"
            self.report("odd_number", message, value=name, hint=True)
        return number

    def numbers(self, name: str, least: int, most: int = MAX_ADDEND) -> list[int] | None:
        """A list of integers from `least` to `most`, `least` for what is none; None if no list."""
        node = self._pairs[name][1]
        if not isinstance(node, yaml.SequenceNode):
            return None
        numbers = []
        for item in node.value:
            number = scalars.number(item)
            if not isinstance(number, int) or not least <= number <= most:
                message = f"{name} must be whole numbers from {least} to {most}, without quotes"
                self._reader.report(item, self.path, "number", message)
                number = least
            numbers.append(number)
        return numbers

    def one_of(self, name: str, allowed: Collection[str], default: str) -> str:
        """One of the allowed words, whatever the case of its letters."""
        if not self.given(name):
            return default
        word = self.raw(name).lower()
        if word in allowed:
            return word
        hint = origin(word)
        may = f"allowed are {listed(allowed)}{hint}" if hint else allowed_are(word, allowed)
        message = f"{name} {quoted(word)} is unknown: {may}"
        self.report(name, message, value=name)
        return default

    def mapping(self, name: str, allowed: Collection[str], example: str = "") -> Fields:
        """A mapping within this one, at the same place in the tree.

        `example` is one, for whoever has written something else.
        """
        value = self._pairs[name][1]
        return Fields(self._reader, value, self.path, allowed, example=example)

    def items(self, name: str, allowed: Collection[str], *, deeper: bool) -> Iterator[Fields]:
        """The mappings of a list; with `deeper` each is a place of its own in the tree."""
        if not self.given(name):
            return
        node = self._pairs[name][1]
        if not isinstance(node, yaml.SequenceNode):
            self.report("type", f"{name} must be a list", value=name)
            return
        self._reader.visit(node, len(self.path))
        for item in node.value:
            fields = Fields(self._reader, item, self.path, allowed, deeper=deeper)
            if fields.readable:
                yield fields

    def plain(self, name: str) -> dict[str, object] | None:
        """A mapping of anything, as JSON has it."""
        if not self.given(name):
            return None
        node = self._pairs[name][1]
        plain = self._plain(node, 0)
        if isinstance(plain, dict):
            size = len(json.dumps(plain, ensure_ascii=False))
            if size > MAX_TEXT:
                message = f"{name} has {size} characters as JSON: {MAX_TEXT} are allowed"
                self.report("too_long", message, value=name)
            return plain
        self.report("type", f"{name} must be a mapping", value=name)
        return None

    def _plain(self, node: yaml.Node, depth: int) -> object:
        self._reader.visit(node, depth)
        if isinstance(node, yaml.MappingNode):
            own, merged = self._reader.pairs(node)
            values = {scalars.raw(key): self._plain(value, depth + 1) for key, value in own}
            for key, value in merged:
                if scalars.raw(key) not in values:
                    values[scalars.raw(key)] = self._plain(value, depth + 1)
            return values
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, depth + 1) for item in node.value]
        if node.tag == scalars.NULL:
            return None
        switch = scalars.switch(node)
        return self._plain_number(node) if switch is None else switch

    def _plain_number(self, node: yaml.Node) -> float | str:
        """A number; what is none is text."""
        number = scalars.number(node)
        if number is not None and math.isfinite(number):
            if self._reader.advises and (digits := scalars.decimals(node)):
                message = (
                    f"YAML reads {quoted(scalars.raw(node))} as {digits[0]}: write that, or put it "
                    "into quotes"
                )
                self._reader.report(node, self.path, "odd_number", message, hint=True)
            return float(number)
        if node.tag in scalars.NUMBERS:
            message = (
                f"numbers in metadata must be finite, of at most {scalars.MAX_DIGITS} characters"
            )
            self._reader.report(node, self.path, "type", message)
        return scalars.raw(node)

    def _is_key_itself(self, key: yaml.Node, value: yaml.Node, allowed: Collection[str]) -> bool:
        """Whether a descriptor has in place of `key` what it should be, which is reported."""
        name = scalars.raw(key)
        if not name or "key" in self._pairs or name in self._reader.locations or ":" in name:
            return False
        if name in allowed or nearest(name, allowed) == "key":
            return False
        text = scalars.raw(value)
        instead = f"write {quoted(f'key: {name}')}"
        if text and "value" not in self._pairs:
            instead += f" and {quoted(f'value: {text}')}"
        self._misspelt += ("key",)
        message = f"{quoted(name)} is no key of a descriptor: {instead}"
        self._reader.report(key, self.path, "unknown_key", message)
        return True

    def _report_key(self, key: yaml.Node, allowed: Collection[str]) -> None:
        """Reports a key that may not stand here, or not once more."""
        name = scalars.raw(key)
        if name in allowed:
            message = f"{name} stands here twice: the last one counts"
            self._reader.report(key, self.path, "duplicate_key", message, tolerated=True)
        elif name in self._reader.locations:
            tolerated = name in self._reader.anywhere
            location = self._reader.locations[name]
            message = f"{name} must stand {location}, not here"
            if tolerated:
                message = f"{name} does nothing here: it stands {location}"
            if name in {"rate_limit", "rate_limits"}:
                message += ": indent it as far as the key of its descriptor"
            elif (
                location.endswith("rate_limit")
                and "rate_limit" in self
                and not self.given("rate_limit")
            ):
                message += ": indent it further than the rate_limit above it"
            self._reader.report(key, self.path, "misplaced_key", message, tolerated=tolerated)
        else:
            before = name.partition(":")[0]
            if before in allowed:
                self._misspelt += (before,)
                why = "a colon wants a space behind it"
            else:
                self._misspelt += (nearest(name, allowed),)
                why = allowed_are(name, allowed)
            message = f"{quoted(name)} is no key: {why}"
            self._reader.report(key, self.path, "unknown_key", message)
