"""What the log may say only now and then."""

from __future__ import annotations

from ratelimit_service.observability.log_throttle import LogThrottle


def test_the_first_is_logged_and_then_one_in_so_long() -> None:
    """The first event is logged at once; the next one after its time says how many came."""
    now_us = 7
    throttle = LogThrottle(10, lambda: now_us)

    assert throttle.take() == 1
    now_us = 16
    assert [throttle.take(), throttle.take()] == [0, 0]
    now_us = 17
    assert [throttle.take(), throttle.take()] == [3, 0]
    now_us = 1_000
    assert throttle.take() == 2
