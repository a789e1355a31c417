"""The grpcio server that decides nothing: what Python's usual way of gRPC costs by itself."""

from __future__ import annotations

import sys

import grpc
import uvloop

from ratelimit_service.model import Code, Decision, Status
from ratelimit_service.wire import METHOD, SERVICE, encode_decision

ANSWER = encode_decision(Decision(Code.OK, (Status(Code.OK), Status(Code.OK))))


async def decide(_body: bytes, _context: object) -> bytes:
    return ANSWER


async def main() -> None:
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(decide)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
    )
    server.add_insecure_port(sys.argv[1])
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
