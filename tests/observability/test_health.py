"""What the log says of health: what begins to be wrong, and what comes and goes."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from ratelimit_service.observability.health import Health


class Timer:
    """Calls when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        assert seconds == 60
        self.waiting.append(call)

    def minute(self) -> None:
        due, self.waiting = self.waiting, []
        for call in due:
            call()


def test_what_comes_and_goes_is_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    """A fault is logged at once, its end as INFO, and what follows within a minute in one line."""
    caplog.set_level(logging.INFO)
    timer = Timer()
    health = Health(call_later=timer.later)

    def result() -> list[tuple[str, str]]:
        lines = [(record.levelname, record.getMessage()) for record in caplog.records]
        caplog.clear()
        return lines

    health.degrade("store", "is slow")
    assert result() == [("WARNING", "degraded: store: is slow")]
    health.recover("store")
    assert result() == [("INFO", "recovered: store")]
    for _ in range(400):
        health.degrade("store", "is away")
        assert health.faults == {"store": "is away"}
        health.recover("store")
        assert health.faults == {}
    health.degrade("rules", "are bad")
    assert result() == [("WARNING", "degraded: rules: are bad")]
    health.degrade("tls", "is what the log has said", logged=True)
    assert (health.faults["tls"], result()) == ("is what the log has said", [])
    timer.minute()
    text = "degraded: store: is slow (400 times more in the last minute; now it is well)"
    assert result() == [("WARNING", text)]
    health.degrade("store", "is gone")
    assert result() == []
    timer.minute()
    text = "degraded: store: is gone (once more in the last minute; now it is degraded)"
    assert result() == [("WARNING", text)]
    timer.minute()
    health.recover("store")
    assert result() == [("INFO", "recovered: store")]
    timer.minute()
    health.degrade("store", "is slow")
    assert result() == [("WARNING", "degraded: store: is slow")]
