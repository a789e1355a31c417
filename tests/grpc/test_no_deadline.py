"""Callers who name no deadline, over the wire, with their counters in Redis."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import grpc
import pytest

from ratelimit_service import wire
from ratelimit_service.model import Code, Request
from tests.servers.redis import RedisServer
from tests.servers.service import ServiceProcess
from tests.service.asking import descriptor

CONNECTIONS = 4
IN_FLIGHT = 100
CALLS = 3_000
LIMIT = 1_000

RULES = f"""
domain: edge
descriptors:
  - {{key: user, rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}}}
"""

BODY = wire.encode_request(Request("edge", (descriptor("user=a"),)))


async def asked(address: str, timeout_seconds: float | None) -> Counter[Code]:
    """What many callers hear that ask for one counter at once."""
    heard: Counter[Code] = Counter()
    left = iter(range(CALLS))

    async def ask(channel: grpc.aio.Channel) -> None:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/{wire.SERVICE}/{wire.METHOD}"
        )
        for _ in left:
            heard[wire.decode_decision(await call(BODY, timeout=timeout_seconds)).code] += 1

    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options) for _ in range(CONNECTIONS)]
    await asyncio.gather(*(ask(channel) for channel in channels for _ in range(IN_FLIGHT)))
    for channel in channels:
        await channel.close()
    return heard


@pytest.mark.parametrize("timeout_seconds", [None, 60.0])
def test_a_limit_of_a_thousand_lets_a_thousand_through(
    tmp_path: Path, own_redis: RedisServer, timeout_seconds: float | None
) -> None:
    """So it is however many calls are in flight, with a deadline and without."""
    (tmp_path / "rules.yaml").write_text(RULES)
    flags = "--rules", str(tmp_path / "rules.yaml"), "--store", own_redis.url, "--workers", "2"
    service = ServiceProcess(tmp_path, *flags)
    service.start()
    try:
        heard = asyncio.run(asked(service.address, timeout_seconds))
    finally:
        service.kill()

    assert heard == {Code.OK: LIMIT, Code.OVER_LIMIT: CALLS - LIMIT}
