"""What is remembered by its bytes: nothing that came only once."""

from __future__ import annotations

from ratelimit_service.service.memo import Memo


def test_what_comes_for_the_second_time_is_remembered_and_not_before() -> None:
    """A key is remembered at its second `put`, whatever its hash is."""
    for number in range(2_000):
        key = b"key %d" % number
        memo = Memo[int](256)
        memo.put(key, 0, number)
        assert memo.get(key, 0) is None
        memo.put(key, 0, number)
        assert memo.get(key, 0) == number
