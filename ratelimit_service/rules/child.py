"""Builds rules in a process of its own, and takes them over slice by slice.

Reading YAML holds the interpreter for as long as it takes, a second for 20,000 rules; in the
meantime Envoy would let requests through. What rules mean is `build`'s business, how trees
come back that of `records`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence

from ratelimit_service.errors import RulesError
from ratelimit_service.observer import Tallies
from ratelimit_service.rules.build import Built, TalliesOf, Version, build
from ratelimit_service.rules.records import Assembly, packed

__all__ = ["build_in_child", "main"]

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
        [sys.executable, "-P", "-c", code],  # -P: not what lies in the working directory
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
    assembly = Assembly(tallies)
    while part := await _frame(stream):
        assembly.add(part)
        await asyncio.sleep(0)  # reading returns at once if enough has come
    rest: Built = pickle.loads(await _frame(stream))  # noqa: S301 -- our child's
    return rest._replace(domains=assembly.domains)


async def _frame(stream: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await stream.readexactly(_SIZE_BYTES), "big")
    return await stream.readexactly(size)


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(_SIZE_BYTES, "big") + data


def main() -> None:
    """The child: reads its task from standard input; writes trees, an empty frame, and the rest."""
    os.nice(_NICENESS)
    versions, strict = pickle.load(sys.stdin.buffer)  # noqa: S301 -- our parent's
    built = build(versions, Tallies, strict=strict)
    for part in packed(built.domains.values()):
        sys.stdout.buffer.write(_framed(part))
    rest = pickle.dumps(built._replace(domains={}), pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.write(_framed(b"") + _framed(rest))
    sys.stdout.buffer.flush()
