"""The client of grpcio: `python -m benchmarks.clients.grpcio ADDRESS NAME=NUMBER...`."""

from __future__ import annotations

import asyncio
import sys

import grpc

from benchmarks.clients.calling import CONNECTIONS, Call, numbers, run
from ratelimit_service.wire import METHOD, SERVICE


def code(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name} {error.details()}"
    return repr(error)


async def main() -> None:
    options: list[tuple[str, int]] = [("grpc.use_local_subchannel_pool", 1)]
    if (table := numbers().get("table")) is not None:
        options.append(("grpc.http2.hpack_table_size.decoder", table))
    channels = [grpc.aio.insecure_channel(sys.argv[1], options) for _ in range(CONNECTIONS)]
    methods: list[grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = [
        channel.unary_unary(f"/{SERVICE}/{METHOD}") for channel in channels
    ]

    async def caller(connection: int, call: Call) -> bytes:
        answer: bytes = await methods[connection](
            call.message, timeout=call.seconds, metadata=call.headers
        )
        return answer

    await run(caller, code)


if __name__ == "__main__":
    asyncio.run(main())
