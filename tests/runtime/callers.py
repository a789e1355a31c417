"""Callers of a service, each with a connection of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import grpc

from ratelimit_service.cli.service_client import Client
from ratelimit_service.model import Code, Request
from ratelimit_service.wire import METHOD, SERVICE
from tests.servers.service import ServiceProcess
from tests.service.asking import descriptor
from tests.waiting import PATIENCE_SECONDS

REQUEST = Request("edge", (descriptor("user=bob"),))
SECOND_US = 1_000_000


class Caller(Client):
    """A client with a connection of its own; others of a process share one."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(address, options=options)
        self._call = self._channel.unary_unary(f"/{SERVICE}/{METHOD}")


def ask(client: Client, request: Request = REQUEST) -> Code:
    """What it is told about one request."""
    return client.should_rate_limit(request, int(PATIENCE_SECONDS) * SECOND_US).code


@contextmanager
def clients(
    service: ServiceProcess, count: int, request: Request = REQUEST
) -> Iterator[Sequence[Client]]:
    """Clients of which each has a connection of its own, and has asked once."""
    with ExitStack() as stack:
        result = [stack.enter_context(Caller(service.address)) for _ in range(count)]
        for client in result:
            ask(client, request)
        yield result
