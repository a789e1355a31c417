"""gRPC's health protocol (grpc/doc/health-checking.md): what this process says of itself.

Degraded is SERVING: requests are answered, and NOT_SERVING from every instance at once would
empty the load balancer. Watches end when the process is to end, so that they do not hold it up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ratelimit_service.errors import BadRequestError, StatusCode
from ratelimit_service.observability.health import Health, Phase
from ratelimit_service.service import Answer, Refusal
from ratelimit_service.wire import SERVICE, parsed
from ratelimit_service.wire.grpc_services import HealthCheckRequest, HealthCheckResponse

__all__ = ["HEALTH_SERVICE", "HealthService"]

HEALTH_SERVICE = "grpc.health.v1.Health"

_NAMES = frozenset({"", "ratelimit", SERVICE})
"""What callers ask about: everything, the reference's name, the service's own."""


class HealthService:
    """`Check` and `Watch` over the process's health; serialized messages in and out."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._changed = asyncio.Event()
        health.listen(self._notice)

    def check(self, message: bytes) -> Answer:
        """The status now; a refusal for a name that is none of ours, or no name at all."""
        try:
            name = parsed(HealthCheckRequest, message).service
        except BadRequestError as error:
            return Refusal(error.code, str(error))
        if name not in _NAMES:
            return Refusal(StatusCode.NOT_FOUND, f"no service {name!r}: ask for {SERVICE!r}")
        return self._status(name)

    async def watch(self, message: bytes) -> AsyncIterator[bytes]:
        """The status now and after each change, until the process ends.

        Raises BadRequestError if the message cannot be read.
        """
        name = parsed(HealthCheckRequest, message).service
        last = b""
        while True:
            # All three before `yield`, because things may change while it waits.
            changed = self._changed
            ending = self._health.phase in {Phase.LEAVING, Phase.DRAINING}
            status = self._status(name)
            if status != last:
                last = status
                yield status
            if ending:
                return
            await changed.wait()

    def _notice(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _status(self, name: str) -> bytes:
        if name not in _NAMES:
            response = HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        elif self._health.serving:
            response = HealthCheckResponse(status=HealthCheckResponse.SERVING)
        else:
            response = HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING)
        return response.SerializeToString()
