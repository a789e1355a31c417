"""Several attacks at the same time, and attacks on a service that restarts."""

from __future__ import annotations

import asyncio

from benchmarks.abuse.attack import TLS, Act, attack
from benchmarks.abuse.on_grpc import (
    large_bodies,
    many_connections,
    many_descriptors,
    pings,
    rapid_reset,
    settings_sustained,
)
from benchmarks.abuse.on_grpc_tls import key_updates, tls_connect, tls_together
from benchmarks.abuse.on_http import aborted_bodies, fractions, large_json
from benchmarks.abuse.on_streams import absurd_headers, trailers
from benchmarks.abuse.wire import Aim


async def together(aim: Aim, *acts: Act) -> None:
    """Does all of these until time is over."""
    async with asyncio.TaskGroup() as group:
        for act in acts:
            group.create_task(_acting(act, aim))


async def _acting(act: Act, aim: Aim) -> None:
    await act(aim)


@attack("resets, SETTINGS, PING, trailers and odd headers at once", connections=5)
async def frames_at_once(aim: Aim) -> None:
    await together(aim, rapid_reset, settings_sustained, pings, trailers, absurd_headers)


@attack("bodies of 60 KB, 256 descriptors and /json at once", connections=22)
async def calls_at_once(aim: Aim) -> None:
    acts = large_bodies, many_descriptors, many_connections, large_json, aborted_bodies, fractions
    await together(aim, *acts)


@attack("TLS: handshakes, changes of keys and resets at once", flags=TLS, connections=802)
async def tls_at_once(aim: Aim) -> None:
    await together(aim, tls_connect, tls_together, key_updates, rapid_reset)


@attack("three restarts in a row, with resets and SETTINGS", seconds=20.0, restarts=3)
async def restarts(aim: Aim) -> None:
    await together(aim, rapid_reset, settings_sustained)
