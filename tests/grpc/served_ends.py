"""A client and a service with turns, without sockets, on a clock of the test.

Callers wait for a hundred seconds, so that it does not matter if the machine stands still a moment.
"""

from __future__ import annotations

import asyncio

from ratelimit_service import wire
from ratelimit_service.eventloop.scheduler import Scheduler
from ratelimit_service.grpc.call_batch import CallBatch
from ratelimit_service.grpc.calls import METHODS, ServiceCalls
from ratelimit_service.grpc.h2 import client, frames
from ratelimit_service.grpc.h2.budget import Memory
from ratelimit_service.grpc.h2.frames import PREFACE, FrameType
from ratelimit_service.grpc.health import HealthService
from ratelimit_service.grpc.overload import Overload
from ratelimit_service.model import Request
from ratelimit_service.observability.health import Health
from tests.grpc.ends import Wire, come, take_turns
from tests.grpc.h2_client import Client
from tests.service.asking import Asking, descriptor

ENVOYS_US = 20_000

RULES = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 2}}
"""


async def rounds() -> None:
    """The event loop reads, and does what is due, until all has come of what was begun."""
    for _ in range(12):
        await asyncio.sleep(0)


class Ends:
    """A client and a service, and how long bytes have waited between them."""

    def __init__(self, asking: Asking) -> None:
        self.health, self.stats = Health(), asking.stats
        self.service, self.tally = asking.service, asking.tally
        self.overload = Overload(self.stats, self.health)
        self.calls = ServiceCalls(asking.service, HealthService(self.health), self.overload)
        self.scheduler, self.memory = Scheduler(), Memory()
        self.begin()

    def begin(self) -> None:
        """Begins a connection; one that there was is left as it is."""
        self.wire = Wire()
        self.served = client.Client(
            self.calls, METHODS, self.scheduler, self.wire, client.Client.forget, self.memory
        )
        self.served.start()
        self.client = Client()
        self.receive(PREFACE + frames.settings({}) + Client.ack())

    @property
    def pending(self) -> list[dict[CallBatch, int]]:
        """Calls that are not decided yet, by priority, and since when: tests let them grow old."""
        return self.calls._pending.since_us

    def receive(self, data: bytes, waited_us: int = 0, *, evenly: bool = True) -> list[int]:
        """Bytes come that have waited; returns the types of the frames that are said then.

        They came `evenly`, so that the last ones have not waited at all, or all together.
        """
        self.wire.kinds()
        come(self.served, data, waited_us, evenly=evenly)
        self.turn()
        return self.wire.kinds()

    def call(self, *, waited_us: int = 0, timeout: str = "100S") -> bool:
        """Makes a call that has waited; says if it is answered."""
        return FrameType.DATA in self.receive(self.frames(timeout), waited_us)

    def frames(self, timeout: str) -> bytes:
        """A call of a caller that waits for so long."""
        request = Request("edge", (descriptor("user=a"),))
        data = self.client.headers([("grpc-timeout", timeout)])
        return data + self.client.data(wire.encode_request(request))

    def turn(self) -> None:
        """Handles all that has come."""
        take_turns(self.scheduler)

    def settle(self) -> None:
        """Makes calls until header blocks depend on nothing, and the request is remembered."""
        self.call()
        self.client.encoder.header_table_size = 0
        self.receive(Client.ack())
        for _ in range(6):
            self.call()
        self.calls.look()
        self.stats.take()
        self.tally("user").take()


class Beside(Ends):
    """Another client of the same service."""

    def __init__(self, first: Ends) -> None:
        self.health, self.stats = first.health, first.stats
        self.service, self.tally = first.service, first.tally
        self.overload, self.calls = first.overload, first.calls
        self.scheduler, self.memory = first.scheduler, first.memory
        self.begin()
