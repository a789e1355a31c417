"""Values from a list: `one_of: [free, trial]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ratelimit_service.containers.spread import SpreadTuple, spread_tuple
from ratelimit_service.rules.matchers.matcher import ONE_OR_MORE, Matcher, read_list
from ratelimit_service.rules.paths import MatcherName, matcher_name
from ratelimit_service.rules.problem import MAX_TEXT, quoted, too_long

if TYPE_CHECKING:  # workers have matchers, but read no YAML
    import yaml

    from ratelimit_service.rules.fields import Fields

__all__ = ["OneOf"]


@dataclass(frozen=True, slots=True)
class OneOf(Matcher):
    """Just these values. They are looked up as exact values are, however many there are."""

    key = "one_of"
    help = "A list of values instead, as `[free, trial]`. A `*` has no meaning in it."
    shape = ONE_OR_MORE
    noun = "list"
    values: Sequence[str]

    @classmethod
    def read(cls, fields: Fields) -> OneOf:
        """A list of values; one value alone is a list, too. Raises ValueError."""

        def value(text: str, node: yaml.Node) -> str:
            if len(text) > MAX_TEXT:
                raise ValueError(too_long("a value", text, MAX_TEXT))
            if "*" in text:
                message = (
                    f"a `*` in one_of stands for itself, and {quoted(text)} looks like a pattern: "
                    "write a descriptor of its own with value"
                )
                fields.report_at(node, "one_of", message)
            return text

        empty = "one_of is empty: write a list of values, as [free, trial]"
        return cls(spread_tuple(read_list(fields, cls.key, value, empty)))

    @property
    def parts(self) -> Sequence[tuple[object, ...]]:
        """Those of a large list."""
        return self.values.parts if isinstance(self.values, SpreadTuple) else ()

    @classmethod
    def made_of(cls, parts: Sequence[tuple[object, ...]]) -> OneOf:
        """The list of these parts."""
        return cls(SpreadTuple(cast("Sequence[tuple[str, ...]]", parts)))

    def __reduce__(self) -> tuple[type[OneOf], tuple[Sequence[str]]]:
        """How it is pickled: a dataclass's own way takes longer, and serving waits for it."""
        return OneOf, (self.values,)

    def matches(self, value: str) -> bool:
        """Whether it is one of them."""
        return value in self.values

    @property
    def text(self) -> str:  # type: ignore[override]  # it is only read
        """The list."""
        return ", ".join(self.values)

    @property
    def name(self) -> MatcherName:
        """The values, whatever their order in the file."""
        return matcher_name(self.key, *sorted(self.values))

    @property
    def literals(self) -> Sequence[str]:
        """All of them."""
        return self.values

    @property
    def beyond_literals(self) -> bool:
        """Whether it takes values that are no literals."""
        return False

    @property
    def example(self) -> str:
        """The first."""
        return self.values[0]
