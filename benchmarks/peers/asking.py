"""What servers decide, asked one by one and all at once, over grpcio.

Load says how fast a server answers. This says whether it decides, and how exactly.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import NamedTuple

import grpc.aio

from benchmarks.peers.limits import CROWD, FEW, GATE, NEIGHBOUR, Limited
from ratelimit_service.model import Code, Decision, Descriptor, Entry, Request
from ratelimit_service.wire import METHOD, SERVICE, decode_decision, encode_request

__all__ = ["Exactness", "check_decides", "exactness", "hot_remaining"]

_TIMEOUT_SECONDS = 20.0


class Exactness(NamedTuple):
    """Of a crowd of calls at once: how many passed, and how many the neighbour was charged."""

    passed: int
    charged: int


def _descriptor(limit: Limited, value: str) -> Descriptor:
    entries = [Entry(key, fixed) for key, fixed in limit.before]
    return Descriptor((*entries, Entry(limit.key, value)))


async def _answers(port: int, requests: Sequence[Request], at_once: int) -> list[Decision]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary(
            f"/{SERVICE}/{METHOD}",
            request_serializer=encode_request,
            response_deserializer=decode_decision,
        )
        found: list[Decision] = []
        for start in range(0, len(requests), at_once):
            calls = [
                ask(request, timeout=_TIMEOUT_SECONDS)
                for request in requests[start : start + at_once]
            ]
            found += await asyncio.gather(*calls)
        return found


def check_decides(name: str, port: int) -> None:
    """Ends the benchmark, if a limit of three does not let exactly three of four calls pass."""
    one = Request(FEW.domain, (_descriptor(FEW, secrets.token_hex(8)),))
    answers = asyncio.run(_answers(port, [one] * (FEW.number + 1), 1))
    codes = [answer.code for answer in answers]
    if codes != [Code.OK] * FEW.number + [Code.OVER_LIMIT]:
        raise SystemExit(f"peers: {name} does not decide by its rules: {codes}")
    told = [answer.statuses[0].remaining for answer in answers if answer.statuses]
    if told and told != [2, 1, 0, 0]:
        raise SystemExit(f"peers: {name} tells {told} for what remains of {FEW.number}")


def hot_remaining(port: int) -> int | None:
    """What remains of the limit that `load` asks for; None if the server does not tell it."""
    descriptors = tuple(
        Descriptor((Entry("route", "checkout"), Entry(key, "customer-000000001")))
        for key in ("user", "tenant")
    )
    (answer,) = asyncio.run(_answers(port, [Request("bench", descriptors)], 1))
    return answer.statuses[0].remaining if answer.statuses else None


def exactness(port: int) -> Exactness:
    """Sends a crowd of calls at once through a gate that lets half of them pass.

    Each has a second descriptor, the neighbour, with room for all. Afterwards the neighbour is
    asked alone until it is full, which tells what it was charged.
    """
    value = secrets.token_hex(8)
    neighbour = _descriptor(NEIGHBOUR, value)
    together = Request(GATE.domain, (_descriptor(GATE, value), neighbour))
    alone = Request(GATE.domain, (Descriptor((Entry("other", value),)), neighbour))
    passed = _passed(asyncio.run(_answers(port, [together] * CROWD, CROWD)))
    room = _passed(asyncio.run(_answers(port, [alone] * NEIGHBOUR.number, 1)))
    return Exactness(passed, NEIGHBOUR.number - room)


def _passed(answers: Sequence[Decision]) -> int:
    return sum(answer.code is Code.OK for answer in answers)
