"""Trees as records, for their way from one process to another: written and read slice by slice.

Reading a large tree in one go would hold the interpreter for as long as it takes, and in the
meantime Envoy would let requests through. So it is written as records, children before their
parents, a few of which are put together between two batches of requests. Tallies are named in
it, not contained: those that count stay in their process.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from io import BytesIO
from itertools import islice
from typing import NamedTuple

from ratelimit_service.model import FailurePolicy
from ratelimit_service.observer import Tallies
from ratelimit_service.rules.tree import (
    OVERRIDES,
    UNMATCHED,
    Domain,
    Level,
    LevelBuilder,
    Node,
    TalliesOf,
    Times,
)

__all__ = ["Assembly", "packed"]

_SLICE_RECORDS = 60
"""Records put together at once: about a millisecond's worth."""


class _Opened(NamedTuple):
    """The nodes up to the matching `_Closed` are one level."""


class _Leaf(NamedTuple):
    """A node of the level that is open, `node.children` left out."""

    node: Node
    has_children: bool
    """Whether the level closed last is its children's."""


class _Closed(NamedTuple):
    """The level is complete; if it is a domain's root, `domain` names it."""

    domain: str | None
    shard_by: frozenset[str] | None = None


_Record = _Opened | _Leaf | _Closed


def packed(domains: Iterable[Domain]) -> Iterator[bytes]:
    """The domains' trees in slices, each to be given to `Assembly.add` in this order."""
    records = (record for domain in domains for record in _of_level(domain.root, domain))
    while part := list(islice(records, _SLICE_RECORDS)):
        yield _dump(part)


def _of_level(level: Level, domain: Domain | None = None) -> Iterator[_Record]:
    yield _Opened()
    for node in level.nodes:
        if node.children:
            yield from _of_level(node.children)
        yield _Leaf(node.with_children(None), node.children is not None)
    yield _Closed(domain.name, domain.shard_by) if domain else _Closed(None)


class Assembly:
    """Puts trees together again."""

    def __init__(self, tallies: TalliesOf) -> None:
        """`tallies` gives this process's tallies of a rule."""
        self._tallies = tallies
        self._open: list[LevelBuilder] = []
        self._closed: Level | None = None
        self._policies: set[FailurePolicy | None] = set()
        """Of the domain that is being put together."""
        self._times = Times()
        """The same."""
        self._enqueues = False
        """The same."""
        self.domains: dict[str, Domain] = {}
        """Those that are complete."""

    def add(self, data: bytes) -> None:
        """Takes the next slice at once."""
        for _ in self.adding(data):
            pass

    def adding(self, data: bytes) -> Generator[None, None, None]:
        """Takes the next slice in steps: one that ends a level of many networks has a lot to do."""
        for record in _load(data, self._tallies):
            if isinstance(record, _Leaf):
                node = record.node
                if record.has_children:
                    node = node.with_children(self._closed)
                if node.rule:
                    self._policies.add(node.rule.failure_policy)
                    self._enqueues = self._enqueues or node.rule.enqueue
                self._times.add(node)
                self._open[-1].add(node)
            elif isinstance(record, _Opened):
                self._open.append(LevelBuilder())
            else:
                builder = self._open.pop()
                yield from builder.completing()
                self._closed = builder.level()
                if record.domain is not None:
                    overrides = self._tallies(record.domain, OVERRIDES)
                    self.domains[record.domain] = Domain(
                        record.domain,
                        self._closed,
                        overrides,
                        record.shard_by,
                        frozenset(self._policies),
                        self._times or None,
                        self._tallies(record.domain, UNMATCHED),
                        self._enqueues,
                    )
                    self._policies.clear()
                    self._times = Times()
                    self._enqueues = False


def _no_tallies(domain: str, path: str) -> Tallies:
    """What stands for tallies in a slice. Reading it puts those of the process in their place."""
    raise AssertionError(f"{domain}: the tallies of {path} are named, not carried")


def _name_of(tallies: Tallies) -> tuple[Callable[[str, str], Tallies], tuple[str, str]]:
    return _no_tallies, (tallies.domain, tallies.path)


class _Unpickler(pickle.Unpickler):
    tallies: TalliesOf

    def find_class(self, module: str, name: str) -> object:
        return self.tallies if name == _no_tallies.__name__ else super().find_class(module, name)


def _dump(records: Sequence[_Record]) -> bytes:
    out = BytesIO()
    pickler = pickle.Pickler(out, pickle.HIGHEST_PROTOCOL)
    # A method `persistent_id` would be asked for every object, and take as long as all else.
    pickler.dispatch_table = {Tallies: _name_of}
    pickler.dump(records)
    return out.getvalue()


def _load(data: bytes, tallies: TalliesOf) -> Iterable[_Record]:
    unpickler = _Unpickler(BytesIO(data))
    unpickler.tallies = tallies
    records: Iterable[_Record] = unpickler.load()
    return records
