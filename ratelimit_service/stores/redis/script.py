"""The one script: how hits become its arguments and its reply becomes outcomes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from importlib.resources import files

from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.model import Hit, Outcome

__all__ = ["SCRIPT", "SHA", "arguments", "outcomes"]

_COUNT_DENIED = 4
_REFUND = 8

_HIT = struct.Struct(">IdIBB")
"""A hit packed: limit, window in microseconds, addend, algorithm, mode and flags."""

_NUMBERS = {name: number for number, name in enumerate(ALGORITHMS)}


def _joined() -> str:
    """The algorithms' files, the rule of passing and the part that talks to Redis, in one."""
    lua = files("ratelimit_service.algorithms") / "lua"
    parts = ["local algorithms = {}"]
    parts += [
        f"algorithms[{number}] = (function()\n{(lua / f'{name}.lua').read_text()}\nend)()"
        for name, number in _NUMBERS.items()
    ]
    parts.append((lua / "settle.lua").read_text())
    parts.append((files("ratelimit_service.stores.redis") / "charge.lua").read_text())
    return "\n".join(parts)


SCRIPT = _joined()
SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()


def arguments(
    requests: Sequence[Sequence[Hit]], now_us: int | None = None
) -> list[bytes | int | str]:
    """What follows the script's name in EVAL and EVALSHA: keys, time, and the packed hits.

    Without a time Redis' own counts. Hits are packed into one argument, each request led by the
    number of its hits.
    """
    keys: list[bytes | int | str] = [0]
    packed = []
    for hits in requests:
        packed.append(len(hits).to_bytes(2, "big"))
        for hit in hits:
            keys.append(hit.key)
            flags = hit.mode | _COUNT_DENIED * hit.count_denied | _REFUND * hit.refund
            packed.append(
                _HIT.pack(hit.limit, hit.window_us, hit.addend, _NUMBERS[hit.algorithm], flags)
            )
    keys[0] = len(keys) - 1
    return [*keys, "" if now_us is None else now_us, b"".join(packed)]


def outcomes(reply: object, requests: Sequence[Sequence[Hit]]) -> list[list[Outcome]] | None:
    """Reads the script's reply for these requests; None if it is anything else."""
    if not isinstance(reply, list) or len(reply) != 1 + 4 * sum(map(len, requests)):
        return None
    each = iter(reply[1:])
    flat = [Outcome(bool(over), *rest) for over, *rest in zip(each, each, each, each, strict=True)]
    found, at = [], 0
    for hits in requests:
        found.append(flat[at : at + len(hits)])
        at += len(hits)
    return found
