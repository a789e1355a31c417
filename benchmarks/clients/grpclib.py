"""The client of grpclib: `python -m benchmarks.clients.grpclib ADDRESS NAME=NUMBER...`."""

from __future__ import annotations

import asyncio
import sys

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from h2.connection import H2Connection
from h2.settings import SettingCodes

from benchmarks.clients.calling import CONNECTIONS, Call, numbers, run
from ratelimit_service.wire import METHOD, SERVICE


class Raw(CodecBase):
    """Messages are bytes."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: object) -> bytes:  # noqa: ARG002
        return message

    def decode(self, data: bytes, message_type: object) -> bytes:  # noqa: ARG002
        return data


def announce_table(size: int) -> None:
    """Makes every connection announce a header table of this size; grpclib has no option for it."""
    begin = H2Connection.initiate_connection

    def initiate(connection: H2Connection) -> None:
        connection.local_settings[SettingCodes.HEADER_TABLE_SIZE] = size
        connection.local_settings.acknowledge()
        connection.decoder.max_allowed_table_size = size
        begin(connection)

    H2Connection.initiate_connection = initiate


def code(error: BaseException) -> str:
    if isinstance(error, GRPCError):
        return f"{error.status.name} {error.message}"
    if isinstance(error, asyncio.TimeoutError):
        return "DEADLINE_EXCEEDED"
    return repr(error)


async def main() -> None:
    if (table := numbers().get("table")) is not None:
        announce_table(table)
    host, _, port = sys.argv[1].partition(":")
    channels = [Channel(host, int(port), codec=Raw()) for _ in range(CONNECTIONS)]
    methods = [
        UnaryUnaryMethod(channel, f"/{SERVICE}/{METHOD}", bytes, bytes) for channel in channels
    ]

    async def caller(connection: int, call: Call) -> bytes:
        answer: bytes = await methods[connection](
            call.message, timeout=call.seconds, metadata=call.headers
        )
        return answer

    await run(caller, code)


if __name__ == "__main__":
    asyncio.run(main())
