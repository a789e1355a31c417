"""Builds rules in a process of its own, and takes them over slice by slice.

Reading YAML holds the interpreter for as long as it takes, a second for 20,000 rules, and so
would taking over their tree at once. In the meantime Envoy would let requests through. The
child writes the tree as records, children before their parents; a slice of them is put
together between two batches of requests. What rules mean is `build`'s business.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from itertools import islice
from typing import NamedTuple

from ratelimit_service.errors import RulesError
from ratelimit_service.observer import Tallies
from ratelimit_service.rules.build import OVERRIDES, Built, TalliesOf, Version, build
from ratelimit_service.rules.tree import Domain, Level, LevelBuilder, Node

__all__ = ["build_in_child", "main"]

_SLICE_RECORDS = 60
"""Records put together at once: about a millisecond's worth."""

_MAX_SECONDS = 120.0
_SIZE_BYTES = 4
_NICENESS = 10
"""Requests go before rules."""

_Process = subprocess.Popen[bytes]


async def build_in_child(versions: Sequence[Version], tallies: TalliesOf, *, strict: bool) -> Built:
    """As `build`, without holding up the event loop.

    Raises RulesError if the process fails or takes too long.
    """
    try:
        process = await asyncio.to_thread(_start)
    except OSError as error:
        raise RulesError(
            f"the process that reads the rules cannot be started: {error.strerror}"
        ) from error
    try:
        async with asyncio.timeout(_MAX_SECONDS):
            stream = asyncio.StreamReader()
            reading, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(stream), process.stdout
            )
            try:
                await asyncio.to_thread(_give, process, versions, strict)
                return await _take_over(stream, tallies)
            finally:
                reading.close()
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        said = (await asyncio.to_thread(_last_words, process)).strip()
        last = said.splitlines()[-1] if said else "it was killed"
        raise RulesError(f"the process that reads the rules failed: {last}") from error
    except TimeoutError as error:
        raise RulesError(f"reading the rules took more than {_MAX_SECONDS:g} s") from error
    finally:
        await asyncio.to_thread(_end, process)


def _start() -> _Process:
    """Starts the child. Not by the event loop: uvloop forks, which grpcio's threads do not bear."""
    code = f"from {__name__} import main; main()"
    return subprocess.Popen(  # noqa: S603 -- this very interpreter and package
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a signal from the terminal is for us
    )


def _give(process: _Process, versions: Sequence[Version], strict: bool) -> None:
    assert process.stdin is not None  # noqa: S101 -- it is a pipe
    with process.stdin as pipe:
        pickle.dump((list(versions), strict), pipe)


def _end(process: _Process) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # what it did not read is of no use now
                pipe.close()


def _last_words(process: _Process) -> str:
    assert process.stderr is not None  # noqa: S101 -- it is a pipe
    return process.stderr.read().decode("utf-8", "replace")


async def _take_over(stream: asyncio.StreamReader, tallies: TalliesOf) -> Built:
    assembly = _Assembly(tallies)
    while True:
        size = int.from_bytes(await stream.readexactly(_SIZE_BYTES), "big")
        built = assembly.add(await stream.readexactly(size))
        if built is not None:
            return built
        await asyncio.sleep(0)  # readexactly returns at once if enough has come


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(_SIZE_BYTES, "big") + data


# Records


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


_Record = _Opened | _Leaf | _Closed | Built


def _records(built: Built) -> Iterator[_Record]:
    """The trees of all domains, then the rest."""
    for domain in built.domains.values():
        yield from _of_level(domain.root, domain)
    yield built._replace(domains={})


def _of_level(level: Level, domain: Domain | None = None) -> Iterator[_Record]:
    yield _Opened()
    for node in level.nodes:
        if node.children:
            yield from _of_level(node.children)
        yield _Leaf(node.with_children(None), node.children is not None)
    yield _Closed(domain.name, domain.shard_by) if domain else _Closed(None)


class _Assembly:
    """Puts trees together again."""

    def __init__(self, tallies: TalliesOf) -> None:
        self._tallies = tallies
        self._open: list[LevelBuilder] = []
        self._closed: Level | None = None
        self._domains: dict[str, Domain] = {}

    def add(self, data: bytes) -> Built | None:
        """Takes a slice; the last one completes the whole."""
        for record in _load(data, self._tallies):
            if isinstance(record, _Leaf):
                node = record.node
                if record.has_children:
                    node = node.with_children(self._closed)
                self._open[-1].add(node)
            elif isinstance(record, _Opened):
                self._open.append(LevelBuilder())
            elif isinstance(record, _Closed):
                self._closed = self._open.pop().level()
                if record.domain is not None:
                    overrides = self._tallies(record.domain, OVERRIDES)
                    self._domains[record.domain] = Domain(
                        record.domain, self._closed, overrides, record.shard_by
                    )
            else:
                return record._replace(domains=self._domains)
        return None


# Pickles, in which tallies are named: those that count stay in their process.


class _Named(Tallies):
    """Stands for the tallies of a rule."""

    __slots__ = ("name",)

    def __init__(self, domain: str, path: str) -> None:
        super().__init__()
        self.name = domain, path


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: object) -> tuple[str, str] | None:
        return obj.name if isinstance(obj, _Named) else None


class _Unpickler(pickle.Unpickler):
    tallies: TalliesOf

    def persistent_load(self, pid: tuple[str, str]) -> Tallies:
        return self.tallies(*pid)


def _dump(records: Sequence[_Record]) -> bytes:
    out = BytesIO()
    _Pickler(out, pickle.HIGHEST_PROTOCOL).dump(records)
    return out.getvalue()


def _load(data: bytes, tallies: TalliesOf) -> Iterable[_Record]:
    unpickler = _Unpickler(BytesIO(data))
    unpickler.tallies = tallies
    records: Iterable[_Record] = unpickler.load()
    return records


def main() -> None:
    """The child: reads its task from standard input, writes slices to standard output."""
    os.nice(_NICENESS)
    versions, strict = pickle.load(sys.stdin.buffer)  # noqa: S301 -- our parent's
    records = _records(build(versions, _Named, strict=strict))
    while part := list(islice(records, _SLICE_RECORDS)):
        sys.stdout.buffer.write(_framed(_dump(part)))
    sys.stdout.buffer.flush()
