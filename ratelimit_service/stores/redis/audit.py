"""What is audited, told page by page, while lists grow in front.

Each server has a list of the changes that it made, the newest first. The cursor after a page names
for each server the line that comes next: where it stood, and a digest of it. Later changes only
move that line back, so it is looked for from there on. What must not live here: what a change
leaves behind (`overrides`), and how servers are asked.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Final

from ratelimit_service.errors import StoreError
from ratelimit_service.stores.overrides import Audited

__all__ = ["ReadLines", "audited"]

ReadLines = Callable[[str, int, int], Awaitable[Sequence[bytes]]]
"""Lines of a server's list: how many are skipped, and the most to return. Raises StoreError."""

_Stretch = tuple[int, Sequence[bytes]]
"""How many lines of a list stand before some lines, and these."""

_DIGEST_BYTES: Final = 8
_TIME: Final = re.compile(rb'\{"v": \d+, "time": "([^"]*)"')
"""How our lines begin."""


async def audited(servers: Sequence[str], read: ReadLines, most: int, after: str) -> Audited:
    """The newest lines of all servers, or those after a cursor.

    Of each server as many lines and one more are read at once. A server that is away is left out
    from then on; if the first server is away it raises StoreError.
    """
    marks: dict[str, tuple[int, str]] = json.loads(after) if after else {}
    parts: dict[str, _Stretch] = {}
    for name in servers:
        if name not in marks and after:
            continue
        try:
            parts[name] = await _from(read, name, marks.get(name, (0, "")), most + 1)
        except StoreError:
            if name == servers[0]:
                raise
    timed = [[(_time_of(line), name, line) for line in part] for name, (_, part) in parts.items()]
    newest = list(islice(merge(*timed, key=itemgetter(0), reverse=True), most))
    counts = Counter(name for _, name, _ in newest)
    rest = {
        name: (first + counts[name], _digest(lines[counts[name]]))
        for name, (first, lines) in parts.items()
        if counts[name] < len(lines)
    }
    texts = [line.decode("utf-8", "replace") for _, _, line in newest]
    return Audited(texts, json.dumps(rest) if rest else "")


async def _from(read: ReadLines, name: str, mark: tuple[int, str], most: int) -> _Stretch:
    """At most so many lines from a marked one on; none if it is there no more."""
    first, digest = mark
    while lines := await read(name, first, most):
        if digest in {"", _digest(lines[0])}:  # nearly always
            return first, lines
        digests = list(map(_digest, lines))
        first += digests.index(digest) if digest in digests else len(lines)
    return first, ()


def _digest(line: bytes) -> str:
    return blake2b(line, digest_size=_DIGEST_BYTES).hexdigest()


def _time_of(line: bytes) -> bytes:
    """When a change was made, as its line says; empty if it does not say."""
    match = _TIME.match(line)
    return match[1] if match else b""
