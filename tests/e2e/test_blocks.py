"""The header blocks that a real Envoy sends, tracing or not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import hpack
import pytest

from ratelimit_service.grpc.h2.headers import HeaderReader
from tests.e2e.conftest import need_envoy
from tests.servers.envoy import Envoy, ratelimit_filter, shipped_config, traced
from tests.servers.recorder import Recorder


@pytest.mark.parametrize("tracing", [False, True])
async def test_blocks_of_envoy(tmp_path: Path, tracing: bool) -> None:
    """Each block of an Envoy reads as the hpack package does; in time none is walked any more."""
    need_envoy()
    recorded: list[bytes] = []
    server, port = await Recorder.serve(recorded)
    config = traced(shipped_config()) if tracing else shipped_config()
    ratelimit_filter(config)["timeout"] = "5s"  # a call that is given up early may send no block
    envoy = Envoy(config, tmp_path, {"ratelimit": port})
    await asyncio.to_thread(envoy.start)
    for number in range(20):
        await asyncio.to_thread(envoy.get, "/", x_user=f"u{number}")
    envoy.kill()
    server.close()
    reader, oracle = HeaderReader(), hpack.Decoder()

    known = []
    for number, block in enumerate(recorded):
        if number == 1:  # after its first call Envoy has been told to use no table
            reader.without_table()
        known.append(reader.recall(block) is not None)
        head = reader.read(block)
        decoded = dict(oracle.decode(block, raw=True))
        assert head.path == decoded[b":path"]
        assert head.content_type == decoded[b"content-type"]
        assert (b"traceparent" in decoded) == tracing
        assert head.plain
        assert head.timeout_us is not None

    assert len(recorded) == 20
    assert all(known[5:])
