"""The promise of reservations holds in every order of events, and each rule is needed for it."""

from __future__ import annotations

import pytest

from tests.stores.holds_model import HONEST, Rules, search

_DEPTH = 11


def test_holds_keep_within_the_limit_in_any_order_of_events() -> None:
    """Counted and held hits are within the limit, and what a stream has used counts once.

    That is so in any eleven steps of two callers: with replies lost, settles sent again, extensions
    that come too late, dead callers, ends of windows and a reload that lowers the limit.
    """
    states, wrong = search(_DEPTH)

    assert wrong == []
    assert states > 20_000


@pytest.mark.parametrize("broken", Rules._fields)
def test_each_rule_is_needed(broken: str) -> None:
    """Without any one of the rules some order of events breaks a promise: the model sees it."""
    _, wrong = search(_DEPTH, HONEST._replace(**{broken: False}))

    assert wrong
