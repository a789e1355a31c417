"""A process that overrides steer, for tests of where these are kept."""

from __future__ import annotations

from ratelimit_service.health import Health
from ratelimit_service.model import Override
from ratelimit_service.observer import Stats
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.service import Service
from ratelimit_service.service.overrides import Overrides
from ratelimit_service.settings import Settings
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.overrides import KeptOverrides
from tests.stores.conftest import Time


class Process:
    """What one process knows of overrides that are kept somewhere."""

    def __init__(self, kept: KeptOverrides, clock: Time) -> None:
        store, settings = MemoryStore(10, Stats(), Health(), clock), Settings()
        self.steering = Service(lambda: Snapshot(0, {}), store, settings, Stats(), clock).steering
        self.overrides = Overrides(kept, self.steering, Stats(), clock)

    @property
    def known(self) -> list[Override]:
        assert len(self.overrides.in_force()) == self.steering.active
        return self.overrides.in_force()
