"""What health notes of requests: what degrades nothing, and somebody should know.

What must not live here: where notes are shown (`health`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ratelimit_service.limiter import Plan
from ratelimit_service.model import Denied, Outcome
from ratelimit_service.text.display import printable

__all__ = ["Note", "note_unkept", "unnoted"]

_MOST_CHARACTERS = 200
"""Of the name of a rule."""

Note = Callable[[str, str], object]
"""Takes a subject, and a sentence on it."""


def unnoted(_subject: str, _text: str) -> None:
    """Notes nothing."""


def note_unkept(
    plans: Sequence[Plan], outcomes: Sequence[Sequence[Outcome | None]], note: Note
) -> None:
    """Notes the rules of a denied request that are looked at, and that lose what is reported."""
    for plan, each in zip(plans, outcomes, strict=True):
        declared = plan.declared
        if not plan.rule.uncounted_if_denied or declared is None:
            continue
        for hit, outcome in zip(plan.hits, each, strict=True):
            if outcome is None or outcome.charged or not outcome.over:
                continue
            algorithm = hit.spec.algorithm
            can = algorithm.denied >= Denied.COUNTED
            mend = (
                "say count_denied in the rule, or --count-denied reported"
                if can
                else f"a {algorithm.name} counts only what it has room for, so make it a window"
            )
            name = printable(f"rule {declared.path} of {declared.domain}")[:_MOST_CHARACTERS]
            note(
                name,
                "it is asked with 0 hits, and what was charged afterwards did not count where it "
                f"was denied, so later looks pass: {mend}",
            )
            break
