"""The life of a connection: the states that it goes through, and the steps that there are.

Three things about a connection change one step at a time, and never back:

    opening    PREFACE ------> SETTINGS ------> FIRST_CALL ------> OPEN
                    its preface      its SETTINGS       a call ended
                     has come         have come         in any way

    leaving    STAYING ------> LAST_CALL ------> LAST_ROUND ------> DRAINING
                  | `shut_down`    |  ping answered   |  ping answered  |
                  +----------------+--------+---------+-----------------+
                                            | the last stream is closed, a fault,
                                            v or the socket is gone
                                         CLOSING

    no table   UNSAID -------------> DUE --------------> SAID
                  the client allows      our next header
                  a smaller table        block says so

`leaving` follows RFC 9113, section 6.8 (`Control.shut_down`), `no_table` follows RFC 7541, section
4.2. Calls can take the short ways while the connection is `steady`: while calls come and go, and
nothing else is to be said. What must not live here: what is done at a step.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

__all__ = ["Leaving", "Life", "NoTable", "Opening"]


class Opening(Enum):
    """How far client and server know each other."""

    PREFACE = auto()
    """Nothing has come yet, or only a part of HTTP/2's preface."""
    SETTINGS = auto()
    """The client's first SETTINGS must come before anything else."""
    FIRST_CALL = auto()
    """No call has ended yet."""
    OPEN = auto()
    """The client was told to use no table for its header blocks."""


class Leaving(Enum):
    """How far the end of the connection has come."""

    STAYING = auto()
    LAST_CALL = auto()
    """The client was told to open no more streams, and asked whether it has heard that."""
    LAST_ROUND = auto()
    """It has heard that, and was asked once more, for calls that it had in a queue."""
    DRAINING = auto()
    """It was told which stream is the last. Later ones are not taken, earlier ones finished."""
    CLOSING = auto()
    """The socket is to be closed once all is written."""


class NoTable(Enum):
    """Whether the client knows that our header blocks use no dynamic table."""

    UNSAID = auto()
    DUE = auto()
    """Our next header block must say so, because the client allows a smaller table."""
    SAID = auto()


LifeState = Opening | Leaving | NoTable

_BEFORE: Final[dict[LifeState, tuple[LifeState, ...]]] = {
    Opening.SETTINGS: (Opening.PREFACE,),
    Opening.FIRST_CALL: (Opening.SETTINGS,),
    Opening.OPEN: (Opening.FIRST_CALL,),
    Leaving.LAST_CALL: (Leaving.STAYING,),
    Leaving.LAST_ROUND: (Leaving.LAST_CALL,),
    Leaving.DRAINING: (Leaving.LAST_ROUND,),
    Leaving.CLOSING: (
        Leaving.STAYING,
        Leaving.LAST_CALL,
        Leaving.LAST_ROUND,
        Leaving.DRAINING,
    ),
    NoTable.DUE: (NoTable.UNSAID,),
    NoTable.SAID: (NoTable.DUE,),
}
"""For each state those from which there is a step to it."""


class Life:
    """The states of one connection."""

    def __init__(self) -> None:
        self.opening = Opening.PREFACE
        self.leaving = Leaving.STAYING
        self.no_table = NoTable.UNSAID
        self.settled = False
        """Whether the client's SETTINGS have come."""
        self.steady = False
        """Whether calls come and go, and nothing begins or ends the connection."""
        self.closing = False
        """Whether it is in `Leaving.CLOSING`."""
        self.reason = ""
        """Why it was ended, in a word."""
        self.second = 0
        """For how many seconds there has been a connection."""
        self.unacknowledged = 1
        """How many SETTINGS of ours the client has to acknowledge; the first go out at once."""

    def enter(self, state: LifeState) -> None:
        """Makes a step. Raises ValueError if there is no such step from where the life is."""
        before: LifeState
        if isinstance(state, Opening):
            before, self.opening = self.opening, state
        elif isinstance(state, Leaving):
            before, self.leaving = self.leaving, state
        else:
            before, self.no_table = self.no_table, state
        if before not in _BEFORE.get(state, ()):
            raise ValueError(f"a connection does not go from {before} to {state}")
        self.settled = self.opening in (Opening.FIRST_CALL, Opening.OPEN)
        self.closing = self.leaving is Leaving.CLOSING
        self.steady = (
            self.opening is Opening.OPEN
            and self.leaving is Leaving.STAYING
            and self.no_table is not NoTable.DUE
        )
