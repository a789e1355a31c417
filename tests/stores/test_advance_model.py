"""The promise of advances holds in every order of events, and each rule is needed for it."""

from __future__ import annotations

import pytest

from tests.stores.advance_model import HONEST, Rules, search

_DEPTH = 9


def test_nobody_gets_more_than_the_limit_in_any_order_of_events() -> None:
    """Admitted and unspent hits are at most those charged less those handed back.

    So no window admits more than the limit and what the server lost, in any nine steps of two
    processes with one trouble among them.
    """
    states, wrong = search(_DEPTH)

    assert wrong == []
    assert states > 30_000


@pytest.mark.parametrize("broken", Rules._fields)
def test_each_rule_is_needed(broken: str) -> None:
    """Without any one of the rules some order of events admits too much: the model sees it."""
    _, wrong = search(12, HONEST._replace(**{broken: False}), most_troubles=0)

    assert wrong
