"""The one list of matchers, and which of them a descriptor has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ratelimit_service.rules.matchers.cidr import Networks
from ratelimit_service.rules.matchers.matcher import Matcher
from ratelimit_service.rules.matchers.one_of import OneOf
from ratelimit_service.rules.matchers.pattern import Pattern
from ratelimit_service.rules.matchers.regex import Regex
from ratelimit_service.rules.problem import MAX_TEXT

if TYPE_CHECKING:  # workers have matchers, but read no YAML
    from ratelimit_service.rules.fields import Fields

__all__ = ["MATCHERS", "TakenValues", "keys", "kinds", "shareable", "taken"]

MATCHERS: Final[list[type[Matcher]]] = [
    Pattern,
    OneOf,
    Networks,
    Regex,
]


class TakenValues(NamedTuple):
    """Which values a descriptor takes: just one, those of a matcher with this name, "" for any."""

    value: str
    matcher: Matcher | None


def kinds() -> tuple[type[Matcher], ...]:
    """The first matcher of each key: its text explains the key."""
    first: dict[str, type[Matcher]] = {}
    for kind in MATCHERS:
        first.setdefault(kind.key, kind)
    return tuple(first.values())


def keys() -> tuple[str, ...]:
    """The keys of a descriptor that say which values it takes; it may have one of them."""
    return tuple(dict.fromkeys(kind.key for kind in MATCHERS))


def shareable() -> str:
    """What a descriptor needs whose values share a counter."""
    *names, last = ["a `*` in value", *(key for key in keys() if key != Pattern.key)]
    return f"{', '.join(names)} or {last}"


def taken(fields: Fields) -> TakenValues | None:
    """Which values a descriptor takes; None if it does not say so rightly, as is noted then."""
    here = list(dict.fromkeys(fields.among([kind.key for kind in MATCHERS])))
    value = fields.text(Pattern.key, several=OneOf.key, most=MAX_TEXT)
    if len(here) > 1:
        message = f"{here[0]} and {here[1]} exclude each other: write a descriptor for each"
        fields.report("matcher", message, key=here[1])
        return None
    kind = next((kind for kind in MATCHERS if kind.key in here and kind.written(fields)), None)
    if kind is None:
        return TakenValues(value, None)
    if not fields.given(kind.key):
        message = f"{kind.key} is empty: say what it takes, or leave it out"
        fields.report("matcher", message, value=kind.key)
        return None
    try:
        matcher = kind.read(fields)
    except ValueError as error:
        fields.report("matcher", str(error), value=kind.key)
        return None
    return TakenValues(matcher.name, matcher)
