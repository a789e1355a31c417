"""A connection goes through its states one step at a time, as the picture in `life` says."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from ratelimit_service.grpc.h2 import life
from ratelimit_service.grpc.h2.life import Leaving, Life, NoTable, Opening

SOURCE = Path(__file__).parents[2] / "ratelimit_service/grpc/h2/life.py"

OPENING = [Opening.SETTINGS, Opening.FIRST_CALL, Opening.OPEN]
LEAVING = [Leaving.LAST_CALL, Leaving.LAST_ROUND, Leaving.DRAINING, Leaving.CLOSING]
NO_TABLE = [NoTable.DUE, NoTable.SAID]


@pytest.mark.parametrize("steps", [OPENING, LEAVING, NO_TABLE])
def test_steps_follow_each_other(steps: list[life.LifeState]) -> None:
    """Each state leads to the next one, and no state but closing can be reached otherwise."""
    here = Life()
    for at, state in enumerate(steps):
        for other in steps[:at] + steps[at + 1 :]:
            if other is not Leaving.CLOSING:
                with pytest.raises(ValueError, match="does not go"):
                    lived(*steps[:at]).enter(other)
        here.enter(state)


def test_closing_can_follow_any_state() -> None:
    """A connection can close while it stays or leaves, once."""
    for at in range(len(LEAVING)):
        here = lived(*LEAVING[:at])
        here.enter(Leaving.CLOSING)
        assert here.closing
        with pytest.raises(ValueError, match="does not go"):
            here.enter(Leaving.CLOSING)


def test_steady() -> None:
    """A connection is steady once it is open, until it leaves, and while no table update is due."""
    for opened, left, table in itertools.product(range(4), range(5), range(3)):
        here = lived(*OPENING[:opened], *LEAVING[:left], *NO_TABLE[:table])

        assert here.steady == (opened == 3 and left == 0 and table != 1)
        assert here.settled == (opened >= 2)
        assert here.closing == (left == 4)


def test_picture_has_all_states() -> None:
    """The picture in the head of `life` shows every state."""
    picture = SOURCE.read_text().split("`leaving` follows")[0]

    for state in (*Opening, *Leaving, *NoTable):
        assert state.name in re.findall(r"\b[A-Z_]+\b", picture), state


def lived(*steps: life.LifeState) -> Life:
    here = Life()
    for state in steps:
        here.enter(state)
    return here
