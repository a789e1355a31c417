"""A management server of rules that does what a test tells it: also what none should do."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf import json_format

from ratelimit_service.wire.discovery import (
    METHOD,
    TYPE_URL,
    DiscoveryRequest,
    DiscoveryResponse,
    RateLimitConfig,
)
from tests.servers.process import free_port, wait_until

_END = object()


def config(domain: str, *keys: str, requests: int = 1, name: str = "", **others: Any) -> bytes:
    """A resource: a limit a year on each key."""
    limit = {"unit": "YEAR", "requests_per_unit": requests}
    descriptors = [{"key": key, "rate_limit": limit, **others} for key in keys]
    values = {"name": name or domain, "domain": domain, "descriptors": descriptors}
    return json_format.ParseDict(values, RateLimitConfig()).SerializeToString()


class Conversation:
    """One stream: what was asked, and what is to be sent."""

    def __init__(self) -> None:
        self.asked: list[DiscoveryRequest] = []
        self.to_send: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.headers: Mapping[str, str] = {}
        self._nonce = 0

    def send(
        self, version: str, *resources: bytes, type_url: str = TYPE_URL, nonce: str = ""
    ) -> str:
        """Sends a snapshot; returns its nonce."""
        self._nonce += 1
        response = DiscoveryResponse(
            version_info=version, type_url=type_url, nonce=nonce or f"n{self._nonce}"
        )
        for each in resources:
            response.resources.add(type_url=type_url, value=each)
        self.to_send.put(response.SerializeToString())
        return response.nonce

    def end(self) -> None:
        """Ends the stream."""
        self.to_send.put(_END)

    def answer_to(self, nonce: str) -> DiscoveryRequest:
        """What the client has said of a response; waits for it."""
        wait_until(lambda: self._said_of(nonce), f"an answer to {nonce}")
        return self._said_of(nonce)[0]

    def _said_of(self, nonce: str) -> list[DiscoveryRequest]:
        return [each for each in self.asked if each.response_nonce == nonce]


class ManagementServer:
    """Serves streams on a port of its own; `greet` says what is done when one begins."""

    def __init__(self, greet: Callable[[Conversation], object] = lambda _: None) -> None:
        self.port = free_port()
        self.greet = greet
        self.answer: Callable[[Conversation, DiscoveryRequest], object] = lambda *_: None
        self.conversations: list[Conversation] = []
        self._server: grpc.Server | None = None
        self._credentials: grpc.ServerCredentials | None = None

    @property
    def url(self) -> str:
        return f"xds://127.0.0.1:{self.port}"

    def start(self, credentials: grpc.ServerCredentials | None = None) -> ManagementServer:
        server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((_Handler(self._converse),))
        address = f"127.0.0.1:{self.port}"
        if credentials is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, credentials)
        server.start()
        self._server = server
        return self

    def stop(self) -> None:
        if self._server is not None:
            for each in self.conversations:
                each.end()
            self._server.stop(0).wait()
            self._server = None

    def conversation(self, number: int = -1) -> Conversation:
        """One that has begun; waits for it."""
        least = number + 1 if number >= 0 else 1
        wait_until(lambda: len(self.conversations) >= least, f"stream {number}")
        return self.conversations[number]

    def send(self, version: str, *resources: bytes) -> DiscoveryRequest:
        """Sends a snapshot on the newest stream; returns what the client says of it."""
        conversation = self.conversation()
        return conversation.answer_to(conversation.send(version, *resources))

    def _converse(
        self, requests: Iterable[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        conversation = Conversation()
        conversation.headers = {key: str(of) for key, of in context.invocation_metadata()}
        self.conversations.append(conversation)
        listening = threading.Thread(target=self._listen, args=(conversation, requests))
        listening.start()
        while True:
            item = conversation.to_send.get()
            if item is _END:
                return
            assert isinstance(item, bytes)
            yield item

    def _listen(self, conversation: Conversation, requests: Iterable[bytes]) -> None:
        try:
            for data in requests:
                request = DiscoveryRequest.FromString(data)
                conversation.asked.append(request)
                if len(conversation.asked) == 1:
                    self.greet(conversation)
                else:
                    self.answer(conversation, request)
        except grpc.RpcError:
            pass
        conversation.end()


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, converse: Callable[..., Iterator[bytes]]) -> None:
        self._handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            converse
        )

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._handler if details.method == METHOD else None
