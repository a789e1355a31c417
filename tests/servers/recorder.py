"""A gRPC server that keeps the header blocks of the calls it gets, and allows everything."""

from __future__ import annotations

import asyncio
from typing import cast

from ratelimit_service.grpc.calls import METHODS
from ratelimit_service.grpc.h2.connection import Calls, Connection
from ratelimit_service.grpc.h2.frames import FrameType
from ratelimit_service.model import Code, Decision
from ratelimit_service.wire import encode_decision

__all__ = ["Recorder"]

_ALLOWED = encode_decision(Decision(Code.OK, ()))
_PREFACE_BYTES = 24


class Recorder(asyncio.Protocol):
    """One connection; `recorded` is shared by all. Frames must come whole, as Envoy sends them."""

    def __init__(self, recorded: list[bytes]) -> None:
        self._recorded = recorded
        self._connection = Connection(METHODS)
        self._greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._connection.take_output())

    def data_received(self, data: bytes) -> None:
        at = 0 if self._greeted else _PREFACE_BYTES
        self._greeted = True
        while at < len(data):
            stop = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if data[at + 3] == FrameType.HEADERS:
                self._recorded.append(data[at + 9 : stop])
            at = stop
        for event in self._connection.receive(data):
            if isinstance(event, Calls):
                for stream_id in event.stream_ids:
                    self._connection.sender.answer(stream_id, _ALLOWED)
        self._transport.write(self._connection.take_output())

    @classmethod
    async def serve(cls, recorded: list[bytes]) -> tuple[asyncio.Server, int]:
        """Serves on a free port of the loopback interface, which is returned too."""
        server = await asyncio.get_running_loop().create_server(
            lambda: cls(recorded), "127.0.0.1", 0
        )
        port: int = server.sockets[0].getsockname()[1]
        return server, port
