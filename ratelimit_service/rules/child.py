"""Builds rules in a process of its own, and takes them over slice by slice.

Reading YAML holds the interpreter for as long as it takes, a second for 20,000 rules; in the
meantime Envoy would let requests through. The process may stay: then it knows what it has built
last, reads only what has changed, and sends only that. What rules mean is `build`'s business, how
trees come back that of `records`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import sys
from asyncio import ReadTransport
from collections.abc import Iterator, Mapping, Sequence

from ratelimit_service.errors import RulesError
from ratelimit_service.eventloop.slices import stepwise
from ratelimit_service.observability.stats import Tallies
from ratelimit_service.processes.low_priority import NICENESS
from ratelimit_service.processes.pipes import (
    ChildProcess,
    end,
    framed,
    read_frame,
    read_frame_at_once,
    start,
)
from ratelimit_service.rules.build import BuildCache, Built, FileReport, Version, build
from ratelimit_service.rules.records import Assembly, packed
from ratelimit_service.rules.tree import Domain, Level, TalliesOf

__all__ = ["Builder", "main"]

_MAX_SECONDS = 120.0

_REPORTS = 100
"""What is to be said of so many files is read at once; a problem is like a file."""

_COLLECTS = 16
"""After so many builds a child that stays looks for garbage. There is little of it."""


class Builder:
    """Builds in another process as `build` does here, without holding up the event loop."""

    def __init__(self, *, stays: bool = False) -> None:
        """If it `stays`, the process knows what it has built last, until `end`."""
        self._stays = stays
        self._child: _Child | None = None
        self._former: Mapping[str, Domain] = {}
        """What the process that stays has built last."""

    async def build(
        self, versions: Sequence[Version], tallies: TalliesOf, *, strict: bool
    ) -> Built:
        """Raises RulesError if the process fails or takes too long."""
        if self._child is not None and not self._child.alive:
            self.end()
        if self._child is None:
            self._child = await _Child.started()
        child, former = self._child, self._former
        self._former = {}
        built = None
        try:
            built = await child.build(versions, Assembly(tallies, former), strict=strict)
        finally:
            if built is None or not self._stays:
                self._child = None
                await child.ended()
        if self._stays:
            self._former = built.domains
        return built

    def end(self) -> None:
        """Ends the process, if there is one, also while it builds."""
        if self._child is not None:
            self._child.end()
            self._child, self._former = None, {}


class _Child:
    """The process, and how it is spoken to."""

    def __init__(
        self, process: ChildProcess, stream: asyncio.StreamReader, reading: ReadTransport
    ) -> None:
        self._process = process
        self._stream = stream
        self._reading = reading

    @classmethod
    async def started(cls) -> _Child:
        """Raises RulesError."""
        try:
            process = await asyncio.to_thread(start, __name__)
        except OSError as error:
            raise RulesError(
                f"the process that reads the rules cannot be started: {error.strerror}"
            ) from error
        stream = asyncio.StreamReader()
        reading, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), process.stdout
        )
        return cls(process, stream, reading)

    async def build(
        self, versions: Sequence[Version], assembly: Assembly, *, strict: bool
    ) -> Built:
        """What it builds, taken over slice by slice. Raises RulesError."""
        try:
            async with asyncio.timeout(_MAX_SECONDS):
                await asyncio.to_thread(self._give, versions, strict)
                return await self._take_over(assembly)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            output = (await asyncio.to_thread(self._error_output)).strip()
            last = output.splitlines()[-1] if output else "it was killed"
            raise RulesError(f"the process that reads the rules failed: {last}") from error
        except TimeoutError as error:
            raise RulesError(f"reading the rules took more than {_MAX_SECONDS:g} s") from error

    @property
    def alive(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process.poll() is None

    def end(self) -> None:
        """Ends it at once."""
        self._reading.close()
        end(self._process)

    async def ended(self) -> None:
        """As `end`, without waiting for it on the event loop."""
        self._reading.close()
        await asyncio.to_thread(end, self._process)

    def _give(self, versions: Sequence[Version], strict: bool) -> None:
        pipe = self._process.stdin
        assert pipe is not None  # noqa: S101 -- it is a pipe
        pipe.write(framed(pickle.dumps((list(versions), strict), pickle.HIGHEST_PROTOCOL)))
        pipe.flush()

    async def _take_over(self, assembly: Assembly) -> Built:
        while part := await read_frame(self._stream):
            await stepwise(assembly.adding(part))
            await asyncio.sleep(0)  # reading returns at once if enough has come
        files: list[FileReport] = []
        while part := await read_frame(self._stream):
            files += pickle.loads(part)  # noqa: S301 -- our child's
            await asyncio.sleep(0)
        rest: Built = pickle.loads(await read_frame(self._stream))  # noqa: S301 -- our child's
        return rest._replace(files=tuple(files), domains=assembly.domains)

    def _error_output(self) -> str:
        errors = self._process.stderr
        assert errors is not None  # noqa: S101 -- it is a pipe
        return "" if errors.closed else errors.read().decode("utf-8", "replace")


def main() -> None:
    """The child: takes tasks from standard input, and ends when that ends.

    For each task it writes trees and an empty frame, then what is to be said of files and an empty
    frame, then the rest.
    """
    os.nice(NICENESS)  # requests matter more than rules
    gc.disable()  # it makes next to no garbage
    cache = BuildCache()
    built: Mapping[str, Domain] = {}
    number = 0
    while task := read_frame_at_once(sys.stdin.buffer):
        versions, strict = pickle.loads(task)  # noqa: S301 -- our parent's
        before = built
        rest = build(versions, Tallies, strict=strict, cache=cache, root=Level.listed)
        built = rest.domains
        for part in packed(built.values(), before):
            _write(part)
        _write(b"")
        for some in _few(rest.files):
            _write(pickle.dumps(some, pickle.HIGHEST_PROTOCOL))
        _write(b"")
        rest = rest._replace(files=(), domains={})
        _write(pickle.dumps(rest, pickle.HIGHEST_PROTOCOL))
        sys.stdout.buffer.flush()
        del versions, before, rest, task
        number += 1
        if number % _COLLECTS == 0:
            gc.collect()


def _few(files: Sequence[FileReport]) -> Iterator[list[FileReport]]:
    some: list[FileReport] = []
    weight = 0
    for each in files:
        some.append(each)
        weight += 1 + len(each.problems)
        if weight >= _REPORTS:
            yield some
            some, weight = [], 0
    if some:
        yield some


def _write(part: bytes) -> None:
    sys.stdout.buffer.write(framed(part))
