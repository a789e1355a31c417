"""Builds rules in a process of its own, and takes them over slice by slice.

Reading YAML holds the interpreter for as long as it takes, a second for 20,000 rules; in the
meantime Envoy would let requests through. What rules mean is `build`'s business, how trees
come back that of `records`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import sys
from collections.abc import Sequence

from ratelimit_service.errors import RulesError
from ratelimit_service.observer import Tallies
from ratelimit_service.pipes import ChildProcess, end, framed, read_frame, start
from ratelimit_service.rules.build import Built, Version, build
from ratelimit_service.rules.records import Assembly, packed
from ratelimit_service.rules.tree import TalliesOf
from ratelimit_service.slices import stepwise

__all__ = ["build_in_child", "main"]

_MAX_SECONDS = 120.0
_NICENESS = 10
"""The child's niceness: requests matter more than rules."""


async def build_in_child(versions: Sequence[Version], tallies: TalliesOf, *, strict: bool) -> Built:
    """As `build`, without holding up the event loop.

    Raises RulesError if the process fails or takes too long.
    """
    try:
        process = await asyncio.to_thread(start, __name__)
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
        await asyncio.to_thread(end, process)


def _give(process: ChildProcess, versions: Sequence[Version], strict: bool) -> None:
    assert process.stdin is not None  # noqa: S101 -- it is a pipe
    with process.stdin as pipe:
        pickle.dump((list(versions), strict), pipe)


def _last_words(process: ChildProcess) -> str:
    assert process.stderr is not None  # noqa: S101 -- it is a pipe
    return process.stderr.read().decode("utf-8", "replace")


async def _take_over(stream: asyncio.StreamReader, tallies: TalliesOf) -> Built:
    assembly = Assembly(tallies)
    while part := await read_frame(stream):
        await stepwise(assembly.adding(part))
        await asyncio.sleep(0)  # reading returns at once if enough has come
    rest: Built = pickle.loads(await read_frame(stream))  # noqa: S301 -- our child's
    return rest._replace(domains=assembly.domains)


def main() -> None:
    """The child: reads its task from standard input; writes trees, an empty frame, and the rest."""
    os.nice(_NICENESS)
    gc.disable()  # it makes no garbage worth a look, and ends soon
    versions, strict = pickle.load(sys.stdin.buffer)  # noqa: S301 -- our parent's
    built = build(versions, Tallies, strict=strict)
    for part in packed(built.domains.values()):
        sys.stdout.buffer.write(framed(part))
    rest = pickle.dumps(built._replace(domains={}), pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.write(framed(b"") + framed(rest))
    sys.stdout.buffer.flush()
