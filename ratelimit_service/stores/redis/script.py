"""The one script: how hits become its arguments and its reply becomes outcomes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files

from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.model import Hit, Outcome

__all__ = ["SCRIPT", "SHA", "arguments", "outcomes"]

_COUNT_DENIED = 1
_REFUND = 2


def _joined() -> str:
    """The algorithms' files, the rule of passing and the part that talks to Redis, in one."""
    lua = files("ratelimit_service.algorithms") / "lua"
    parts = ["local algorithms = {}"]
    parts += [
        f"algorithms.{name} = (function()\n{(lua / f'{name}.lua').read_text()}\nend)()"
        for name in ALGORITHMS
    ]
    parts.append((lua / "settle.lua").read_text())
    parts.append((files("ratelimit_service.stores.redis") / "charge.lua").read_text())
    return "\n".join(parts)


SCRIPT = _joined()
SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()


def arguments(hits: Sequence[Hit], now_us: int | None = None) -> list[bytes | int | str]:
    """What follows the script's name in EVAL and EVALSHA; without a time Redis' own counts."""
    packed: list[bytes | int | str] = [len(hits), *(hit.key for hit in hits)]
    packed.append("" if now_us is None else now_us)
    for hit in hits:
        flags = _COUNT_DENIED * hit.count_denied + _REFUND * hit.refund
        packed += (hit.limit, hit.window_us, hit.addend, hit.algorithm, int(hit.mode), flags)
    return packed


def outcomes(reply: object, count: int) -> list[Outcome] | None:
    """Reads the script's reply for `count` hits; None if it is anything else."""
    if not isinstance(reply, list) or len(reply) != 1 + 4 * count:
        return None
    return [Outcome(bool(reply[at]), *reply[at + 1 : at + 4]) for at in range(1, len(reply), 4)]
