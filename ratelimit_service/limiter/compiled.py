"""What rules and descriptors come to, as values: `compiler` and `plan` make them.

What must not live here: outcomes, bytes, and how these values are worked out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from ratelimit_service.model import CounterSpec, FailurePolicy, Hit, Limit, Mode, Override
from ratelimit_service.rules.tree import MatchedNode, Rule
from ratelimit_service.stores.keys import CounterNames

__all__ = ["CompiledLimit", "CompiledRule", "Era", "Kind", "Plan"]


class Kind(Enum):
    """How a descriptor is to be answered."""

    NO_RULE = auto()
    """No rule matches, which is tallied, or another rule of the request replaces it: allowed."""
    UNLIMITED = auto()
    """An unlimited rule matches: allowed, and tallied."""
    COUNTED = auto()
    """A limit applies: the store's outcome decides."""
    UNSERVED = auto()
    """The domain's rules never loaded: the failure policy decides."""
    BANNED = auto()
    """An override denies it, and nothing is counted."""


class CompiledLimit(NamedTuple):
    """What one limit of a rule means for every descriptor that meets it.

    Hits are near the limit when the count is above `near_limit`. Then less than `near_remaining`
    remains, the soft part included.
    """

    limit: Limit
    spec: CounterSpec
    count_denied: bool
    names: CounterNames
    soft: int
    near_limit: int
    near_remaining: int


class Era:
    """For which snapshot, and by which compiler, a rule was compiled: it holds there only."""


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """What a rule, or having none, means for every descriptor that meets it.

    Rules that come to the same share one, so it does not tell which rule it is: `Plan.node` does.
    `mode` is what the rule says. `hit_mode` is the mode of its hits, which the global shadow mode
    makes a shadow's.
    """

    kind: Kind
    limits: tuple[CompiledLimit, ...] = ()
    mode: Mode = Mode.ENFORCED
    hit_mode: Mode = Mode.ENFORCED
    policy: FailurePolicy = FailurePolicy.OPEN
    near_remaining: int = 0
    """The `near_remaining` of the first limit."""
    independent: bool = True
    """Whether the plan of a descriptor is the same whatever stands beside it in its request."""
    fast_path: bool = False
    """Whether the fast paths of answering do all that it asks for (`fast_path`)."""
    additions: int = 0
    """Which additions may speak of it in an answer: bits by their places in `ADDITIONS`."""
    leasing: bool = False
    """Whether hits take leases."""
    groups: bool = False
    """Whether a limit of it groups the addresses of the rule's own entry."""
    stray: bool = False
    """Whether this is of descriptors with a value that is to be grouped and is no address."""
    overrides: tuple[Override, ...] = ()
    """What an operator has decided that makes it differ from the rule."""
    era: Era | None = None
    uncounted_if_denied: bool = False
    """Whether this is of hits that descriptors report, which do not count if they are denied, of a
    rule that is also asked with 0 hits: then every later look would pass."""
    in_turn: bool = False
    """Whether its limits pay in turn: the first that has room is charged, and no other."""


_NO_NODE: Final = MatchedNode()


class Plan(NamedTuple):
    """What one descriptor needs: its rule, the number of hits, and what is to be charged.

    One hit for each limit of its rule. `node` is whose rule it is, and
    where its hits are tallied.
    """

    rule: CompiledRule
    addend: int = 1
    hits: tuple[Hit, ...] = ()
    node: MatchedNode = _NO_NODE

    @property
    def refund(self) -> bool:
        """Whether the hits are given back."""
        return bool(self.hits) and self.hits[0].refund

    @property
    def declared(self) -> Rule | None:
        """The rule as its file has it. None without one, and for a limit that a caller brings."""
        return self.node.declared
