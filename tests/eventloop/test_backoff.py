"""How long to wait before something is tried again."""

from __future__ import annotations

from ratelimit_service.eventloop.backoff import Backoff


def test_pauses_grow_up_to_the_longest() -> None:
    """Each pause is between half and all of what doubles up to a bound; then it begins again."""
    for _ in range(100):
        backoff = Backoff(1.0, 10.0)
        for most in (1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
            assert most / 2 <= backoff.next_seconds() <= most
        backoff.reset()
        assert 0.5 <= backoff.next_seconds() <= 1.0
