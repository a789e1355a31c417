"""YAML for people: what stands where in one file, and every problem instead of the first.

Works on YAML's nodes rather than on values, since these know their line and their source text. What
must not live here: what a node has to be (`fields`), and what keys mean (`schema`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Never

import yaml

from ratelimit_service.rules.composer import TooDeepError, compose
from ratelimit_service.rules.paths import Source, path_text
from ratelimit_service.rules.problem import Problem
from ratelimit_service.text.yaml_slips import lines_of, slip

__all__ = ["ForeignMark", "Pair", "Path", "ReadNode", "Reader", "Unreadable"]

_MAX_DEPTH = 100
"""The deepest nesting, of collections and of descriptors."""

_MAX_VALUES = 2_000_000
"""The most values read in a file, so that nested aliases cannot multiply for ever."""

_VALUES_OF_ANY = 100_000
_VALUES_OF_A_CHARACTER = 20
"""How many a short file may have: any so many, and more with its length. Aliases say much in few
characters, but a file that says a hundred times more was made to keep its reader busy."""

_MERGE = "tag:yaml.org,2002:merge"

Path = tuple[tuple[str, str], ...]
"""A place in the tree of rules: the keys and values from the top."""


class ForeignMark(yaml.Mark):
    """Where a node stands that is taken over from another file, `name`."""


class ReadNode(yaml.MappingNode):
    """A mapping that keeps its result, for when the same text is read again."""

    result: object | None = None
    """What was made of it, if it has no problem."""
    visited = 0
    """How many values were read for that."""
    like: object | None = None
    """What was made of another mapping that differs from this one only in key and value."""
    keeps = True
    """Whether no problem of it was known before it was read."""


class Unreadable(Exception):  # noqa: N818 -- no error of its own: its problem is noted already
    """Nothing more can be read in this file."""


Pair = tuple[yaml.Node, yaml.Node]
"""A key of a mapping, and its value."""


class Reader:
    """Reads one file and collects its problems."""

    def __init__(self, name: str, needs: str = "a domain", *, advises: bool = False) -> None:
        """`name` is the file's, for the problems; `needs` is what an empty file lacks.

        If it `advises`, it notes hints at what is written, which `lint` says and `serve` does not.
        """
        self.name = name
        self.advises = advises
        self._needs = needs
        self.problems: list[Problem] = []
        self.anywhere: Collection[str] = ()
        """Keys that are tolerated in other places than theirs, where they do nothing."""
        self.locations: Mapping[str, str] = {}
        """Of every known key where it stands."""
        self._visited = 0
        self._most_values = _MAX_VALUES

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

    def cached(self, node: yaml.Node) -> object | None:
        """What was made of a mapping before; None if it is to be read."""
        if not isinstance(node, ReadNode) or node.result is None:
            return None
        self._visited += node.visited - len(node.value)
        return node.result

    def like(self, node: yaml.Node) -> object | None:
        """What was made of another mapping that differs from this one only in key and value."""
        if not isinstance(node, ReadNode) or node.like is None:
            return None
        self._visited += node.visited - len(node.value)
        return node.like

    def visit(self, node: yaml.Node, depth: int) -> None:
        """Counts a node's values. Raises Unreadable if they are too many or nested too deep.

        An alias that contains itself is short in the text, but never ends when it is followed.
        """
        self._visited += 1 if isinstance(node, yaml.ScalarNode) else len(node.value) + 1
        if self._visited > self._most_values:
            message = (
                f"more than {self._most_values} values, those of each alias counted: split the file"
            )
            self._stop(self.source(node), "too_large", message)
        if depth > _MAX_DEPTH:
            self._stop(self.source(node), "too_deep", f"nested more than {_MAX_DEPTH} deep")

    def pairs(
        self, node: yaml.MappingNode, depth: int = 0
    ) -> tuple[Sequence[Pair], Iterable[Pair]]:
        """A mapping's own pairs, and those of `<<`."""
        self.visit(node, 0)
        own: Sequence[Pair] = node.value
        merges = [value for key, value in own if key.tag == _MERGE]
        if not merges:
            return own, ()
        return [pair for pair in own if pair[0].tag != _MERGE], self._merged(merges, depth)

    def _merged(self, merges: Iterable[yaml.Node], depth: int) -> Iterator[Pair]:
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
            long = max(_VALUES_OF_ANY, _VALUES_OF_A_CHARACTER * len(text))
            self._most_values = min(_MAX_VALUES, long)
            root, second = compose(text, _MAX_DEPTH)
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            column = error.start - data.rfind(b"\n", 0, error.start)
            self._stop(Source(self.name, line, column), "yaml", "the file is not UTF-8")
        except TooDeepError as error:
            message = f"nested more than {_MAX_DEPTH} deep"
            self._stop(self.source(error.event), "too_deep", message)
        except yaml.MarkedYAMLError as error:
            at, what = slip(error, text)
            self._stop(self._source_at(text, at), "yaml", f"this is no YAML: {what}")
        except yaml.reader.ReaderError as error:
            at = len(text.encode()[: error.position].decode())
            what = f"the character {error.character:#x} cannot stand here"
            self._stop(self._source_at(text, at), "yaml", f"this is no YAML: {what}")
        if root is None:
            self._stop(None, "no_domain", f"the file is empty: it needs {self._needs}")
        if second is not None:
            message = "only the first document of a file is read: put this one into its own file"
            self.report(second, (), "second_document", message, tolerated=True)
        return root

    def _source_at(self, text: str, at: int) -> Source:
        """Where a character of the text stands."""
        *before, line = lines_of(text[:at])
        return Source(self.name, len(before) + 1, len(line) + 1)

    def _stop(self, source: Source | None, kind: str, message: str) -> Never:
        self.problems.append(Problem(source or Source(self.name), "", message, kind))
        raise Unreadable
