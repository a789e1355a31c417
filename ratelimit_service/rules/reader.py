"""YAML for people: typed values that know their place, and every problem instead of the first.

Works on YAML's nodes rather than on values, since these know their line and their source
text. What keys mean is `schema`'s business; this module knows none of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Never, TypeVar

import yaml

from ratelimit_service.model import MAX_ADDEND
from ratelimit_service.rules.composer import TooDeepError, compose
from ratelimit_service.rules.paths import Source, path_text
from ratelimit_service.rules.problem import Problem, did_you_mean, quoted

__all__ = [
    "Fields",
    "ForeignMark",
    "Path",
    "ReadNode",
    "Reader",
    "Scalars",
    "Unreadable",
    "listed",
]

_MAX_DEPTH = 100
"""The deepest nesting, of collections and of descriptors."""

_MAX_VALUES = 2_000_000
"""The most values read in a file, so that nested aliases cannot multiply for ever."""

_MAX_DIGITS = 64
"""The longest text that is read as a number: reading one takes the square of its length."""

_TAG = "tag:yaml.org,2002:"
_NULL = f"{_TAG}null"
_STR = f"{_TAG}str"
_BOOL = f"{_TAG}bool"
_INT = f"{_TAG}int"
_FLOAT = f"{_TAG}float"
_MERGE = f"{_TAG}merge"
_TRUE = {"yes", "true", "on"}
_FALSE = {"no", "false", "off"}

_T = TypeVar("_T")

Path = tuple[tuple[str, str], ...]
"""A place in the tree of rules: the keys and values from the top."""


class ForeignMark(yaml.Mark):
    """Where a node stands that is taken over from another file, `name`."""


class ReadNode(yaml.MappingNode):
    """A mapping that keeps what it has come to, for who reads the same again."""

    result: object | None = None
    """What it has come to, if nothing is to be said of it."""
    visited = 0
    """How many values that took."""
    like: object | None = None
    """What another one has come to that says the same, but for what names it."""
    keeps = True
    """Whether nothing was to be said of it before it was read."""


class Unreadable(Exception):  # noqa: N818 -- no error of its own: its problem is noted already
    """Nothing more can be read in this file."""


_Pair = tuple[yaml.Node, yaml.Node]
"""A key of a mapping, and its value."""

Scalars = tuple[tuple[tuple[str, str, str], ...], ...]
"""What mappings of scalars say: the keys, with the tags and texts of their values."""


class Reader:
    """Reads one file and collects its problems."""

    def __init__(self, name: str, needs: str = "a domain") -> None:
        """`name` is the file's, for the problems; `needs` is what an empty file lacks."""
        self.name = name
        self._needs = needs
        self.problems: list[Problem] = []
        self.anywhere: Collection[str] = ()
        self._visited = 0

    def document(
        self,
        root: yaml.Node,
        allowed: Collection[str],
        places: Mapping[str, str],
        anywhere: Collection[str] = (),
    ) -> Fields:
        """A document, a mapping of the allowed keys. Raises Unreadable.

        `places` says of every known key where it stands. Those of `anywhere` are tolerated in other
        places, where they do nothing.
        """
        self.anywhere = anywhere
        fields = Fields(self, root, (), allowed, places)
        if not fields.readable:
            raise Unreadable
        return fields

    def report(
        self,
        node: yaml.Node,
        path: Path,
        kind: str,
        message: str,
        *,
        tolerated: bool = False,
        hint: bool = False,
    ) -> None:
        """Notes a problem at a node."""
        where = path_text([entry for entry in path if entry[0]])
        tolerated = tolerated or hint
        self.problems.append(Problem(self.source(node), where, message, kind, tolerated, hint))

    def source(self, node: yaml.Node | yaml.Event) -> Source:
        """Where a node stands."""
        mark = node.start_mark
        if not mark:
            return Source(self.name)
        file = mark.name if isinstance(mark, ForeignMark) else self.name
        return Source(file, mark.line + 1, mark.column + 1)

    def begin(self) -> tuple[int, int]:
        """What `keep` is to be given where the reading of a mapping begins."""
        return self._visited, len(self.problems)

    def keep(self, node: yaml.Node, result: object, begun: tuple[int, int]) -> None:
        """Lets a mapping keep what it has come to, if nothing is to be said of it."""
        visited, problems = begun
        if isinstance(node, ReadNode) and node.keeps and len(self.problems) == problems:
            node.result, node.visited = result, self._visited - visited + len(node.value)

    def kept(self, node: yaml.Node) -> object | None:
        """What a mapping has come to before; None if it is to be read."""
        if not isinstance(node, ReadNode) or node.result is None:
            return None
        self._visited += node.visited - len(node.value)
        return node.result

    def like(self, node: yaml.Node) -> object | None:
        """What another mapping has come to that says the same, but for what names it."""
        if not isinstance(node, ReadNode) or node.like is None:
            return None
        self._visited += node.visited - len(node.value)
        return node.like

    def visit(self, node: yaml.Node, depth: int) -> None:
        """Counts a node's values. Raises Unreadable if they are too many or nested too deep.

        An alias that contains itself is short in the text, but never ends when it is followed.
        """
        self._visited += 1 if isinstance(node, yaml.ScalarNode) else len(node.value) + 1
        if self._visited > _MAX_VALUES:
            message = f"more than {_MAX_VALUES} values: aliases multiply here"
            self._stop(self.source(node), "too_large", message)
        if depth > _MAX_DEPTH:
            self._stop(self.source(node), "too_deep", f"nested more than {_MAX_DEPTH} deep")

    def pairs(
        self, node: yaml.MappingNode, depth: int = 0
    ) -> tuple[Sequence[_Pair], Iterable[_Pair]]:
        """A mapping's own pairs, and those of `<<`."""
        self.visit(node, 0)
        own: Sequence[_Pair] = node.value
        merges = [value for key, value in own if key.tag == _MERGE]
        if not merges:
            return own, ()
        return [pair for pair in own if pair[0].tag != _MERGE], self._merged(merges, depth)

    def _merged(self, merges: Iterable[yaml.Node], depth: int) -> Iterator[_Pair]:
        for merge in merges:
            for each in merge.value if isinstance(merge, yaml.SequenceNode) else [merge]:
                if not isinstance(each, yaml.MappingNode) or depth > _MAX_DEPTH:
                    message = "<< must name a mapping other than itself"
                    self._stop(self.source(each), "yaml", message)
                own, merged = self.pairs(each, depth + 1)
                yield from own
                yield from merged

    def composed(self, data: bytes) -> yaml.Node:
        """The first document of a YAML text. Raises Unreadable."""
        try:
            text = data.decode("utf-8-sig")
            root, second = compose(text, _MAX_DEPTH)
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            column = error.start - data.rfind(b"\n", 0, error.start)
            self._stop(Source(self.name, line, column), "yaml", "the file is not UTF-8")
        except TooDeepError as error:
            message = f"nested more than {_MAX_DEPTH} deep"
            self._stop(self.source(error.event), "too_deep", message)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            source = Source(self.name, mark.line + 1, mark.column + 1) if mark else None
            what = "a tab: YAML wants spaces" if _at_a_tab(text, mark) else error.problem
            self._stop(source, "yaml", f"this is no YAML: {what or error.context}")
        except yaml.YAMLError as error:
            self._stop(None, "yaml", f"this is no YAML: {' '.join(str(error).split())}")
        if root is None:
            self._stop(None, "no_domain", f"the file is empty: it needs {self._needs}")
        if second is not None:
            message = "only the first document of a file is read: put this one into its own file"
            self.report(second, (), "second_document", message, tolerated=True)
        return root

    def _stop(self, source: Source | None, kind: str, message: str) -> Never:
        self.problems.append(Problem(source or Source(self.name), "", message, kind))
        raise Unreadable


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
        places: Mapping[str, str],
        *,
        deeper: bool = False,
    ) -> None:
        """Notes keys that may not stand here; of one that stands here twice the last counts.

        With `deeper` it is a place of its own in the tree, below `path`.
        """
        self._reader = reader
        self._node = node
        self._pairs: dict[str, _Pair] = {}
        self._places = places
        self.path = path
        self.readable = isinstance(node, yaml.MappingNode)
        if not isinstance(node, yaml.MappingNode):
            if deeper:
                self.path = (*path, ("", ""))
            reader.report(node, self.path, "type", f"this must be a mapping of {listed(allowed)}")
            return
        pairs = self._pairs
        odd: list[_Pair] = []
        own, merged = reader.pairs(node)
        for pair in own:
            name = _raw(pair[0])
            if name not in allowed or name in pairs:
                odd.append(pair)
            if name in allowed:
                pairs[name] = pair
        for pair in merged:
            name = _raw(pair[0])
            if name not in allowed:
                odd.append(pair)
            else:
                pairs.setdefault(name, pair)
        if deeper:  # as far as it can be told before it is checked
            self.path = (*path, (self.raw("key"), self.raw("value")))
        for key, _ in odd:
            self._report_key(key, allowed)

    def __contains__(self, name: str) -> bool:
        return name in self._pairs

    def once(self, kind: type[_T], read: Callable[[Fields], _T | None]) -> _T | None:
        """What `read` makes of the mapping, or has made of it before."""
        kept = self._reader.kept(self._node)
        if isinstance(kept, kind):
            return kept
        begun = self._reader.begin()
        result = read(self)
        self._reader.keep(self._node, result, begun)
        return result

    def like(self, kind: type[_T]) -> _T | None:
        """What another mapping has come to that says the same, but for what names it."""
        like = self._reader.like(self._node)
        return like if isinstance(like, kind) else None

    def given(self, name: str) -> bool:
        """Whether the key is there, and not null."""
        pair = self._pairs.get(name)
        return pair is not None and pair[1].tag != _NULL

    def within(self, names: AbstractSet[str]) -> bool:
        """Whether it has no other keys than these."""
        return self._pairs.keys() <= names

    def content(self, name: str) -> Scalars | None:
        """What stands under a key, if that is a mapping of scalars, or a list of such ones.

        It is all that it means: two values with the same content mean the same.
        """
        value = self._pairs[name][1]
        found = []
        for mapping in value.value if isinstance(value, yaml.SequenceNode) else (value,):
            if not isinstance(mapping, yaml.MappingNode):
                return None
            scalars = []
            for key, of in mapping.value:
                if key.tag != _STR or not isinstance(key, yaml.ScalarNode):
                    return None
                if not isinstance(of, yaml.ScalarNode):
                    return None
                scalars.append((key.value, of.tag, of.value))
            found.append(tuple(scalars))
        return tuple(found)

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
        at: yaml.Node | None = None,
        tolerated: bool = False,
        hint: bool = False,
    ) -> None:
        """Notes a problem at a key, at a key's value, at a node within it, or at the mapping."""
        node = at or self._node
        if key is not None:
            node = self._pairs[key][0]
        elif value is not None:
            node = self._pairs[value][1]
        self._reader.report(node, self.path, kind, message, tolerated=tolerated, hint=hint)

    def node(self, name: str) -> yaml.Node:
        """The value of a key that is there."""
        return self._pairs[name][1]

    def key_node(self, name: str) -> yaml.Node:
        """A key that is there."""
        return self._pairs[name][0]

    def raw(self, name: str) -> str:
        """A value as it stands in the file, whatever YAML takes it for; "" if it is no scalar."""
        return _raw(self._pairs[name][1]) if name in self._pairs else ""

    def text(self, name: str) -> str:
        """A value's source text."""
        if not self.given(name):
            return ""
        if not isinstance(self._pairs[name][1], yaml.ScalarNode):
            self.report("type", f"{name} must be text", value=name)
        return self.raw(name)

    def texts(self, name: str) -> list[str] | None:
        """A list of texts; None if it is anything else."""
        value = self._pairs[name][1]
        if not isinstance(value, yaml.SequenceNode):
            return None
        found = []
        for item in value.value:
            if isinstance(item, yaml.ScalarNode) and item.value:
                found.append(_raw(item))
            else:
                self._reader.report(item, self.path, "type", f"{name} must be a list of texts")
        return found

    def one_or_more(self, name: str) -> list[tuple[str, yaml.Node]]:
        """A text, or a list of texts, each with where it stands."""
        value = self._pairs[name][1]
        items = value.value if isinstance(value, yaml.SequenceNode) else [value]
        self._reader.visit(value, 0)
        found: list[tuple[str, yaml.Node]] = []
        for item in items:
            if isinstance(item, yaml.ScalarNode) and item.value and item.tag != _NULL:
                found.append((_raw(item), item))
            else:
                message = f"{name} must be a text or a list of texts, none of them empty"
                self._reader.report(item, self.path, "type", message)
        return found

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
            pairs.append((_raw(key), _raw(value)))
        return pairs

    def switch(self, name: str) -> bool:
        """A boolean of YAML 1.1, without quotes."""
        if not self.given(name):
            return False
        switch = _switch(self._pairs[name][1])
        if switch is None:
            self.report("type", f"{name} must be true or false, without quotes", value=name)
        return switch is True

    def number(self, name: str, least: int, most: int = MAX_ADDEND) -> int:
        """An integer of YAML 1.1 from `least` to `most`, without quotes; `least` if missing."""
        if not self.given(name):
            return least
        number = _number(self._pairs[name][1])
        if not isinstance(number, int) or not least <= number <= most:
            message = f"{name} must be a whole number from {least} to {most}, without quotes"
            self.report("number", message, value=name)
            return least
        return number

    def numbers(self, name: str, least: int, most: int = MAX_ADDEND) -> list[int] | None:
        """A list of integers from `least` to `most`, `least` for what is none; None if no list."""
        node = self._pairs[name][1]
        if not isinstance(node, yaml.SequenceNode):
            return None
        found = []
        for item in node.value:
            number = _number(item)
            if not isinstance(number, int) or not least <= number <= most:
                message = f"{name} must be whole numbers from {least} to {most}, without quotes"
                self._reader.report(item, self.path, "number", message)
                number = least
            found.append(number)
        return found

    def one_of(self, name: str, allowed: Collection[str], default: str) -> str:
        """One of the allowed words, whatever the case of its letters."""
        if not self.given(name):
            return default
        word = self.raw(name).lower()
        if word in allowed:
            return word
        hint = did_you_mean(word, allowed)
        message = f"{name} {quoted(word)} is unknown: allowed are {listed(allowed)}{hint}"
        self.report(name, message, value=name)
        return default

    def mapping(self, name: str, allowed: Collection[str]) -> Fields:
        """A mapping within this one, at the same place in the tree."""
        value = self._pairs[name][1]
        return Fields(self._reader, value, self.path, allowed, self._places)

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
            fields = Fields(self._reader, item, self.path, allowed, self._places, deeper=deeper)
            if fields.readable:
                yield fields

    def plain(self, name: str) -> dict[str, object] | None:
        """A mapping of anything, as JSON has it."""
        if not self.given(name):
            return None
        node = self._pairs[name][1]
        plain = self._plain(node, 0)
        if isinstance(plain, dict):
            return plain
        self.report("type", f"{name} must be a mapping", value=name)
        return None

    def _plain(self, node: yaml.Node, depth: int) -> object:
        self._reader.visit(node, depth)
        if isinstance(node, yaml.MappingNode):
            values: dict[str, object] = {}
            own, merged = self._reader.pairs(node)
            for key, value in own:
                values[_raw(key)] = self._plain(value, depth + 1)
            for key, value in merged:
                if _raw(key) not in values:
                    values[_raw(key)] = self._plain(value, depth + 1)
            return values
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, depth + 1) for item in node.value]
        if node.tag == _NULL:
            return None
        switch = _switch(node)
        if switch is not None:
            return switch
        number = _number(node)
        if number is not None and math.isfinite(number):
            return float(number)
        if node.tag in _NUMBERS:
            message = f"numbers in metadata must be finite, of at most {_MAX_DIGITS} characters"
            self._reader.report(node, self.path, "type", message)
        return _raw(node)

    def _report_key(self, key: yaml.Node, allowed: Collection[str]) -> None:
        """Reports a key that may not stand here, or not once more."""
        name = _raw(key)
        if name in allowed:
            message = f"{name} stands here twice: the last one counts"
            self._reader.report(key, self.path, "duplicate_key", message, tolerated=True)
        elif name in self._places:
            tolerated = name in self._reader.anywhere
            place = self._places[name]
            message = f"{name} must stand {place}, not here"
            if tolerated:
                message = f"{name} does nothing here: it stands {place}"
            self._reader.report(key, self.path, "misplaced_key", message, tolerated=tolerated)
        else:
            hint = did_you_mean(name, allowed)
            message = f"{quoted(name)} is no key: allowed are {listed(allowed)}{hint}"
            self._reader.report(key, self.path, "unknown_key", message)


def _at_a_tab(text: str, mark: yaml.Mark | None) -> bool:
    """Whether YAML stumbled over a tab, which editors show as spaces."""
    return mark is not None and text[mark.index : mark.index + 1] == "\t"


def _raw(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


_CONSTRUCTOR = yaml.constructor.SafeConstructor()
"""Reads numbers, one at a time; to make one takes longer than to read a rule."""

_NUMBERS = (_INT, _FLOAT)


def _number(node: yaml.Node) -> int | float | None:
    """A number as YAML 1.1 reads it; None if it is none, whatever its tag says."""
    if node.tag not in _NUMBERS:
        return None
    if not isinstance(node, yaml.ScalarNode) or len(node.value) > _MAX_DIGITS:
        return None
    try:
        if node.tag == _INT:
            return int(_CONSTRUCTOR.construct_yaml_int(node))
        if node.tag == _FLOAT:
            return float(_CONSTRUCTOR.construct_yaml_float(node))
    except (ValueError, IndexError):  # 0x_ looks like a number; a tag may stand before anything
        return None
    return None


def _switch(node: yaml.Node) -> bool | None:
    """A boolean as YAML 1.1 reads it; None if it is none, whatever its tag says."""
    word = _raw(node).lower()
    if node.tag != _BOOL or word not in _TRUE | _FALSE:
        return None
    return word in _TRUE


def listed(words: Iterable[str]) -> str:
    """Words for a sentence."""
    return ", ".join(words)
